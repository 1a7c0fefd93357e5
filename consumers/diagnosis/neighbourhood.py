"""What was tried around a pattern's failures in one round, and how much of it passed.

Counted are judged rollouts of who answers now: the agent's own traffic at one of the pattern's
anchors (anchors.py), and what the daemon had the same policies play (probes, training, gates) there
or on tasks that the pattern is tagged with.

    attempts, passes   different rollouts, whole numbers
    share              the pass rate that a random failure of the pattern meets: the mean of
                       the rates of its anchors, weighted by failures. Pooled, forty failures of a
                       weak kind and two of a large healthy one would look healthy
    weight             as many attempts of one and the same task would make the share as certain:
                       (sum of w)^2 / sum of w^2 / n over the anchors, at most `attempts`

An anchor where nothing was tried counts as half a pass in one attempt.

Guarantee: memory grows with the anchors of the patterns and not with the rollouts of a round.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from math import fsum
from operator import attrgetter
from typing import Any, Final

from sqlalchemy import Connection, and_, case, or_, select

from consumers.diagnosis.anchors import AnchorIndex
from consumers.diagnosis.round_counts import Pair, of_agents
from consumers.tables import Rollout, TaskPattern

SOLVER_PURPOSES: Final = ("train", "evaluate", "probe")
"""What the daemon has a policy play."""

_ROWS_AT_ONCE: Final = 1_000


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    """What the rollouts around a pattern's failures came to in a round."""

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


def count_neighbours(
    connection: Connection, pair: Pair, number: int, weights: Mapping[str, Mapping[str, float]]
) -> dict[str, Neighbourhood]:
    """Return the neighbourhood of each pattern of `weights` (pattern -> anchor -> weight) in a
    round.

    A pass is a success that no rule objects to: a success below the failure threshold of the shaped
    reward counts as a failure of its pattern, and cannot count as a pass of it too.
    """
    patterns_at: dict[str, list[str]] = {}
    for pattern, anchors in weights.items():
        for anchor in anchors:
            patterns_at.setdefault(anchor, []).append(pattern)
    index = AnchorIndex(patterns_at)
    by_anchor = {anchor: _Outcomes() for anchor in patterns_at}
    near = {pattern: _Outcomes() for pattern in weights}
    tagged = {pattern: _Outcomes() for pattern in weights}
    for _, rows in groupby(_stream(connection, pair, number), attrgetter("rollout")):
        tags = list(rows)
        row = tags[0]
        matches = index.match(row.kind, json.loads(row.tools), row.words, row.task_key)
        patterns = {pattern for anchor in matches for pattern in patterns_at[anchor]}
        for anchor in matches:
            by_anchor[anchor].add(row.passed)
        for pattern in patterns:
            near[pattern].add(row.passed)
        for pattern in {tag.pattern for tag in tags} & weights.keys() - patterns:
            tagged[pattern].add(row.passed)
    return {
        pattern: _join(near[pattern], tagged[pattern], anchors, by_anchor)
        for pattern, anchors in weights.items()
    }


def _join(
    near: _Outcomes,
    tagged: _Outcomes,
    weights: Mapping[str, float],
    by_anchor: Mapping[str, _Outcomes],
) -> Neighbourhood:
    """Both parts of the evidence, each as heavy as it has attempts."""
    attempts = near.attempts + tagged.attempts
    if not attempts:
        return Neighbourhood()
    share, weight = _weigh(near, weights, by_anchor) if near.attempts else (0.0, 0.0)
    share = (share * weight + tagged.passes) / (weight + tagged.attempts)
    return Neighbourhood(
        attempts, near.passes + tagged.passes, min(1.0, share), weight + tagged.attempts
    )


def _weigh(
    near: _Outcomes, weights: Mapping[str, float], by_anchor: Mapping[str, _Outcomes]
) -> tuple[float, float]:
    """Share and weight of the rollouts at the anchors."""
    counted = [
        (weight, outcomes.passes, outcomes.attempts) if outcomes.attempts else (weight, 0.5, 1)
        for anchor, weight in sorted(weights.items())
        for outcomes in (by_anchor[anchor],)
    ]
    total = fsum(weight for weight, _, _ in counted)
    share = fsum(weight * passes / attempts for weight, passes, attempts in counted) / total
    variance = fsum(weight**2 / attempts for weight, _, attempts in counted)
    return share, min(total**2 / variance, near.attempts)


def _stream(connection: Connection, pair: Pair, number: int) -> Iterable[Any]:
    """The judged rollouts of a round that count as evidence, by id; one of the daemon's once per
    pattern that its task is tagged with."""
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
