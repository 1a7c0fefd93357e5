"""Tell why each agent's next cycle does not begin yet.

It calls the leader's pure functions (scheduler.py, state_machine.py) on the same tables.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from consumers.diagnosis.round_counts import Pair
from consumers.reads import agents, learning, planning
from consumers.reads.planning import PatternWeight, UnusableFailures
from consumers.reads.scheduling import Scheduling, scheduling
from daemon.core.task_kinds import find_kinds
from daemon.cycle.cost import minutes_between
from daemon.cycle.scheduler import Due, NotDue, decide, not_due_without_environment
from daemon.cycle.views import find_environment, read_step
from events.errors import KintsugiError

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from daemon.config.settings import Agent, Settings


class TooLate(KintsugiError):
    """The cycle or job can no longer be cancelled."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """The reasons why an agent's next cycle waits."""

    alias: str
    base: str | None
    """None if nothing was recorded of the agent yet."""
    environment: str | None
    """None if the agent has no environment, so that nothing is trained."""
    due: bool
    missing: tuple[str, ...]
    """One sentence for each missing condition; empty if a cycle is due."""
    cycle: str | None
    step: str | None
    rollouts: int | None = None
    """Number of rollouts for the next cycle; None if it can read none (as `failures`)."""
    failures: int | None = None
    """Number of different failures among the rollouts."""
    patterns: tuple[PatternWeight, ...] = ()
    """Patterns of the last round for which tasks may be written, by priority."""
    unusable: tuple[UnusableFailures, ...] = ()
    """Failures since the last cycle's round that no written task can follow; they do not count."""
    last_minutes: tuple[float, ...] = ()
    """Durations of the last finished cycles in minutes, newest first."""


def describe_unusable(lines: Iterable[UnusableFailures]) -> str:
    """Return a clause on the failures that no written task can follow, or ""."""
    counts = ", ".join(line.describe() for line in lines)
    return counts and f"failures that no written task can follow: {counts}"


def read_facts(
    connection: "Connection", settings: "Settings", pair: Pair, now: datetime
) -> Scheduling | None:
    """Return the scheduler's input; None if the agent's tasks cannot be played."""
    environment = find_environment(settings, pair.alias)
    if environment is None:
        return None
    kinds = find_kinds(settings, environment)
    return scheduling(connection, pair.alias, pair.base, now, kinds)


def read_outlooks(connection: "Connection", settings: "Settings", now: datetime) -> list[Outlook]:
    """Return the outlook of every known agent, ordered by alias."""
    seen = agents.present(connection)
    rows = [_read_outlook(connection, settings, pair, now) for pair in seen]
    unseen = {entry.alias for entry in settings.agents} - {pair.alias for pair in seen}
    rows += [_unseen(agent) for agent in settings.agents if agent.alias in unseen]
    return sorted(rows, key=lambda entry: entry.alias)


def read_outlook(
    connection: "Connection", settings: "Settings", alias: str, now: datetime
) -> Outlook | None:
    """Return an agent's outlook; None if nothing was recorded of it."""
    pairs = (pair for pair in agents.present(connection) if pair.alias == alias)
    pair = next(pairs, None)
    return None if pair is None else _read_outlook(connection, settings, pair, now)


def _read_outlook(
    connection: "Connection", settings: "Settings", pair: Pair, now: datetime
) -> Outlook:
    environment = find_environment(settings, pair.alias)
    kinds = None if environment is None else find_kinds(settings, environment)
    facts = read_facts(connection, settings, pair, now)
    if facts is None:
        decision: Due | NotDue = not_due_without_environment(pair.alias)
    else:
        decision = decide(facts, settings.scheduler, now)
    cycle = learning.open_cycle(connection, pair.alias)
    return Outlook(
        alias=pair.alias,
        base=pair.base,
        environment=environment,
        due=isinstance(decision, Due),
        missing=() if isinstance(decision, Due) else decision.missing,
        cycle=None if cycle is None else cycle.cycle,
        step=None if cycle is None else read_step(connection, settings, cycle),
        rollouts=None if facts is None else facts.rollouts,
        failures=None if facts is None else facts.failed,
        patterns=tuple(planning.heaviest_patterns(connection, pair.alias, pair.base, kinds)),
        unusable=()
        if kinds is None
        else tuple(planning.list_unusable_failures(connection, pair.alias, pair.base, kinds)),
        last_minutes=tuple(
            minutes_between(begin, end)
            for begin, end in planning.last_cycle_times(connection, pair.alias, pair.base)
        ),
    )


def _unseen(agent: "Agent") -> Outlook:
    missing = (f"rollouts of {agent.alias}: none is recorded",)
    return Outlook(
        agent.alias, None, agent.environment, due=False, missing=missing, cycle=None, step=None
    )
