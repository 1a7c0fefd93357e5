"""The attempts around a pattern's failures in one round, and the share of them that passed.

It counts judged rollouts of policies that answer now: the agent's own traffic at one of the
pattern's anchors (anchors.py), and rollouts that the daemon had the same policies play (probes,
training, gates) there or on tasks that the pattern is tagged with.

    attempts, passes   different rollouts, whole numbers
    share              the pass rate that a random failure of the pattern meets: the mean of
                       the rates of its anchors, weighted by failures. Pooled, forty failures of a
                       weak kind and two of a large healthy one would look healthy
    weight             as many attempts of one and the same task would make the share as certain:
                       (sum of w)^2 / sum of w^2 / n over the anchors, at most `attempts`

The rate of an anchor of tool and words is (c + PRIOR * rate) / (n + PRIOR): that of the near
rollouts, with that of all rollouts with the tool as `PRIOR` more attempts. Otherwise a unique
request would look hopeless, because its only near rollout is the failure itself. Rollouts with the
tool count in `attempts` and `passes`, and in `weight` as `PRIOR` at most. Any other anchor without
attempts counts as half a pass in one attempt.

Guarantee: memory grows with the anchors of the patterns and not with the rollouts of a round.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from math import fsum
from operator import attrgetter
from typing import Any, Final

from sqlalchemy import Connection, and_, case, or_, select

from consumers.diagnosis.anchors import AnchorIndex, find_wide_anchor
from consumers.diagnosis.round_counts import Pair, of_agents
from consumers.tables import Rollout, TaskPattern

SOLVER_PURPOSES: Final = ("train", "evaluate", "probe")
"""Purposes of rollouts that the daemon makes."""

PRIOR: Final = 4
"""Number of attempts for which the pass rate of a whole tool counts, besides near requests."""

_ROWS_AT_ONCE: Final = 1_000


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    """Counts and pass rate of the rollouts similar to a pattern's failures in one round."""

    attempts: int = 0
    passes: int = 0
    share: float = 0.5
    weight: float = 0.0


@dataclass(slots=True)
class _Outcomes:
    attempts: int = 0
    passes: int = 0

    def add(self, passed: int) -> None:
        self.attempts += 1
        self.passes += passed


@dataclass(slots=True)
class _Counts:
    """Results for one pattern; each field counts a rollout at most once."""

    at: _Outcomes = field(default_factory=_Outcomes)
    """Rollouts that match an anchor of the pattern."""
    tagged: _Outcomes = field(default_factory=_Outcomes)
    """Rollouts that match no anchor, on tasks that are tagged with the pattern."""
    all: _Outcomes = field(default_factory=_Outcomes)
    """All of these, and rollouts that use the tool of an anchor of tool and words."""


def count_neighbours(
    connection: Connection, pair: Pair, number: int, weights: Mapping[str, Mapping[str, float]]
) -> dict[str, Neighbourhood]:
    """Return each pattern's neighbourhood in round `number`, for `weights`: pattern -> anchor ->
    weight. A pass is a success that no rule labels; a success shaped below the threshold is a
    failure."""
    patterns_at: dict[str, list[str]] = {}
    patterns_around: dict[str, set[str]] = {}
    for pattern, anchors in weights.items():
        for anchor in anchors:
            patterns_at.setdefault(anchor, []).append(pattern)
            wide = find_wide_anchor(anchor)
            if wide is not None:
                patterns_around.setdefault(wide, set()).add(pattern)
    names = patterns_at.keys() | patterns_around.keys()
    index = AnchorIndex(names)
    by_anchor = {anchor: _Outcomes() for anchor in names}
    counts = {pattern: _Counts() for pattern in weights}
    for _, rows in groupby(_stream(connection, pair, number), attrgetter("rollout")):
        tags = list(rows)
        row = tags[0]
        matches = index.match(row.kind, json.loads(row.tools), row.words, row.task_key)
        for anchor in matches:
            by_anchor[anchor].add(row.passed)
        at = {pattern for anchor in matches for pattern in patterns_at.get(anchor, ())}
        around = {pattern for anchor in matches for pattern in patterns_around.get(anchor, ())}
        tagged = {tag.pattern for tag in tags} & weights.keys() - at
        for pattern in at:
            counts[pattern].at.add(row.passed)
        for pattern in tagged:
            counts[pattern].tagged.add(row.passed)
        for pattern in at | around | tagged:
            counts[pattern].all.add(row.passed)
    return {
        pattern: _join(counts[pattern], anchors, by_anchor) for pattern, anchors in weights.items()
    }


def _join(
    counts: _Counts, weights: Mapping[str, float], by_anchor: Mapping[str, _Outcomes]
) -> Neighbourhood:
    """Combine the results at the anchors with those on tagged tasks, weighted by attempts."""
    every, tagged = counts.all, counts.tagged
    if not every.attempts:
        return Neighbourhood()
    share, weight = _weigh(counts, weights, by_anchor)
    certain = weight + tagged.attempts
    share = (share * weight + tagged.passes) / certain
    return Neighbourhood(
        every.attempts, every.passes, min(1.0, share), min(certain, every.attempts)
    )


def _weigh(
    counts: _Counts, weights: Mapping[str, float], by_anchor: Mapping[str, _Outcomes]
) -> tuple[float, float]:
    """Return the pass rate at the anchors and its weight in attempts; (0, 0) without rollouts."""
    around = [find_wide_anchor(anchor) for anchor in weights]
    prior = max((min(PRIOR, by_anchor[wide].attempts) for wide in around if wide), default=0)
    most = counts.at.attempts + prior
    if not most:
        return 0.0, 0.0
    counted = [(weight, *_rate(anchor, by_anchor)) for anchor, weight in sorted(weights.items())]
    total = fsum(weight for weight, _, _ in counted)
    share = fsum(weight * rate for weight, rate, _ in counted) / total
    variance = fsum(weight**2 / attempts for weight, _, attempts in counted)
    return share, min(total**2 / variance, most)


def _rate(anchor: str, by_anchor: Mapping[str, _Outcomes]) -> tuple[float, float]:
    """Return the pass rate at an anchor, and the number of attempts for which it counts."""
    outcomes, wide = by_anchor[anchor], by_anchor.get(find_wide_anchor(anchor) or "")
    if wide is not None and wide.attempts:
        attempts = outcomes.attempts + PRIOR
        return (outcomes.passes + PRIOR * wide.passes / wide.attempts) / attempts, attempts
    if outcomes.attempts:
        return outcomes.passes / outcomes.attempts, outcomes.attempts
    return 0.5, 1


def _stream(connection: Connection, pair: Pair, number: int) -> Iterable[Any]:
    """Yield the judged rollouts that count as evidence, ordered by id. A rollout that the daemon
    played comes once for each pattern that its task is tagged with."""
    rollouts, tags = Rollout.table().c, TaskPattern.table().c
    of_solver = rollouts.purpose.in_(SOLVER_PURPOSES)
    same_task = and_(
        of_solver,
        tags.alias == rollouts.alias,
        tags.base == rollouts.base,
        tags.task_key == rollouts.task_key,
    )
    passed = case((and_(rollouts.success, rollouts.category.is_(None)), 1), else_=0)
    query = (
        select(
            rollouts.rollout, rollouts.kind, rollouts.tools, rollouts.words, rollouts.task_key,
            passed.label("passed"), tags.pattern,
        )
        .join_from(Rollout.table(), TaskPattern.table(), same_task, isouter=True)
        .where(
            rollouts.round == number,
            rollouts.alias == pair.alias,
            rollouts.base == pair.base,
            rollouts.success.is_not(None),
            rollouts.outdated.is_(False),
            or_(of_agents(rollouts), of_solver),
        )
        .order_by(rollouts.rollout)
        .execution_options(yield_per=_ROWS_AT_ONCE)
    )  # fmt: skip
    return connection.execute(query)
