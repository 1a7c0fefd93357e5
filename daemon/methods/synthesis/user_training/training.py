"""Train an adapter to play users: supervised training with early stopping.

    training = UserTraining(model, spec, shown, held_out)
    for figures in training.steps(check_stop):      one item per assessment of what is held out
        ...
    training.restore_best()

Fields of the spec that are read: `warm_start.sft` (optimizer, epochs, batch and micro-batch,
warmup, schedule), `lora`, `seed`. Examples are token sequences (sft.py); what is held out is
assessed so many times in a whole training, and training stops where its loss has not fallen for
some of them.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from peft import PeftModel

from daemon.solver import sft
from daemon.solver.supervised_job import BestWeights
from daemon.solver.telemetry.progress import Progress
from daemon.solver.trajectory import TokenSequence
from daemon.solver.update import check_figures
from events.jobs import JobSpec, SftSettings
from events.messages import StrictModel

_ASSESSMENTS: Final = 10
"""How often what is held out is assessed in a whole training."""
_PATIENCE: Final = 3
"""Assessments without a lower loss after which training stops."""


class UserFigures(StrictModel):
    """How an adapter that plays users learns."""

    steps: int
    """Number of optimizer steps so far."""
    tokens: int
    """Number of written tokens so far, over all epochs."""
    first_loss: float
    """Loss of the first step, in nats per written token."""
    loss: float
    """That of the last step."""
    held_out_loss: float
    """That of the dialogues that are held out."""


class UserProgress(Progress):
    """One assessment of a job that teaches the user."""

    user: UserFigures


class UserTraining:
    """An adapter in training."""

    def __init__(
        self,
        model: PeftModel,
        spec: JobSpec,
        shown: Sequence[TokenSequence],
        held_out: Sequence[TokenSequence],
    ) -> None:
        """`held_out` has some with written tokens."""
        self.model = model
        self.taken = 0
        """Number of optimizer steps taken."""
        self.tokens = 0
        """Written tokens that were trained on, over all epochs."""
        self.best: UserFigures | None = None
        """Figures of the adapter with the lowest loss on what is held out; None before the first
        assessment."""
        self._shown, self._held_out = shown, held_out
        self._settings = read_settings(spec)
        self._best_weights = BestWeights(model)

    def steps(self, check_stop: Callable[[], None]) -> Iterator[UserFigures]:
        """Train; yield the figures of each assessment. `check_stop` is called before each step, and
        ends the training by what it raises. Raises UnstableUpdate, IncompatibleModel, ValueError
        where nothing is written in the examples."""
        since_best, first = 0, math.nan
        check_stop()
        for step in sft.train(self.model, self._shown, self._settings):
            self.taken, self.tokens = step.step, self.tokens + step.tokens
            if step.step == 1:
                first = step.loss
            if step.step % max(1, step.of // _ASSESSMENTS) == 0 or step.step == step.of:
                figures = self._assess(first, step.loss)
                if self.best is None or figures.held_out_loss < self.best.held_out_loss:
                    self.best, since_best = figures, 0
                    self._best_weights.remember()
                else:
                    since_best += 1
                yield figures
                if since_best == _PATIENCE:
                    return
            check_stop()

    def restore_best(self) -> None:
        """Put the best adapter into the model."""
        self._best_weights.restore()

    def _assess(self, first: float, last: float) -> UserFigures:
        loss = sft.mean_loss(self.model, self._held_out, self._settings.micro_tokens)
        check_figures(f"step {self.taken}", {"the loss on held-out dialogues": loss})
        return UserFigures(
            steps=self.taken,
            tokens=self.tokens,
            first_loss=first,
            loss=last,
            held_out_loss=loss,
        )


def read_settings(spec: JobSpec) -> SftSettings:
    """Return how a job that teaches the user trains; the order of examples follows from its
    seed."""
    assert spec.warm_start is not None, "a job that teaches the user has one"
    return spec.warm_start.sft.model_copy(update={"seed": spec.seed})
