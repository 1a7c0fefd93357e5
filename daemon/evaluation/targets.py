"""What a candidate is to be better at (pure).

    find_targets(written)     the targets of a cycle, from the tasks that it wrote
    Target.count_tasks(n)     how many of n tasks are of which kind

A cycle writes tasks for failure patterns, and each task is drawn by the generator of its kind.
Fresh tasks of a pattern are therefore tasks of the same generators in the same shares, in quarters:
patterns with the same shares have the same fresh tasks, and are one target. A cycle has at most
`MOST` targets, each with at least `LEAST` of the written tasks, and at least one.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from math import floor
from typing import Annotated, Final

from pydantic import Field

from events.gate import GatePlan
from events.messages import StrictModel

MOST: Final = 4
"""Most targets of one candidate: each costs tasks, and a share of alpha."""
LEAST: Final = 0.1
"""Smallest share of the written tasks that a target may have."""
_PARTS: Final = 4
"""Shares of kinds are whole numbers of such parts."""


class Target(StrictModel):
    """Tasks of one kind, or of several kinds in fixed shares."""

    name: str
    kinds: Annotated[dict[str, float], Field(min_length=1)]
    """Kind -> share; they sum to 1."""
    patterns: tuple[str, ...] = ()
    """Failure patterns whose tasks these are."""

    @classmethod
    def of_kind(cls, kind: str) -> "Target":
        """The target that is one kind of task."""
        return cls(name=kind, kinds={kind: 1.0})

    @property
    def only_kind(self) -> str | None:
        """The kind of all its tasks; None of a mixture."""
        return next(iter(self.kinds)) if len(self.kinds) == 1 else None

    def count_tasks(self, tasks: int) -> dict[str, int]:
        """Kind -> how many of so many tasks are of it."""
        return _apportion(self.kinds, tasks)


class PlannedTarget(Target):
    """A target and how many tasks were planned before the first of them was run."""

    planned: Annotated[int, Field(ge=1)]
    plan: GatePlan | None = None
    """Why so many; None where a person chose."""

    @classmethod
    def of_count(cls, kind: str, planned: int) -> "PlannedTarget":
        """The target that is so many tasks of one kind, as a person chose."""
        return cls(name=kind, kinds={kind: 1.0}, planned=planned)

    @property
    def task_counts(self) -> dict[str, int]:
        """Kind -> tasks."""
        return self.count_tasks(self.planned)


def find_targets(written: Iterable[tuple[str, str]]) -> tuple[Target, ...]:
    """The targets of a cycle, the largest first; empty where nothing was written.

    `written`: pattern and kind of each task that the cycle wrote.
    """
    by_pattern: dict[str, Counter[str]] = {}
    for pattern, kind in written:
        by_pattern.setdefault(pattern, Counter())[kind] += 1
    groups: dict[tuple[tuple[str, int], ...], list[str]] = {}
    for pattern, counts in sorted(by_pattern.items()):
        parts = _apportion(counts, _PARTS)
        mixture = tuple(sorted((kind, count) for kind, count in parts.items() if count))
        groups.setdefault(mixture, []).append(pattern)
    sizes = {
        mixture: sum(by_pattern[pattern].total() for pattern in patterns)
        for mixture, patterns in groups.items()
    }
    whole = sum(sizes.values())
    ranked = sorted(groups, key=lambda mixture: (-sizes[mixture], mixture))
    chosen = [
        mixture
        for place, mixture in enumerate(ranked[:MOST])
        if place == 0 or sizes[mixture] >= LEAST * whole
    ]
    return tuple(_build_target(dict(mixture), groups[mixture]) for mixture in chosen)


def _build_target(parts: Mapping[str, int], patterns: Iterable[str]) -> Target:
    kinds = {kind: count / _PARTS for kind, count in parts.items()}
    name = " + ".join(f"{share:.0%} {kind}" for kind, share in kinds.items())
    return Target(
        name=next(iter(kinds)) if len(kinds) == 1 else name, kinds=kinds, patterns=tuple(patterns)
    )


def _apportion(weights: Mapping[str, float], count: int) -> dict[str, int]:
    """Divide a count by weights: the largest remainders are rounded up (Hamilton's method)."""
    whole = sum(weights.values())
    exact = {name: count * weight / whole for name, weight in weights.items()}
    shares = {name: floor(value) for name, value in exact.items()}
    left = count - sum(shares.values())
    for name in sorted(exact, key=lambda name: (shares[name] - exact[name], name))[:left]:
        shares[name] += 1
    return shares
