"""Typed reads of rollouts, patterns, rounds and dead letters, for the command line and the daemon.
The shapes are a promise to scripts: fields may be added, none dropped or changed in meaning."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, Literal

from sqlalchemy import Connection, and_, case, func, not_, select, tuple_
from sqlalchemy.sql import ColumnElement

from consumers.diagnosis.labelled import labelled_rollouts
from consumers.diagnosis.priority import Override
from consumers.diagnosis.round_counts import of_agents
from consumers.diagnosis.rule_versions import follows_newest_rules
from consumers.reads.repairs import RepairRow, read_repair
from consumers.rows import find_by_prefix, make_row, split_ids
from consumers.tables import (
    DeadLetter,
    OperatorAction,
    Pattern,
    PatternRound,
    Rollout,
    Round,
    RuleVersion,
    Task,
)
from events.position import Position
from events.rollouts import ClosingFailed

Selection = Literal["all", "failed", "passed", "diagnosed"]


@dataclass(frozen=True, slots=True)
class RolloutLine:
    """A rollout in a list."""

    rollout: str
    task: str | None
    trial: int | None
    success: bool | None
    reward: float | None
    category: str | None
    categories: list[str]
    policy: str
    source: str
    verdicts: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class RolloutRow:
    """All folded facts of a rollout, and the partition and offset of its event."""

    line: RolloutLine
    alias: str
    base: str
    environment: str | None
    termination: str | None
    time: str | None
    pivot: str | None
    evidence: Any
    round: int | None
    partition: int
    offset: int
    gold_actions: list[dict[str, Any]] | None
    rule_category: str | None = None
    """Primary category by the rules; a proven repair may change `line.category`."""
    rule_pivot: str | None = None
    repair: RepairRow | None = None
    has_older_rules: bool = False
    """Whether its verdict no longer counts, because newer rules judge its kind of task."""


@dataclass(frozen=True, slots=True)
class PatternLine:
    """A failure pattern as of the last round of its (alias, base)."""

    alias: str
    base: str
    pattern: str
    category: str
    pivot: str
    failures: int
    attempts: int
    """Judged rollouts of the round that are similar to its failures."""
    passes: int
    pass_rate: float
    """Smoothed pass rate of the rollouts similar to its failures; docs/patterns.md."""
    priority: float
    status: str
    examples: list[str]
    round: int
    trend: list[float]
    """Its priority after each of the last rounds, oldest first."""
    operator: Override | None = None
    reason: str | None = None
    """Reason that a person gave for pinning or muting it."""


@dataclass(frozen=True, slots=True)
class RoundLine:
    """A closed round."""

    round: int
    trigger: str
    rollouts: int
    judged: int
    unjudged: int
    failed: int
    patterns: int
    other: int
    time: str | None


@dataclass(frozen=True, slots=True)
class DeadLetterLine:
    """An event that could not be folded."""

    stream: str
    partition: int
    offset: int
    type: str | None
    reason: str
    source: str
    sequence: int
    """Source and sequence identify the event; a broker's offset may change."""
    dropped: str | None
    """Reason that a person gave for dropping the letter; None if it was not dropped."""
    rollout: str | None = None
    """Id of the live rollout that is missing because of it, if any."""


DROP: Final = "dlq drop"
"""Action by which a person drops a dead letter. Its row stays: a newer fold may fold the event."""

TREND_ROUNDS = 8


def rollout_lines(
    connection: Connection, selection: Selection = "all", limit: int | None = None
) -> list[RolloutLine]:
    """Return rollouts ordered by time, task, trial and id, missing values first."""
    labelled = labelled_rollouts()
    rollouts = labelled.c
    query = select(labelled).order_by(
        rollouts.time.asc().nulls_first(),
        rollouts.task.asc().nulls_first(),
        rollouts.trial.asc().nulls_first(),
        rollouts.rollout,
    )
    if selection == "failed":
        query = query.where(rollouts.success.is_(False))
    elif selection == "passed":
        query = query.where(rollouts.success.is_(True))
    elif selection == "diagnosed":
        query = query.where(rollouts.category.is_not(None))
    return [_line(row) for row in connection.execute(query.limit(limit))]


def rollout_row(connection: Connection, rollout: str) -> RolloutRow | None:
    """Return a rollout by its id; None without one."""
    labelled, tasks = labelled_rollouts(), Task.table().c
    rollouts = labelled.c
    row = connection.execute(
        select(
            labelled,
            tasks.gold_actions,
            case((follows_newest_rules(rollouts), 0), else_=1).label("has_older_rules"),
        )
        .join_from(
            labelled,
            Task.table(),
            (tasks.alias == rollouts.alias) & (tasks.task == rollouts.task),
            isouter=True,
        )
        .where(rollouts.rollout == rollout)
    ).first()
    if row is None:
        return None
    return make_row(
        RolloutRow,
        row,
        line=_line(row),
        evidence=json.loads(row.evidence) if row.evidence else None,
        gold_actions=json.loads(row.gold_actions) if row.gold_actions else None,
        repair=read_repair(connection, rollout),
        has_older_rules=bool(row.has_older_rules),
    )


def find_rollouts_by_prefix(connection: Connection, prefix: str) -> list[str]:
    """Return the first three ids that start with `prefix`."""
    return find_by_prefix(connection, Rollout.table().c.rollout, prefix, 3)


def filter_rollout_ids(connection: Connection, ids: Sequence[str]) -> set[str]:
    """Return those of `ids` that have been folded."""
    rollouts = Rollout.table().c
    query = select(rollouts.rollout).where(rollouts.rollout.in_(ids))
    return set(connection.execute(query).scalars())


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a rollout."""

    success: bool | None
    termination: str | None
    reward: float | None = None


def verdicts(connection: Connection, ids: Sequence[str]) -> dict[str, Verdict]:
    """Return the outcomes of those of `ids` that have been folded."""
    rollouts = Rollout.table().c
    columns = select(rollouts.rollout, rollouts.success, rollouts.termination, rollouts.reward)
    return {
        row.rollout: Verdict(row.success, row.termination, row.reward)
        for part in split_ids(ids)
        for row in connection.execute(columns.where(rollouts.rollout.in_(part)))
    }


@dataclass(frozen=True, slots=True)
class RolloutConduct:
    """The agent's behaviour in a rollout, for the gate."""

    rollout: str
    task: str | None
    categories: list[str]
    tool_calls: int
    tool_errors: int
    """Number of the agent's own calls that a tool answered with an error."""
    malformed_calls: int


def read_conduct(connection: Connection, ids: Sequence[str]) -> list[RolloutConduct]:
    """Return the agent's behaviour in those of `ids` that have been folded, in no fixed order."""
    rollouts = Rollout.table().c
    columns = select(
        rollouts.rollout, rollouts.task, rollouts.categories, rollouts.tool_calls,
        rollouts.tool_errors, rollouts.malformed_calls,
    )  # fmt: skip
    return [
        make_row(RolloutConduct, row, categories=json.loads(row.categories))
        for part in split_ids(ids)
        for row in connection.execute(columns.where(rollouts.rollout.in_(part)))
    ]


def pattern_lines(connection: Connection, alias: str | None = None) -> list[PatternLine]:
    """Return failure patterns, highest priority first; of equal ones, pinned ones first."""
    patterns = Pattern.table().c
    pinned = case((patterns.operator == "pinned", 0), else_=1)
    query = select(Pattern.table()).order_by(
        patterns.priority.desc(), pinned, patterns.streak.desc(), patterns.pattern,
        patterns.alias, patterns.base,
    )  # fmt: skip
    if alias is not None:
        query = query.where(patterns.alias == alias)
    trends = _trends(connection)
    return [
        make_row(
            PatternLine,
            row,
            reason=row.operator_reason,
            examples=json.loads(row.examples),
            trend=trends.get((row.alias, row.base, row.pattern), []),
        )
        for row in connection.execute(query)
    ]


def _trends(connection: Connection) -> dict[tuple[str, str, str], list[float]]:
    """Return the last `TREND_ROUNDS` priorities of each pattern since its first round."""
    history, patterns = PatternRound.table().c, Pattern.table().c
    own = and_(*(history[name] == patterns[name] for name in ("alias", "base", "pattern")))
    place = func.row_number().over(
        partition_by=(history.alias, history.base, history.pattern), order_by=history.round.desc()
    )
    newest = (
        select(PatternRound.table(), place.label("place"))
        .join(Pattern.table(), own)
        .where(history.round >= patterns.first_round)
        .subquery()
    )
    trends: dict[tuple[str, str, str], list[float]] = {}
    for row in connection.execute(
        select(newest).where(newest.c.place <= TREND_ROUNDS).order_by(newest.c.round)
    ):
        trends.setdefault((row.alias, row.base, row.pattern), []).append(row.priority)
    return trends


def last_round(connection: Connection) -> RoundLine | None:
    """Return the round that was closed last."""
    cycles = Round.table().c
    row = connection.execute(select(Round.table()).order_by(cycles.round.desc()).limit(1)).first()
    return None if row is None else make_row(RoundLine, row)


def last_position(connection: Connection) -> Position:
    """Return the position of the round that was closed last; empty before the first."""
    cycles = Round.table().c
    stored = connection.execute(
        select(cycles.position).order_by(cycles.round.desc()).limit(1)
    ).scalar()
    return {} if stored is None else json.loads(stored)


@dataclass(frozen=True, slots=True)
class RuleChange:
    """A new version of an environment's grading rules, after which patterns began anew."""

    alias: str
    base: str
    round: int
    environment: str
    before: int
    """The version whose verdicts the patterns counted before."""
    after: int
    kinds: tuple[str, ...]
    """The kinds of task whose rules changed, by id."""

    @property
    def sentence(self) -> str:
        """Return the change as a sentence for `kintsugi status`."""
        return (
            f"re-baselined: rules {self.environment}/{self.before} -> "
            f"{self.environment}/{self.after}, in round {self.round}"
        )


def read_rule_changes(connection: Connection) -> list[RuleChange]:
    """Return, for every agent and base, the rule changes of the last round that had any."""
    kinds = RuleVersion.table().c
    last = (
        select(kinds.alias, kinds.base, func.max(kinds.changed).label("changed"))
        .group_by(kinds.alias, kinds.base)
        .subquery()
    )
    own = and_(*(last.c[name] == kinds[name] for name in ("alias", "base", "changed")))
    names = ("alias", "base", "environment", "before", "counted")
    order = [kinds[name] for name in names]
    rows = connection.execute(
        select(RuleVersion.table()).join(last, own).order_by(*order, kinds.kind)
    )
    changes = []
    for _, group in groupby(rows, key=attrgetter(*names)):
        same = list(group)
        row = same[0]
        changes.append(
            RuleChange(
                row.alias, row.base, row.changed, row.environment, row.before, row.counted,
                tuple(item.kind for item in same),
            )
        )  # fmt: skip
    return changes


@dataclass(frozen=True, slots=True)
class OlderVerdicts:
    """Number of an agent's verdicts in the last round that were given under older rules."""

    alias: str
    base: str
    verdicts: int

    @property
    def sentence(self) -> str:
        """Return the count as a sentence for `kintsugi status`."""
        return (
            f"{self.verdicts:,} verdicts of the last round count nowhere, because others on their "
            "kinds of task were given under newer rules; run the newest release everywhere"
        )


def count_older_verdicts(connection: Connection) -> list[OlderVerdicts]:
    """Count the verdicts of the last round that newer rules have replaced, per alias and base."""
    rollouts = Rollout.table().c
    last = select(func.max(rollouts.round)).scalar_subquery()
    query = (
        select(rollouts.alias, rollouts.base, func.count())
        .where(
            rollouts.round == last, rollouts.rules.is_not(None), of_agents(rollouts),
            not_(follows_newest_rules(rollouts)),
        )
        .group_by(rollouts.alias, rollouts.base)
        .order_by(rollouts.alias, rollouts.base)
    )  # fmt: skip
    return [OlderVerdicts(*row) for row in connection.execute(query)]


@dataclass(frozen=True, slots=True)
class Backlog:
    """Numbers of rollouts that wait for a round or for a verdict, and of all rollouts."""

    undiagnosed: int
    unjudged: int
    rollouts: int


def count_backlog(connection: Connection) -> Backlog:
    """Count agents' rollouts without a round, those without a verdict, and all rollouts."""
    rollouts = Rollout.table().c
    own = of_agents(rollouts)
    row = connection.execute(
        select(
            func.count().label("rollouts"),
            func.count().filter(own, rollouts.round.is_(None)).label("undiagnosed"),
            func.count().filter(own, rollouts.success.is_(None)).label("unjudged"),
        ).select_from(Rollout.table())
    ).one()
    return Backlog(row.undiagnosed, row.unjudged, row.rollouts)


def dead_letters(connection: Connection) -> list[DeadLetterLine]:
    """Return the events that could not be folded, in log order."""
    letters = DeadLetter.table().c
    dropped = _read_drops(connection)
    query = select(DeadLetter.table())
    return [
        make_row(
            DeadLetterLine,
            row,
            source=row.event_source,
            dropped=dropped.get((row.stream, row.event_source, row.sequence)),
        )
        for row in connection.execute(
            query.where(~_is_obsolete()).order_by(
                letters.stream.desc(), letters.partition, letters.offset
            )
        )
    ]


def dead_letter_counts(connection: Connection) -> dict[str, int]:
    """Return, per stream, the number of events that could not be folded and were not dropped."""
    letters = DeadLetter.table().c
    query = select(letters.stream, func.count().label("events")).where(~_is_obsolete())
    query = query.group_by(letters.stream)
    counts = Counter({row.stream: row.events for row in connection.execute(query)})
    for stream, source, sequence in _read_drops(connection):
        named = (
            letters.stream == stream, letters.event_source == source, letters.sequence == sequence,
        )  # fmt: skip
        counts[stream] -= connection.execute(
            select(func.count()).where(*named, ~_is_obsolete())
        ).scalar_one()
    return dict(+counts)


def _is_obsolete() -> ColumnElement[bool]:
    """Return the SQL condition that a dead letter of a session is obsolete: the session became a
    rollout later, or has an earlier letter, as two workers may record one each."""
    letters, rollouts = DeadLetter.table().c, Rollout.table().c
    other = DeadLetter.table().alias("other")
    first = tuple_(other.c.event_source, other.c.sequence) < tuple_(
        letters.event_source, letters.sequence
    )
    is_made = select(rollouts.rollout).where(rollouts.rollout == letters.rollout)
    is_said = select(other.c.rollout).where(
        other.c.rollout == letters.rollout, other.c.type == letters.type, first
    )
    of_session = func.coalesce(letters.type, "") == ClosingFailed.TYPE
    return of_session & (is_made.exists() | is_said.exists())


def _read_drops(connection: Connection) -> dict[tuple[str, str, int], str]:
    """Return (stream, source, sequence) -> last reason for which a person dropped that letter."""
    actions = OperatorAction.table().c
    query = select(actions.arguments, actions.reason).where(actions.action == DROP)
    reasons: dict[tuple[str, str, int], str] = {}
    for row in connection.execute(query.order_by(actions.offset)):
        named = json.loads(row.arguments)
        reasons[named["stream"], named["source"], int(named["sequence"])] = row.reason
    return reasons


def _line(row: Any) -> RolloutLine:
    return make_row(
        RolloutLine,
        row,
        categories=json.loads(row.categories),
        verdicts=json.loads(row.verdicts or "[]"),
    )
