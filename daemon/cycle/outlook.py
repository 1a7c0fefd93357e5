"""How far the open cycles are, and what the next one of each agent waits for: for who looks.

    outlooks(connection, settings, now)    one for each agent, with what the scheduler would say
    step_of(connection, cycle)             what an open cycle needs next

Asks the same pure functions as the leader (scheduler.py, state_machine.py) of the same tables, and
decides nothing.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from consumers.diagnosis.round_counts import Pair
from consumers.reads import agents, learning
from consumers.reads.cycle_state import CycleStanding, standing
from consumers.reads.learning import CycleRow
from consumers.reads.scheduling import scheduling
from daemon.cycle.scheduler import Due, Waiting, decide, no_environment
from daemon.cycle.state_machine import Ended, following
from daemon.cycle.views import environment_of, facts_of, view_of
from events.errors import KintsugiError

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from daemon.config.settings import Agent, Settings

ENDING: Final = "end"
"""The step of a cycle that is over but for the leader's word."""


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


def outlooks(connection: "Connection", settings: "Settings", now: datetime) -> list[Outlook]:
    """Every agent that was seen or is in the settings, by alias."""
    seen = agents.present(connection)
    found = [_outlook(connection, settings, pair, now) for pair in seen]
    unseen = {one.alias for one in settings.agents} - {pair.alias for pair in seen}
    found += [_unseen(agent) for agent in settings.agents if agent.alias in unseen]
    return sorted(found, key=lambda one: one.alias)


def outlook(
    connection: "Connection", settings: "Settings", alias: str, now: datetime
) -> Outlook | None:
    """The one of an agent; None where nothing of it was recorded."""
    pairs = (pair for pair in agents.present(connection) if pair.alias == alias)
    pair = next(pairs, None)
    return None if pair is None else _outlook(connection, settings, pair, now)


def step_of(connection: "Connection", cycle: CycleRow) -> str | None:
    """What a cycle needs next; None where it is over."""
    if cycle.outcome is not None:
        return None
    bases = {pair.alias: pair.base for pair in agents.present(connection)}
    pair = Pair(cycle.alias, bases.get(cycle.alias, cycle.base))
    found = following(view_of(standing(connection, cycle), pair))
    return ENDING if isinstance(found, Ended) else found.value


def entered(held: CycleStanding) -> str | None:
    """When the last thing happened that brought a cycle to where it is."""
    cycle, job, adapter = held.cycle, held.job, held.adapter
    moments = (
        cycle.started, cycle.diagnosed, cycle.directed,
        None if job is None else job.requested, None if job is None else job.ended,
        None if adapter is None else adapter.since,
    )  # fmt: skip
    return max((one for one in moments if one is not None), default=None)


def _outlook(connection: "Connection", settings: "Settings", pair: Pair, now: datetime) -> Outlook:
    environment = environment_of(settings, pair.alias)
    if environment is None:
        found: Due | Waiting = no_environment(pair.alias)
    else:
        counted = scheduling(connection, pair.alias, pair.base, now)
        found = decide(facts_of(counted, pair, environment), settings.scheduler, now)
    cycle = learning.open_cycle(connection, pair.alias)
    return Outlook(
        alias=pair.alias,
        base=pair.base,
        environment=environment,
        due=isinstance(found, Due),
        missing=() if isinstance(found, Due) else found.missing,
        cycle=None if cycle is None else cycle.cycle,
        step=None if cycle is None else step_of(connection, cycle),
    )


def _unseen(agent: "Agent") -> Outlook:
    missing = (f"rollouts of {agent.alias}: none is recorded",)
    return Outlook(
        agent.alias, None, agent.environment, due=False, missing=missing, cycle=None, step=None
    )
