"""Measure a router on the held-out tasks of its job."""

import math
from collections.abc import Sequence
from typing import Final

from daemon.methods.skills.routing.examples import Example
from daemon.solver.telemetry.progress import Progress
from daemon.solver.update import check_figures
from events.jobs import PanelRouter
from events.messages import StrictModel
from producers.gateway.skills.label_router import decide

_Z: Final = 1.96
"""Quantile of the normal distribution for a 95 % interval."""


class RouterFigures(StrictModel):
    """A router's results on the held-out tasks of its job."""

    held_out: int
    accuracy: float
    """Share of tasks for which both orders of the labels together choose rightly."""
    low: float
    """Lower end of the accuracy's 95 % interval."""
    most_frequent: float
    """Share of the most frequent option: the accuracy of a router that always chooses it."""
    options: dict[str, float]
    """Skill -> share of its tasks for which it is chosen; "" is the option without a skill."""
    doubts: dict[str, int]
    """Kind of doubt -> number of tasks."""
    held_out_loss: float
    """Cross-entropy between the labels in nats; every option has the same weight."""
    loss: float | None = None
    """Loss of the last training step, in nats per prompt."""

    @property
    def teaches_nothing(self) -> bool:
        """Return whether the router is not shown to be better than always choosing one option."""
        return not self.low > self.most_frequent

    @property
    def summary(self) -> str:
        """Return a clause with the figures."""
        doubts = ", ".join(f"{count} {name}" for name, count in self.doubts.items()) or "no doubts"
        return (
            f"it chooses rightly in {self.accuracy:.1%} of {self.held_out} held-out tasks (at "
            f"least {self.low:.1%}; the most frequent option is {self.most_frequent:.1%}; {doubts})"
        )


class RouterProgress(Progress):
    """Progress of a job that trains a router, at one assessment."""

    router: RouterFigures


def summarize(
    router: PanelRouter,
    held_out: Sequence[Example],
    scores: Sequence[Sequence[Sequence[float]]],
    loss: float | None = None,
) -> RouterFigures:
    """Return a router's figures from its options' scores in nats: for each example, a row per order
    of the labels, each a distribution. `loss` is the last step's. Raise UnstableUpdate."""
    held_out_loss = _compute_mean_loss(router, held_out, scores)
    check_figures("assessment", {"the loss on held-out tasks": held_out_loss})
    answers = [decide(router, rows) for rows in scores]
    right: dict[str | None, list[bool]] = {option.skill: [] for option in router.options}
    doubts: dict[str, int] = {}
    for example, answer in zip(held_out, answers, strict=True):
        right[example.skill].append(answer.skill == example.skill)
        if answer.doubt is not None:
            doubts[answer.doubt] = doubts.get(answer.doubt, 0) + 1
    count = len(held_out)
    accuracy = sum(map(sum, right.values())) / count
    return RouterFigures(
        held_out=count,
        accuracy=accuracy,
        low=_bound(accuracy, count),
        most_frequent=max(map(len, right.values())) / count,
        options={skill or "": sum(own) / len(own) for skill, own in right.items() if own},
        doubts=dict(sorted(doubts.items())),
        held_out_loss=held_out_loss,
        loss=loss,
    )


def _compute_mean_loss(
    router: PanelRouter, held_out: Sequence[Example], scores: Sequence[Sequence[Sequence[float]]]
) -> float:
    losses: dict[str | None, list[float]] = {}
    options = [option.skill for option in router.options]
    for example, rows in zip(held_out, scores, strict=True):
        place = options.index(example.skill)
        losses.setdefault(example.skill, []).append(-sum(row[place] for row in rows) / len(rows))
    return sum(sum(own) / len(own) for own in losses.values()) / len(losses)


def _bound(share: float, count: int) -> float:
    """Return the lower end of a share's 95 % interval (Wilson's)."""
    square = _Z * _Z / count
    middle = share + square / 2
    return (middle - _Z * math.sqrt(share * (1 - share) / count + square / (4 * count))) / (
        1 + square
    )
