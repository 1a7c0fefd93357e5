"""Build the directive of one cycle from the tables and, if an analyzer is set, the sampled
conversations. It appends no event. All but the analyzer's words follows from the tables and the
cycle's id, so a restarted cycle builds the same directive."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING

from consumers.diagnosis.round_counts import Pair
from consumers.reads import evidence, learning, rollouts
from consumers.reads.evidence import RoundRollout
from consumers.reads.learning import BufferTask, RejectionRow
from consumers.reads.rollouts import PatternLine
from daemon.controller import directive as directives
from daemon.controller.analyzer import Analysis, analyze
from daemon.controller.directive import EXAMPLES, ClientFailures, Failures, leave_out_mastered
from daemon.controller.refusals import read_refusals
from daemon.controller.rejected_tries import bad_tries
from daemon.controller.rollout_views import build_view
from daemon.controller.sampling import Candidate, sample_failures, sample_successes
from events.learning import BadTries, Directive, DirectiveWritten, PatternFinding
from producers.gateway.privacy.redaction import Redaction

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from daemon.core.app import App

ChoosePlanned = Callable[
    [Sequence[str], Sequence[BufferTask], Sequence[RejectionRow]], Mapping[str, str]
]
"""Takes patterns, and the accepted and rejected tasks of the previous cycle. Returns pattern -> why
its tasks are planned before they are written."""


def _plan_none(*_: object) -> Mapping[str, str]:
    return {}


def direct(
    app: "App",
    cycle: str,
    alias: str,
    base: str,
    number: int,
    aims: Collection[str] = (),
    kinds: Collection[str] | None = None,
    choose_planned: ChoosePlanned = _plan_none,
) -> DirectiveWritten:
    """Return the directive of `cycle` for round `number` of the agent `alias` on `base`. `aims` and
    `choose_planned` are as in `build_directive`, `kinds` as in `ClosedRound`."""
    with app.reading() as connection:
        closed = read_closed_round(connection, alias, base, number, kinds)
        before = learning.wrote_last(connection, alias, base, but=cycle)
        written = _read_history(connection, alias, base, before)
        rejected = [] if before is None else learning.rejections_of(connection, before)
        analysis = _analysis(app, connection, cycle, closed.rollouts, written.names)
        directive = build_directive(
            connection,
            closed,
            app.settings.proposer.tasks,
            cycle,
            analysis.findings if analysis else (),
            bad_tries(written.last, rejected),
            repairs=app.settings.improve.writes("repair"),
            aims=aims,
            choose_planned=lambda patterns: choose_planned(patterns, written.last, rejected),
        )
    return DirectiveWritten(
        cycle=cycle,
        round=number,
        directive=directive,
        findings=analysis.findings if analysis else (),
        summary=analysis.summary if analysis else "",
        analyzer=analysis.model if analysis else None,
        trouble=analysis.trouble if analysis else "",
    )


@dataclass(frozen=True, slots=True)
class ClosedRound:
    """A closed round: the rollouts of one agent on one base model that are diagnosed together."""

    alias: str
    base: str
    number: int
    rollouts: Sequence[RoundRollout]
    """Judged rollouts without duplicates, failed and passed ones."""
    kinds: Collection[str] | None = None
    """The only kinds of task in `rollouts`, since no other can be followed; None for all kinds."""


def read_closed_round(
    connection: "Connection",
    alias: str,
    base: str,
    number: int,
    kinds: Collection[str] | None = None,
) -> ClosedRound:
    """Read a closed round; `kinds` limits its rollouts as in `ClosedRound`."""
    seen = evidence.read_round_rollouts(connection, alias, base, number, kinds)
    return ClosedRound(alias, base, number, seen, kinds)


def build_directive(
    connection: "Connection",
    closed: ClosedRound,
    most: int,
    seed: str,
    findings: Sequence[PatternFinding] = (),
    bad: Sequence[BadTries] = (),
    *,
    repairs: bool = False,
    aims: Collection[str] = (),
    choose_planned: Callable[[Sequence[str]], Mapping[str, str]] = _plan_none,
) -> Directive:
    """Return the directive of a closed round for at most `most` tasks, from the tables alone.

    `seed` draws the examples. `bad` are the modes whose tasks were mostly rejected before.
    `repairs` allows the mode `repair`. `aims` are patterns: only those with failures in the round
    get tasks; if none has any, all patterns do. `choose_planned` returns pattern -> why its tasks
    are planned before they are written.
    """
    lines = rollouts.pattern_lines(connection, closed.alias)
    rates = evidence.task_rates(connection, closed.alias, closed.base, closed.number, closed.kinds)
    mastered = directives.find_mastered_tasks(rates)
    failures = _by_pattern(closed.rollouts, mastered, seed)
    of_base = [line for line in lines if line.base == closed.base]
    failures += _read_earlier(
        connection, of_base, {item.pattern for item in failures}, closed.kinds
    )
    usable = {item.pattern for item in failures}
    # In a job's own tables, a pattern from earlier has no example until it fails in the job.
    shown = [line for line in of_base if line.pattern in usable]
    aimed = {row.pattern for row in closed.rollouts} & set(aims)
    return directives.directive(
        [line for line in shown if not aimed or line.pattern in aimed],
        failures,
        findings,
        rates,
        bad,
        most,
        read_refusals(connection, Pair(closed.alias, closed.base), closed.number)
        if repairs
        else None,
        choose_planned([line.pattern for line in shown]),
        Counter(row.client for row in closed.rollouts if row.pattern is not None),
    )


@dataclass(frozen=True, slots=True)
class _TaskHistory:
    names: set[str] = field(default_factory=set)
    last: list[BufferTask] = field(default_factory=list)
    """Tasks that the agent's previous cycle wrote."""


def _read_history(
    connection: "Connection", alias: str, base: str, before: str | None
) -> _TaskHistory:
    written = _TaskHistory()
    for row in learning.tasks_of(connection, alias, base):
        written.names.add(row.task.id)
        if before is not None and row.cycle == before:
            written.last.append(row)
    return written


def _by_pattern(
    seen: Sequence[RoundRollout], mastered: Collection[str], seed: str
) -> list[Failures]:
    """Return each pattern's failures to follow. `mastered` are the tasks of mastered kinds."""
    by_pattern: dict[str, list[RoundRollout]] = {}
    for rollout in seen:
        if rollout.pattern is not None:
            by_pattern.setdefault(rollout.pattern, []).append(rollout)
    return [
        _sample_pattern(pattern, leave_out_mastered(own, mastered), seed)
        for pattern, own in sorted(by_pattern.items())
    ]


def _sample_pattern(pattern: str, failures: Sequence[RoundRollout], seed: str) -> Failures:
    by_client: dict[str | None, list[RoundRollout]] = {}
    for failure in failures:
        by_client.setdefault(failure.client, []).append(failure)
    clients = {
        client: ClientFailures(len(own), _sample_examples(own, seed))
        for client, own in by_client.items()
    }
    return Failures(pattern, _sample_examples(failures, seed), clients)


def _read_earlier(
    connection: "Connection",
    lines: Sequence[PatternLine],
    failed: Collection[str],
    kinds: Collection[str] | None,
) -> list[Failures]:
    """Return the recorded examples of those patterns that have no failures in this round."""
    names = {line.pattern: line.examples for line in lines if line.pattern not in failed}
    clients = evidence.read_clients(connection, {*chain(*names.values())}, kinds)
    earlier = []
    for pattern, examples in names.items():
        usable = tuple(name for name in examples if name in clients)
        by_client: dict[str | None, list[str]] = {}
        for name in usable:
            by_client.setdefault(clients[name], []).append(name)
        own = {client: ClientFailures(len(ids), tuple(ids)) for client, ids in by_client.items()}
        if usable:
            earlier.append(Failures(pattern, usable, own))
    return earlier


def _sample_examples(failures: Sequence[RoundRollout], seed: str) -> tuple[str, ...]:
    sample = sample_failures(map(_candidate, failures), seed, EXAMPLES)
    return tuple(candidate.rollout for candidate in sample)


def _analysis(
    app: "App", connection: "Connection", seed: str, seen: Sequence[RoundRollout], written: set[str]
) -> Analysis | None:
    settings = app.settings.models.analyzer
    failed = [rollout for rollout in seen if rollout.category is not None]
    if not settings.url or not failed:
        return None
    passed = [rollout for rollout in seen if rollout.category is None]
    sample = [
        *sample_failures(map(_candidate, failed), seed),
        *sample_successes(
            map(_candidate, passed),
            {rollout.task_key for rollout in failed},
            written,
            seed,
        ),
    ]
    by_rollout = {rollout.rollout: rollout for rollout in seen}
    shown = [
        view
        for rollout in sample
        if (view := build_view(app, connection, by_rollout[rollout.rollout])) is not None
    ]
    if not shown:
        return None
    redaction = Redaction(app.settings.redaction.build_rules())
    return analyze(settings, shown, failed, redaction.redact_text)


def _candidate(seen: RoundRollout) -> Candidate:
    return Candidate(seen.rollout, seen.task_key, seen.reward)
