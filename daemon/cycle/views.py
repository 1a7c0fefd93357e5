"""What the leader, its planner and the status ask of an agent and of an open cycle."""

from datetime import datetime
from typing import TYPE_CHECKING

from consumers.diagnosis.round_counts import Pair
from consumers.reads.cycle_state import CycleStanding
from consumers.reads.scheduling import Scheduling
from daemon.cycle.scheduler import Facts
from daemon.cycle.state_machine import AdapterView, JobView, View
from events.envelope import parse_timestamp

if TYPE_CHECKING:
    from daemon.config.settings import Agent, Settings
    from daemon.core.app import App
    from events.gate import GateReport


def agent_of(app: "App", alias: str) -> "Agent | None":
    """What the settings say of an agent."""
    return next((one for one in app.settings.agents if one.alias == alias), None)


def environment_of(settings: "Settings", alias: str) -> str | None:
    """In which the settings say that an agent's tasks are played."""
    return next((one.environment for one in settings.agents if one.alias == alias), None)


def facts_of(found: Scheduling, pair: Pair, environment: str) -> Facts:
    """What the scheduler decides on."""
    return Facts(
        alias=pair.alias,
        base=pair.base,
        environment=environment,
        position=found.position,
        number=found.number,
        is_open=found.open_cycle is not None,
        rollouts=found.rollouts,
        failures=found.failed,
        priority=found.priority,
        first_seen=_moment(found.first_seen),
        last_started=_moment(found.last_started),
        last_ended=_moment(found.last_ended),
        fruitless=found.fruitless,
        minutes_today=found.job_seconds / 60,
        asked=found.asked,
    )


def view_of(found: CycleStanding, pair: Pair) -> View:
    """A cycle as the process manager sees it; `pair` says on which base the agent runs now."""
    cycle, job, adapter = found.cycle, found.job, found.adapter
    cancelled = found.cancelled
    if cancelled is None and cycle.base != pair.base:
        cancelled = f"{cycle.alias} runs on {pair.base} now, and not on {cycle.base}"
    return View(
        cycle=cycle.cycle,
        diagnosed=cycle.round is not None,
        directed=cycle.directive is not None,
        job=None if job is None else JobView(job.outcome, job.reason or ""),
        adapter=None
        if adapter is None
        else AdapterView(
            adapter.state,
            found.been,
            adapter.reason or _of_gate(adapter.gate),
            _outdated(found),
            found.gates,
        ),
        cancelled=cancelled,
    )


def _outdated(found: CycleStanding) -> str:
    """Why the gate of a cycle's adapter counts no more: the incumbent changed after it."""
    adapter, incumbent = found.adapter, found.incumbent
    if adapter is None or adapter.gate is None or adapter.incumbent == incumbent:
        return ""
    return (
        f"{adapter.adapter} passed the gate against {adapter.incumbent or adapter.base}, and "
        f"{incumbent or adapter.base} is the incumbent now"
    )


def _of_gate(report: "GateReport | None") -> str:
    """Why the gate said no, in words."""
    if report is None:
        return ""
    failed = [check for check in report.checks if check.verdict != "PASS"]
    said = "; ".join(
        f"{check.name} {check.value:+.3f} (limit {check.limit:+.3f}, {check.tasks} tasks)"
        for check in failed
    )
    return f"gate {report.decision}: {said or 'every check passed'}"


def _moment(text: str | None) -> datetime | None:
    return None if text is None else parse_timestamp(text)
