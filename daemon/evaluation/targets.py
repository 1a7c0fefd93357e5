"""Find the targets of a candidate: mixtures of kinds of task at which it must gain. Pure.

A cycle writes tasks for failure patterns, with the environment's generators of kinds of task. So a
pattern's fresh tasks are of the same kinds as its written ones, in the same shares, rounded to
quarters. Patterns with equal shares are one target. A candidate has one to `MOST` targets; each but
the largest has at least the share `LEAST` of the written tasks.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from math import floor
from typing import Annotated, Final

from pydantic import Field

from events.gate import GatePlan
from events.messages import StrictModel

MOST: Final = 4
"""Largest number of targets: each one costs tasks, and a share of the test's level alpha."""
LEAST: Final = 0.1
"""Smallest share of the cycle's written tasks that makes a target."""
_PARTS: Final = 4
"""Shares of kinds are rounded to multiples of one part of so many."""


class Target(StrictModel):
    """A mixture of kinds of task, in fixed shares, at which a candidate must gain."""

    name: str
    kinds: Annotated[dict[str, float], Field(min_length=1)]
    """Kind -> share of the tasks; the shares sum to 1."""
    patterns: tuple[str, ...] = ()
    """Failure patterns for which tasks of this mixture were written."""

    @classmethod
    def of_kind(cls, kind: str) -> "Target":
        """Return a target whose tasks are all of one kind."""
        return cls(name=kind, kinds={kind: 1.0})

    @property
    def only_kind(self) -> str | None:
        """Return the kind of all the target's tasks; None if it has several kinds."""
        return next(iter(self.kinds)) if len(self.kinds) == 1 else None

    def count_tasks(self, tasks: int) -> dict[str, int]:
        """Return kind -> number of its tasks among a total of `tasks`."""
        return _apportion(self.kinds, tasks)


class PlannedTarget(Target):
    """A target with the number of tasks that was planned before the candidate played."""

    planned: Annotated[int, Field(ge=1)]
    plan: GatePlan | None = None
    """Assumptions and power that gave the number; None if a person chose it."""

    @classmethod
    def of_count(cls, kind: str, planned: int) -> "PlannedTarget":
        """Return a target of one kind whose number of tasks a person chose."""
        return cls(name=kind, kinds={kind: 1.0}, planned=planned)

    @property
    def task_counts(self) -> dict[str, int]:
        """Return kind -> number of planned tasks."""
        return self.count_tasks(self.planned)


def find_targets(written: Iterable[tuple[str, str]]) -> tuple[Target, ...]:
    """Return the targets, largest first. `written` has each written task's (pattern, kind)."""
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
    """Divide `count` in proportion to weights, by largest remainders (Hamilton's method)."""
    whole = sum(weights.values())
    exact = {name: count * weight / whole for name, weight in weights.items()}
    shares = {name: floor(value) for name, value in exact.items()}
    left = count - sum(shares.values())
    for name in sorted(exact, key=lambda name: (shares[name] - exact[name], name))[:left]:
        shares[name] += 1
    return shares
