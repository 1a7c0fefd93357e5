"""The targets of a candidate. Pure.

A cycle writes tasks for failure patterns, by the generators of their kinds. So fresh tasks of a
pattern are tasks of these kinds in the same shares, rounded to quarters; patterns with equal shares
are one target. A cycle has one to `MOST` targets; all but the largest have at least `LEAST` of the
written tasks.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from math import floor
from typing import Annotated, Final

from pydantic import Field

from events.gate import GatePlan
from events.messages import StrictModel

MOST: Final = 4
"""Most targets of a candidate: each costs tasks, and a share of alpha."""
LEAST: Final = 0.1
"""Smallest share of the written tasks in a target."""
_PARTS: Final = 4
"""Parts of a whole that round the kinds' shares."""


class Target(StrictModel):
    """Tasks of kinds in fixed shares."""

    name: str
    kinds: Annotated[dict[str, float], Field(min_length=1)]
    """Kind -> share; they sum to 1."""
    patterns: tuple[str, ...] = ()
    """Failure patterns of these tasks."""

    @classmethod
    def of_kind(cls, kind: str) -> "Target":
        """Return the target of one kind."""
        return cls(name=kind, kinds={kind: 1.0})

    @property
    def only_kind(self) -> str | None:
        """Return the kind of all its tasks; None of a mixture."""
        return next(iter(self.kinds)) if len(self.kinds) == 1 else None

    def count_tasks(self, tasks: int) -> dict[str, int]:
        """Return kind -> its part of `tasks`."""
        return _apportion(self.kinds, tasks)


class PlannedTarget(Target):
    """A target with its number of tasks, planned beforehand."""

    planned: Annotated[int, Field(ge=1)]
    plan: GatePlan | None = None
    """Reason for the number; None for a person's choice."""

    @classmethod
    def of_count(cls, kind: str, planned: int) -> "PlannedTarget":
        """Return a person's target of so many tasks of one kind."""
        return cls(name=kind, kinds={kind: 1.0}, planned=planned)

    @property
    def task_counts(self) -> dict[str, int]:
        """Return kind -> planned tasks."""
        return self.count_tasks(self.planned)


def find_targets(written: Iterable[tuple[str, str]]) -> tuple[Target, ...]:
    """Return a cycle's targets, largest first, from `written`, each task's pattern and kind."""
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
    """Divide a count by weights, with the largest remainders rounded up (Hamilton's method)."""
    whole = sum(weights.values())
    exact = {name: count * weight / whole for name, weight in weights.items()}
    shares = {name: floor(value) for name, value in exact.items()}
    left = count - sum(shares.values())
    for name in sorted(exact, key=lambda name: (shares[name] - exact[name], name))[:left]:
        shares[name] += 1
    return shares
