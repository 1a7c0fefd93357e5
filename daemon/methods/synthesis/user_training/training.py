"""Train an adapter to play users: supervised training with early stopping.

It reads these fields of the spec: `warm_start.sft` (optimizer, epochs, batch and micro-batch,
warmup, schedule), `lora`, `seed`. Examples are token sequences (sft.py). Training stops if several
assessments in a row have no lower held-out loss.
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
"""Number of assessments in a training of full length."""
_PATIENCE: Final = 3
"""Training stops after so many assessments in a row without a lower loss."""


class UserFigures(StrictModel):
    """The learning curve of an adapter that plays users."""

    steps: int
    tokens: int
    """Number of tokens written by the user that were trained on so far, over all epochs."""
    first_loss: float
    """Loss of the first step, in nats per token that the user wrote."""
    loss: float
    """Loss of the last step, in the same unit."""
    held_out_loss: float
    """Loss on the held-out dialogues, in the same unit."""


class UserProgress(Progress):
    """Progress of a job that trains a user's model, at one assessment."""

    user: UserFigures


class UserTraining:
    """An adapter in training, and the best one so far."""

    def __init__(
        self,
        model: PeftModel,
        spec: JobSpec,
        shown: Sequence[TokenSequence],
        held_out: Sequence[TokenSequence],
    ) -> None:
        """`held_out` must have examples with tokens written by the user."""
        self.model = model
        self.taken = 0
        self.tokens = 0
        self.best: UserFigures | None = None
        """Figures of the adapter with the lowest held-out loss; None before an assessment."""
        self._shown, self._held_out = shown, held_out
        self._settings = read_settings(spec)
        self._best_weights = BestWeights(model)

    def steps(self, check_stop: Callable[[], None]) -> Iterator[UserFigures]:
        """Train, and yield the figures of each assessment. `check_stop` is called before each step;
        its errors end the training. Raise UnstableUpdate, IncompatibleModel, ValueError."""
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
        """Put the weights of the best adapter back into the model."""
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
    """Return the training settings of a user's job. Its seed decides the order of the examples."""
    assert spec.warm_start is not None, "a job that teaches the user has one"
    return spec.warm_start.sft.model_copy(update={"seed": spec.seed})
