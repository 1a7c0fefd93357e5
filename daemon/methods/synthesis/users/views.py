"""Read the state of the adapters that play an agent's users.

Leader, role `work` and status document read within one `database.read_transaction`, so they agree.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from consumers.reads import learning, serving
from daemon.methods.synthesis.users.dialogues import count_dialogues
from daemon.methods.synthesis.users.players import find_obstacle, has_manners, read_environment
from daemon.methods.synthesis.users.state_machine import (
    LEAST_DIALOGUES,
    LastAttempt,
    NoUserStep,
    UserStep,
    UserView,
    next_user_step,
)
from events.lifecycle import WAITING, State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from consumers.diagnosis.round_counts import Pair
    from consumers.reads.learning import JobRow
    from consumers.reads.serving import AdapterRow
    from daemon.config.settings import Settings


@dataclass(frozen=True, slots=True)
class UserState:
    """An agent's adapters that play users, on its present base, and the next step."""

    alias: str
    base: str
    view: UserView
    step: UserStep | NoUserStep
    plays: "AdapterRow | None"
    """The adapter that passed its gate."""
    candidate: "AdapterRow | None"
    """The adapter to measure next."""
    outdated: "tuple[AdapterRow, ...]"
    jobs: "tuple[JobRow, ...]"
    """Jobs that trained an adapter for users on this base, in the order of their requests."""


def read_user_state(connection: "Connection", settings: "Settings", pair: "Pair") -> UserState:
    """Return the state of an agent's users; `pair` names the agent's present base."""
    setting = settings.improve.users
    rows = serving.list_user_adapters(connection, pair.alias)
    own = [row for row in rows if row.base == pair.base]
    # An adapter that passed its gate on another base plays again if that base comes back.
    given_up = WAITING - {State.GATED}
    outdated = tuple(row for row in rows if row.base != pair.base and row.state in given_up)
    plays = next((row for row in own if row.state is State.GATED), None)
    candidate = next((r for r in own if r.state in (State.PRODUCED, State.STAGED)), None)
    jobs = learning.list_user_jobs(connection, pair.alias, pair.base)
    obstacle = find_obstacle(settings, pair.alias) or ""
    dialogues, last = 0, None
    if setting == "trained" and not obstacle:
        environment = name_environment(settings, pair.alias)
        dialogues = count_dialogues(connection, pair.alias, environment)
        last = _read_last(connection, jobs)
    view = UserView(
        setting=setting,
        obstacle=obstacle,
        outdated=tuple(row.adapter for row in outdated),
        plays=None if plays is None else plays.adapter,
        lacks_manners=plays is not None and not has_manners(settings, plays),
        is_staged=plays is not None and bool(plays.replicas),
        candidate=None if candidate is None else candidate.adapter,
        job=next((job.job for job in jobs if job.outcome is None), None),
        last=last,
        dialogues=dialogues,
    )
    step = next_user_step(view)
    return UserState(*pair, view, step, plays, candidate, outdated, tuple(jobs))


def name_environment(settings: "Settings", alias: str) -> str:
    """Return the name of an agent's environment. Raise UnknownEnvironment, EnvironmentBroken."""
    agent = settings.find_agent(alias)
    assert agent is not None, "an agent without an obstacle is in the settings"
    assert agent.environment is not None, "an agent without an obstacle has an environment"
    paths = settings.environments.paths
    return read_environment(agent.environment, settings.benchmarks, paths).name


def _read_last(connection: "Connection", jobs: "Sequence[JobRow]") -> LastAttempt | None:
    """Return the newest attempt if it failed, else None."""
    if not jobs or jobs[-1].outcome is None:
        return None
    job = jobs[-1]
    row = serving.read_job_adapter(connection, job.job)
    if row is not None and row.state in WAITING:
        return None
    # Read from the spec and not from times, since a clock may have been set back since.
    there = max(job.spec.dialogue_count or 0, LEAST_DIALOGUES)
    return LastAttempt(len(jobs), there, _explain_failure(job, row))


def _explain_failure(job: "JobRow", row: "AdapterRow | None") -> str:
    if row is None:
        return f"its job ended, {job.outcome}: {job.reason}"
    gate = row.role_gate
    if gate is not None and not gate.passed:
        return f"{row.adapter} failed its gate: {gate.reason}"
    return f"{row.adapter} is {row.state}: {row.reason}"
