"""Metrics of the learning loop, from the tables (role `schedule`); methods add their own.

Guarantee: the code and `MOST_AGENTS` bound the number of series. A label's values are a fixed set,
agents' names, or a set that a method bounds. Labels name only adapters that answer now, so the
series of a retired adapter ends. Agents of the settings come first; agents beyond the limit are
only counted in `kintsugi_agents`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, get_args

from consumers.diagnosis.detectors import CATEGORIES
from consumers.diagnosis.priority import Status
from consumers.diagnosis.round_counts import Pair
from consumers.reads import agents, gateways, learning, serving
from consumers.reads import counts as figures
from consumers.reads.outcomes.canary import read_live_verdicts
from consumers.reads.scheduling import job_seconds
from daemon.cycle.outlook import read_facts
from daemon.cycle.scheduler import Due, decide
from daemon.cycle.state_machine import STOPS, Step
from daemon.cycle.views import ENDING, read_next_step, step_name, step_start
from daemon.metrics.families import Family, Sheet
from daemon.metrics.holdout import HOLDOUT, say_lifts
from daemon.metrics.observations import BackgroundCollector
from daemon.metrics.recent import Recent
from daemon.serving.lift import Lift, read_lifts
from events.envelope import parse_timestamp, timestamp, utc_now
from events.gate import Decision
from events.learning import CycleOutcome, JobOutcome
from events.lifecycle import State

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from consumers.reads.serving import RouteRow, RouteTable
    from daemon.config.settings import Settings
    from daemon.core.app import App

MOST_AGENTS: Final = 20

LIVE_WINDOW: Final = timedelta(hours=24)
"""Greatest age of judged sessions in the live metrics, so that these show the present."""

STAGES: Final = ("none", *(step.value for step in Step), ENDING)
SLOTS: Final = ("base", "promoted", "canary", "shadow")

LOOP: Final = (
    Family("kintsugi_agents", "Agents that were seen or are in the settings."),
    Family("kintsugi_patterns", "Failure patterns as of the last round.", ("alias", "status")),
    Family(
        "kintsugi_pattern_priority",
        "Sum of the priorities of the patterns that are not resolved, as of the last round.",
        ("alias", "category"),
    ),
    Family(
        "kintsugi_unread_rollouts",
        "Rollouts of its own traffic that no cycle has read and that count for the next; failures "
        "are deduplicated. Absent without an executable environment.",
        ("alias", "counted"),
    ),
    Family(
        "kintsugi_rollouts_newest_timestamp_seconds",
        "Of the newest rollout of its own traffic; absent without one.",
        ("alias",),
    ),
    Family("kintsugi_cycle_due", "Whether a cycle is due now.", ("alias",)),
    Family(
        "kintsugi_cycle_number",
        "Of the cycle that runs, else of the next one; absent where there is neither.",
        ("alias",),
    ),
    Family("kintsugi_cycle_stage", "1 for what the open cycle needs next.", ("alias", "stage")),
    Family(
        "kintsugi_cycle_stage_entered_timestamp_seconds",
        "When the open cycle came to what it needs next; absent without one.",
        ("alias",),
    ),
    Family("kintsugi_cycles_total", "Cycles that are over.", ("alias", "outcome")),
    Family(
        "kintsugi_cycle_duration_seconds",
        "How long the last cycle took that is over; absent without one.",
        ("alias",),
    ),
    Family("kintsugi_cycle_ended_timestamp_seconds", "When that was over.", ("alias",)),
    Family(
        "kintsugi_cycle_last_success_timestamp_seconds",
        "When this stop of a cycle came off last.",
        ("alias", "stop"),
    ),
    Family("kintsugi_tasks_written_total", "Tasks that cycles wrote.", ("alias", "verdict")),
    Family("kintsugi_jobs_open", "Training jobs that are wanted and not over.", ("alias",)),
    Family("kintsugi_jobs_total", "Training jobs that are over.", ("alias", "outcome")),
    Family("kintsugi_job_today_seconds", "That jobs ran that ended today (UTC)."),
    Family("kintsugi_job_budget_seconds", "That they may run on a day."),
    Family("kintsugi_adapters", "Adapters.", ("alias", "state")),
    Family("kintsugi_adapter_entries_total", "Steps of adapters into a state.", ("alias", "state")),
    Family("kintsugi_gate_decisions_total", "What the gate said.", ("alias", "decision")),
    Family(
        "kintsugi_gate_pass_ratio",
        "pass^1 when an adapter was measured last, before the gate.",
        ("alias", "side"),
    ),
    Family(
        "kintsugi_gate_after_error_pass_ratio",
        "pass^1 then in tasks that begin behind a refused call; absent where none was played.",
        ("alias", "side"),
    ),
    Family(
        "kintsugi_gate_token_growth_ratio",
        "How much longer the candidate's rollouts with and without a refused call were then; "
        "absent where they were not counted apart.",
        ("alias", "rollouts"),
    ),
    Family(
        "kintsugi_route_gate_pass_ratio",
        "pass^1 of who answers, when it was measured last; absent for the base.",
        ("alias", "slot"),
    ),
    Family(
        "kintsugi_live_pass_ratio",
        "pass^1 of judged live sessions under this route, of a day at most; absent without one.",
        ("alias", "slot"),
    ),
    Family("kintsugi_live_judged_sessions", "How many sessions that rests on.", ("alias", "slot")),
    *HOLDOUT,
    Family(
        "kintsugi_route_weight_ratio", "Share of the sessions that it is given.", ("alias", "slot")
    ),
    Family("kintsugi_route_info", "Who answers.", ("alias", "slot", "adapter")),
    Family("kintsugi_route_changed_timestamp_seconds", "When the route came about.", ("alias",)),
    Family("kintsugi_gateways", "Gateways that are live."),
    Family(
        "kintsugi_gateways_position",
        "How much of the stream learning the gateway that is furthest behind has applied.",
    ),
    Family("kintsugi_leader_epoch", "The epoch whose decisions count."),
)


@dataclass(frozen=True, slots=True)
class LoopReading:
    """The tables at one moment, from which a method reads its metrics."""

    connection: "Connection"
    settings: "Settings"
    pairs: Sequence[Pair]
    """Agents (alias and base model) with metrics."""
    since: str
    """Start of the last 24 hours (RFC 3339, UTC)."""

    @property
    def aliases(self) -> list[str]:
        """Return the aliases of `pairs`."""
        return [pair.alias for pair in self.pairs]


@dataclass(frozen=True, slots=True)
class MethodMetrics:
    """The metrics that a method adds to those of the loop."""

    families: tuple[Family, ...]
    report: Callable[[LoopReading, Sheet], None]
    """Adds the samples of one reading to a sheet."""


def loop(settings: "Settings", methods: Sequence[MethodMetrics]) -> BackgroundCollector:
    """Return the collector of the loop's metrics and of those that `methods` add."""
    kept = partial(read, lifts=Recent(read_lifts).read, methods=methods)
    return BackgroundCollector("loop", list_families(methods), settings, kept)


def list_families(methods: Sequence[MethodMetrics]) -> list[Family]:
    """Return the metrics of the loop, then those that methods add."""
    return [*LOOP, *(family for method in methods for family in method.families)]


def read(
    app: "App",
    sheet: Sheet,
    now: datetime | None = None,
    lifts: "Callable[[Connection], list[Lift]]" = read_lifts,
    methods: Sequence[MethodMetrics] = (),
) -> None:
    """Add the samples of `LOOP` and of `methods` to a sheet, from one moment of the tables. The
    function `lifts` reads the agents' lifts."""
    moment, settings = now or utc_now(), app.settings
    with app.reading() as connection:
        pairs = agents.present(connection)
        configured = {agent.alias for agent in settings.agents}
        # At most `MOST_AGENTS` are shown, agents of the settings first.
        shown = sorted(pairs, key=lambda pair: (pair.alias not in configured, pair.alias))
        shown = shown[:MOST_AGENTS]
        sheet.say("kintsugi_agents", len({pair.alias for pair in pairs} | configured))
        _patterns(connection, sheet, shown)
        for pair in shown:
            _agent(connection, settings, sheet, pair, moment)
        names = [pair.alias for pair in shown]
        _counts(connection, sheet, names)
        _moments(connection, sheet, names)
        _routes(connection, sheet, shown, moment)
        since = timestamp(moment - LIVE_WINDOW)
        for method in methods:
            method.report(LoopReading(connection, settings, shown, since), sheet)
        say_lifts(sheet, lifts(connection), names)
        sheet.say("kintsugi_job_today_seconds", job_seconds(connection, moment))
        sheet.say("kintsugi_job_budget_seconds", settings.scheduler.budget_minutes * 60)
        _gateways(connection, settings, sheet)
        leader = learning.leader(connection)
        sheet.say("kintsugi_leader_epoch", 0 if leader is None else leader.epoch)


def _patterns(connection: "Connection", sheet: Sheet, shown: list[Pair]) -> None:
    every = figures.pattern_counts(connection)
    for pair in shown:
        counts = [row for row in every if (row.alias, row.base) == (pair.alias, pair.base)]
        for status in Status:
            count = sum(row.patterns for row in counts if row.status == status.value)
            sheet.say("kintsugi_patterns", count, pair.alias, status.value.lower())
        unresolved = [row for row in counts if row.status != Status.RESOLVED.value]
        for category in CATEGORIES:
            weight = sum(row.priority for row in unresolved if row.category == category)
            sheet.say("kintsugi_pattern_priority", weight, pair.alias, category)


def _agent(
    connection: "Connection", settings: "Settings", sheet: Sheet, pair: Pair, now: datetime
) -> None:
    cycle = learning.open_cycle(connection, pair.alias)
    number = None if cycle is None else cycle.number
    due = False
    facts = read_facts(connection, settings, pair, now)
    if facts is not None:
        unread = {"failed": facts.failed, "judged": facts.judged, "all": facts.rollouts}
        for counted, count in unread.items():
            sheet.say("kintsugi_unread_rollouts", count, pair.alias, counted)
        decision = decide(facts, settings.scheduler, now)
        due = isinstance(decision, Due)
        number = facts.number if number is None else number
    # For every agent: the boards list agents by this metric.
    sheet.say("kintsugi_cycle_due", due, pair.alias)
    sheet.say("kintsugi_cycle_number", number, pair.alias)
    stage, since = "none", None
    if cycle is not None:
        state, step = read_next_step(connection, settings, cycle, pair)
        stage, since = step_name(step), step_start(state)
    sheet.one_of("kintsugi_cycle_stage", stage, STAGES, pair.alias)
    sheet.say("kintsugi_cycle_stage_entered_timestamp_seconds", _when(since), pair.alias)


def _counts(connection: "Connection", sheet: Sheet, names: list[str]) -> None:
    """Report totals of cycles, jobs and adapters, also those of 0, so that each change is seen."""
    cycles, jobs = figures.cycle_counts(connection), figures.job_counts(connection)
    adapters, entered = figures.adapter_counts(connection), figures.state_entry_counts(connection)
    gates, tasks = figures.gate_counts(connection), figures.task_counts(connection)
    for name in names:
        for outcome in get_args(CycleOutcome):
            sheet.say("kintsugi_cycles_total", cycles.get((name, outcome), 0), name, outcome)
        for outcome in get_args(JobOutcome):
            sheet.say("kintsugi_jobs_total", jobs.get((name, outcome), 0), name, outcome)
        sheet.say("kintsugi_jobs_open", jobs.get((name, figures.OPEN), 0), name)
        for state in State:
            sheet.say("kintsugi_adapters", adapters.get((name, state.value), 0), name, state.value)
            count = entered.get((name, state.value), 0)
            sheet.say("kintsugi_adapter_entries_total", count, name, state.value)
        for decision in get_args(Decision):
            count = gates.get((name, decision), 0)
            sheet.say("kintsugi_gate_decisions_total", count, name, decision.lower())
        for verdict, count in zip(("accepted", "rejected"), tasks.get(name, (0, 0)), strict=True):
            sheet.say("kintsugi_tasks_written_total", count, name, verdict)


def _moments(connection: "Connection", sheet: Sheet, names: list[str]) -> None:
    for alias, time in agents.newest_rollouts(connection).items():
        if alias in names:
            sheet.say("kintsugi_rollouts_newest_timestamp_seconds", _when(time), alias)
    for (alias, stop), time in figures.successes(connection).items():
        if alias in names:
            assert stop in STOPS, "the stops are those of the process manager"
            sheet.say("kintsugi_cycle_last_success_timestamp_seconds", _when(time), alias, stop)
    for alias, over in figures.last_over(connection).items():
        if alias in names:
            began, ended = _when(over.started), _when(over.ended)
            sheet.say("kintsugi_cycle_ended_timestamp_seconds", ended, alias)
            seconds = None if began is None or ended is None else ended - began
            sheet.say("kintsugi_cycle_duration_seconds", seconds, alias)
    for alias, measured in figures.last_measurements(connection).items():
        if alias in names:
            sheet.say("kintsugi_gate_pass_ratio", measured.candidate_pass, alias, "candidate")
            sheet.say("kintsugi_gate_pass_ratio", measured.incumbent_pass, alias, "incumbent")
            _say_after_error(connection, sheet, alias, measured.adapter)


def _say_after_error(connection: "Connection", sheet: Sheet, alias: str, adapter: str) -> None:
    row = serving.adapter_row(connection, adapter)
    measured = None if row is None or row.gate is None else row.gate.after_error
    if measured is None:
        return
    for side, value in (("candidate", measured.candidate), ("incumbent", measured.incumbent)):
        sheet.say("kintsugi_gate_after_error_pass_ratio", value, alias, side)
    growths = {"refused": measured.token_growth, "clean": measured.clean_token_growth}
    for rollouts, growth in growths.items():
        sheet.say("kintsugi_gate_token_growth_ratio", growth, alias, rollouts)


def _routes(connection: "Connection", sheet: Sheet, shown: list[Pair], now: datetime) -> None:
    table = serving.route_table(connection)
    for pair in shown:
        route = table.route(pair.alias)
        weights = dict.fromkeys(SLOTS, 0.0)
        weights["base"] = 0.0 if route is not None else 1.0
        if route is not None:
            held_out = route.standing.holdout
            weights["base"] += held_out
            for part in route.standing.shares:
                weights[_slot(table, part.adapter)] += (1 - held_out) * part.share
            _say_route_info(sheet, table, route)
            _say_gate_rates(connection, sheet, table, route)
            _live(connection, sheet, table, route, now)
        for slot, weight in weights.items():
            sheet.say("kintsugi_route_weight_ratio", weight, pair.alias, slot)


def _slot(table: "RouteTable", adapter: str | None) -> str:
    if adapter is None:
        return "base"
    row = table.adapter(adapter)
    return "canary" if row is not None and row.state is State.CANARY else "promoted"


def _say_route_info(sheet: Sheet, table: "RouteTable", route: "RouteRow") -> None:
    answering = {part.adapter for part in route.standing.shares}
    if route.standing.holdout:
        answering.add(None)
    for adapter in sorted(answering, key=lambda name: name or ""):
        name = adapter or route.standing.base
        sheet.say("kintsugi_route_info", 1, route.alias, _slot(table, adapter), name)
    if route.standing.shadow is not None:
        sheet.say("kintsugi_route_info", 1, route.alias, "shadow", route.standing.shadow)
    sheet.say("kintsugi_route_changed_timestamp_seconds", _when(route.since), route.alias)


def _say_gate_rates(
    connection: "Connection", sheet: Sheet, table: "RouteTable", route: "RouteRow"
) -> None:
    """Report each slot's pass rate in the gate, to compare with its live pass rate."""
    answering = {part.adapter for part in route.standing.shares if part.adapter is not None}
    rates = figures.read_measurements(connection, answering)
    slots = {_slot(table, name): rate.candidate_pass for name, rate in sorted(rates.items())}
    for slot, rate in slots.items():
        sheet.say("kintsugi_route_gate_pass_ratio", rate, route.alias, slot)


def _live(
    connection: "Connection", sheet: Sheet, table: "RouteTable", route: "RouteRow", now: datetime
) -> None:
    oldest = timestamp(now - LIVE_WINDOW)
    since = oldest if route.since is None else max(route.since, oldest)
    answering = {part.adapter for part in route.standing.shares}
    verdicts: dict[str, list[bool]] = {}
    live = read_live_verdicts(connection, route.alias, route.standing.base, since)
    for adapter, successes in live.items():
        if adapter in answering:
            verdicts.setdefault(_slot(table, adapter), []).extend(successes)
    for slot in SLOTS:
        results = verdicts.get(slot, [])
        sheet.say("kintsugi_live_judged_sessions", len(results), route.alias, slot)
        if results:
            sheet.say("kintsugi_live_pass_ratio", sum(results) / len(results), route.alias, slot)


def _gateways(connection: "Connection", settings: "Settings", sheet: Sheet) -> None:
    live = gateways.read_live_gateways(connection, settings.serving.gateway_timeout_seconds)
    sheet.say("kintsugi_gateways", len(live))
    positions = [gateway.report.position for gateway in live]
    sheet.say("kintsugi_gateways_position", min(positions, default=None))


def _when(text: str | None) -> float | None:
    return None if text is None else parse_timestamp(text).timestamp()
