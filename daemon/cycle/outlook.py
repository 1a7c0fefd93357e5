"""Tell why the next cycle of each agent does not begin yet.

    read_facts(connection, settings, pair, now)   the input of `scheduler.decide`
    read_outlooks(connection, settings, now)      the outlook of each agent, for display

The module calls the same pure functions as the leader (scheduler.py, state_machine.py) on the same
tables. It decides nothing.
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
    """A cycle or a job that can no longer be called off."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """What the next cycle of an agent waits for."""

    alias: str
    base: str | None
    """None: nothing of it was recorded yet."""
    environment: str | None
    """None: there is none, so nothing is trained."""
    due: bool
    missing: tuple[str, ...]
    """Sentences; empty where one is due."""
    cycle: str | None
    """The open one."""
    step: str | None
    """What that needs next."""
    rollouts: int | None = None
    """Rollouts that the next cycle would read; None where it can read none. So is the next."""
    failures: int | None = None
    """Different failures among them."""
    patterns: tuple[PatternWeight, ...] = ()
    """What it would write tasks for as of the last round, the highest priority first."""
    unusable: tuple[UnusableFailures, ...] = ()
    """Failures that count for none of this, because no written task can follow them,
    from the last cycle's round on."""
    last_minutes: tuple[float, ...] = ()
    """How long the last finished cycles took, the newest first."""


def describe_unusable(lines: Iterable[UnusableFailures]) -> str:
    """Return the failures that no task can follow in words. Empty where there are none."""
    counts = ", ".join(line.describe() for line in lines)
    return counts and f"failures that no written task can follow: {counts}"


def read_facts(
    connection: "Connection", settings: "Settings", pair: Pair, now: datetime
) -> Scheduling | None:
    """Return the input of the scheduler, or None for an agent whose tasks cannot be played."""
    environment = find_environment(settings, pair.alias)
    if environment is None:
        return None
    kinds = find_kinds(settings, environment)
    return scheduling(connection, pair.alias, pair.base, now, kinds)


def read_outlooks(connection: "Connection", settings: "Settings", now: datetime) -> list[Outlook]:
    """Every agent that was seen or is in the settings, by alias."""
    seen = agents.present(connection)
    rows = [_read_outlook(connection, settings, pair, now) for pair in seen]
    unseen = {entry.alias for entry in settings.agents} - {pair.alias for pair in seen}
    rows += [_unseen(agent) for agent in settings.agents if agent.alias in unseen]
    return sorted(rows, key=lambda entry: entry.alias)


def read_outlook(
    connection: "Connection", settings: "Settings", alias: str, now: datetime
) -> Outlook | None:
    """The one of an agent; None where nothing of it was recorded."""
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
