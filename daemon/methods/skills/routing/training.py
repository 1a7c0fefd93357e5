"""Train an adapter to choose: cross-entropy between a router's labels, with early stopping.

A step shows equally many examples of every option, each in both orders of the labels. The loss
compares the labels only with one another, as the router's rule does. Each step also shows the
conversation without content and wants all labels to be equally likely, so that a panel's
calibration is small. The training reads these fields of the spec: `sampler.groups` x `sampler.size`
prompts per step, at most `sampler.rollouts` prompts, `optimizer`, `lora`, `micro_tokens`, `seed`.
The learning rate rises over the first tenth of the steps and falls to 0 at the last.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import torch
from peft import PeftModel
from torch import Tensor

from daemon.methods.skills.routing.examples import Draw, Example
from daemon.methods.skills.routing.figures import RouterFigures, summarize
from daemon.methods.skills.routing.scores import compute_logits, cut_batches
from daemon.solver.lora import trainable_parameters
from daemon.solver.policy import check, check_ids
from daemon.solver.sft import take_step
from daemon.solver.supervised_job import BestWeights
from daemon.solver.update import adamw
from events.jobs import JobSpec
from producers.gateway.skills.label_router import ORDERS, find_label, list_label_tokens, read_scores

_ASSESSMENTS: Final = 8
"""Number of assessments in a training of full length."""
_PATIENCE: Final = 3
"""Training stops after so many assessments in a row without a better result or a lower loss."""
_RISING: Final = 0.1
"""Share of the steps over which the learning rate rises."""
Shown = tuple[tuple[int, ...], tuple[float, ...]]
"""Token ids of a prompt, and the target probability of each label."""


class RouterTraining:
    """An adapter in training, and the best one so far."""

    def __init__(
        self,
        model: PeftModel,
        spec: JobSpec,
        training: Sequence[Example],
        held_out: Sequence[Example],
        calibration: Sequence[Sequence[int]],
    ) -> None:
        """`calibration`: ids of the prompt without content, per order. Raise IncompatibleModel."""
        assert spec.router is not None, "a job that teaches a router has one"
        check(model)
        everything = [p for e in (*training, *held_out) for p in e.prompts]
        highest = [max(prompt) for prompt in (*everything, *calibration)]
        check_ids(model, max(*highest, *list_label_tokens(spec.router)))
        self.model, self.spec, self.router = model, spec, spec.router
        self.taken = 0
        self.best: tuple[int, RouterFigures] | None = None
        """Steps and figures of the best adapter; None before the first assessment."""
        self._labels = list_label_tokens(spec.router)
        self._draw = Draw(training, spec.router, spec.seed)
        self._held_out, self._calibration = held_out, calibration
        self._parameters = trainable_parameters(model)
        self._optimizer = adamw(spec.optimizer, self._parameters.values())
        self._best_weights = BestWeights(model)

    @property
    def prompts(self) -> int:
        """Return the number of prompts that were shown."""
        return self.taken * self.batch

    @property
    def batch(self) -> int:
        """Return the number of prompts per step; an example is never split."""
        return max(1, self.spec.batch // ORDERS) * ORDERS

    @property
    def length(self) -> int:
        """Return the most steps that the training may take."""
        return max(1, self.spec.sampler.rollouts // self.batch)

    def steps(self, check_stop: Callable[[], None]) -> Iterator[RouterFigures]:
        """Train, and yield the figures of each assessment. `check_stop` is called before each step;
        its errors end the training. Raise UnstableUpdate."""
        total, since_best, lowest = self.length, 0, math.inf
        pause = max(1, total // _ASSESSMENTS)
        while self.taken < total and since_best < _PATIENCE:
            for _ in range(min(pause, total - self.taken)):
                check_stop()
                loss = self._step(self.spec.optimizer.lr * _pace(self.taken, total))
                self.taken += 1
            figures = self.assess(loss)
            if self.best is None or _rank(figures) > _rank(self.best[1]):
                self.best, since_best = (self.taken, figures), -1
                self._best_weights.remember()
            elif figures.held_out_loss < lowest:
                since_best = -1
            since_best, lowest = since_best + 1, min(lowest, figures.held_out_loss)
            yield figures

    def restore_best(self) -> None:
        """Put the weights of the best adapter back into the model."""
        self._best_weights.restore()

    def assess(self, loss: float | None = None) -> RouterFigures:
        """Return the held-out figures, calibrated like a panel's; `loss` is the last step's."""
        blank = [self._score([prompt])[0] for prompt in self._calibration]
        router = self.router.model_copy(
            update={"calibration": tuple(self._read(order, row) for order, row in enumerate(blank))}
        )
        by_order = [
            self._score([example.prompts[order] for example in self._held_out])
            for order in range(ORDERS)
        ]
        rows = [
            tuple(self._read(order, scored[place]) for order, scored in enumerate(by_order))
            for place in range(len(self._held_out))
        ]
        return summarize(router, self._held_out, rows, loss)

    def _read(self, order: int, logits: Sequence[float]) -> tuple[float, ...]:
        return read_scores(self.router, order, dict(zip(self._labels, logits, strict=True)))

    def _score(self, prompts: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return each prompt's log-softmax over the labels, in the labels' order."""
        scores: list[list[float]] = [[] for _ in prompts]
        with torch.no_grad():
            for places in cut_batches(prompts, self.spec.micro_tokens):
                chosen = [prompts[place] for place in places]
                logits = compute_logits(self.model, chosen, self._labels).log_softmax(-1)
                for place, row in zip(places, logits.tolist(), strict=True):
                    scores[place] = row
        return scores

    def _step(self, rate: float) -> float:
        """Take one optimizer step; return its loss in nats per prompt."""
        examples = self._draw.take(self.batch // ORDERS)
        losses = (part for order in range(ORDERS) for part in self._list_losses(examples, order))
        limit = self.spec.optimizer.max_gradient_norm
        loss, _ = take_step(
            self._optimizer, rate, self._parameters, limit, losses, f"step {self.taken}"
        )
        return loss

    def _list_losses(self, examples: Sequence[Example], order: int) -> Iterator[Tensor]:
        """Yield micro-batches' weighted losses in one order, with the contentless conversation."""
        shown = [self._show(example, order) for example in examples]
        even = tuple(1 / len(self._labels) for _ in self._labels)
        shown.append((tuple(self._calibration[order]), even))
        weight = 1 / (ORDERS * len(shown))
        for places in cut_batches([prompt for prompt, _ in shown], self.spec.micro_tokens):
            yield self._compute_loss([shown[place] for place in places]) * weight

    def _show(self, example: Example, order: int) -> Shown:
        label = find_label(self.router, order, example.skill)
        shares = tuple(1.0 if token == label else 0.0 for token in self._labels)
        return example.prompts[order], shares

    def _compute_loss(self, shown: Sequence[Shown]) -> Tensor:
        logits = compute_logits(self.model, [prompt for prompt, _ in shown], self._labels)
        shares = torch.tensor([shares for _, shares in shown], device=logits.device)
        return -(shares * logits.log_softmax(-1)).sum()


def _pace(number: int, total: int) -> float:
    rising = math.ceil(_RISING * total)
    return min(1.0, (number + 1) / rising) * (1 - number / total)


def _rank(figures: RouterFigures) -> tuple[float, float]:
    return figures.accuracy, -figures.held_out_loss
