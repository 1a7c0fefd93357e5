"""Account for a cycle's diagnosis: how it ranked kinds and patterns, and their quotas. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from daemon.cycle.account.estimates import estimate_share, to_points
from daemon.cycle.account.facts import UNKNOWN, CycleFacts
from envs.statistics import Interval


@dataclass(frozen=True, slots=True)
class KindTraffic:
    """A kind of task in the round's traffic, with its failures."""

    kind: str
    rollouts: int
    failures: int
    pass_rate: Interval | None
    lost: Interval
    """Points of pass^1 over all traffic that the kind's failures cost."""
    failure_share: float
    quota: float
    """Number of the directive's tasks for this kind."""


@dataclass(frozen=True, slots=True)
class PatternRank:
    """A failure pattern of the round, with its priority and its number of tasks."""

    pattern: str
    priority: float
    failures: int
    quota: int
    kinds: Mapping[str, int]
    """Kind -> number of failed rollouts with the pattern."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """How a cycle's diagnosis ranked the kinds of task and the failure patterns."""

    round: int | None
    judged: int
    unjudged: int
    without_pattern: int
    """Number of failures that have no pattern."""
    kinds: tuple[KindTraffic, ...]
    patterns: tuple[PatternRank, ...]
    weakest: tuple[str, ...]
    """The kind with the most failures, and each kind not shown to have fewer."""
    ranked_first: str | None
    """The most frequent kind of the first-ranked pattern."""
    weakest_first: bool | None
    """Whether `ranked_first` is one of `weakest`; None if no kind is known."""
    without_quota: tuple[str, ...]
    """Kinds with failures for which the directive has less than a whole task."""


def describe_diagnosis(facts: CycleFacts) -> Diagnosis:
    """Return how a cycle's diagnosis ranked kinds of task and failure patterns."""
    kinds = _describe_kinds(facts)
    known = [kind for kind in kinds if kind.kind != UNKNOWN and kind.failures]
    weakest = tuple(kind.kind for kind in known if not _is_fewer(kind.failures, known[0].failures))
    patterns = tuple(
        PatternRank(
            row.pattern, row.priority, row.failures, facts.quotas.get(row.pattern, 0),
            dict((facts.kinds_by_pattern.get(row.pattern) or Counter()).most_common()),
        )
        for row in facts.patterns
    )  # fmt: skip
    first = _find_first_kind(facts, patterns)
    return Diagnosis(
        round=facts.row.round,
        judged=facts.judged,
        unjudged=facts.unjudged,
        without_pattern=sum(
            count.rollouts
            for count in facts.traffic
            if not count.success and count.pattern not in {row.pattern for row in patterns}
        ),
        kinds=kinds,
        patterns=patterns,
        weakest=weakest,
        ranked_first=first,
        weakest_first=first in weakest if first is not None and weakest else None,
        without_quota=tuple(kind.kind for kind in known if kind.quota < 1 - 1e-9),
    )


def _describe_kinds(facts: CycleFacts) -> tuple[KindTraffic, ...]:
    kinds = [
        _describe_kind(facts, kind, count, facts.failures_by_kind[kind])
        for kind, count in facts.by_kind.items()
    ]
    kinds.sort(key=lambda kind: (-kind.failures, -kind.rollouts, kind.kind))
    unknown = facts.judged - facts.by_kind.total()
    if unknown:
        failures = facts.failed - facts.failures_by_kind.total()
        kinds.append(_describe_kind(facts, UNKNOWN, unknown, failures))
    return tuple(kinds)


def _describe_kind(facts: CycleFacts, kind: str, rollouts: int, failures: int) -> KindTraffic:
    lost = estimate_share(failures, facts.judged)
    assert lost is not None, "a kind of the round has rollouts"
    return KindTraffic(
        kind=kind,
        rollouts=rollouts,
        failures=failures,
        pass_rate=estimate_share(rollouts - failures, rollouts),
        lost=to_points(lost),
        failure_share=failures / facts.failed if facts.failed else 0.0,
        quota=facts.quota_by_kind.get(kind, 0.0),
    )


def _is_fewer(few: int, many: int) -> bool:
    """Return whether `few` is shown to be smaller: the share of `many` is above one half."""
    share = estimate_share(many, few + many)
    return share is not None and share.low > 0.5


def _find_first_kind(facts: CycleFacts, patterns: Sequence[PatternRank]) -> str | None:
    """Return the most frequent kind of the first pattern's failures, else of its written tasks."""
    if not patterns or patterns[0].priority <= 0:
        return None
    name = patterns[0].pattern
    kinds = facts.kinds_by_pattern.get(name) or facts.written_kinds.get(name)
    return None if not kinds else min(kinds, key=lambda kind: (-kinds[kind], kind))


def explain_diagnosis(facts: CycleFacts, figures: Diagnosis) -> str:
    """Return a sentence on how the diagnosis ranked the weakest kinds."""
    if figures.round is None:
        return f"no round was closed: {facts.row.ended_because}"
    if not figures.judged:
        return f"the round has no judged rollout of {facts.row.alias}, {figures.unjudged} unjudged"
    if not facts.quotas:
        return facts.row.ended_because or "the directive gave no pattern a task"
    if not figures.weakest:
        return "no failed rollout of the round has a kind"
    lacking = ", ".join(figures.without_quota)
    return _explain_ranking(figures) + (f"; no task for {lacking}" if lacking else "")


def _explain_ranking(figures: Diagnosis) -> str:
    weakest = ", ".join(figures.weakest)
    first = figures.ranked_first
    if first is None:
        return f"most failures: {weakest}; the kind of the first pattern is {UNKNOWN}"
    if len(figures.weakest) > 1:
        return f"most failures, none shown to have fewer: {weakest}; {first} is ranked first"
    place = "ranked first" if figures.weakest_first else f"not ranked first, {first} is"
    return f"{weakest} fails most and is {place}"
