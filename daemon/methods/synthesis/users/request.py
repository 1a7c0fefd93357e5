"""Request the job that trains an adapter to play an agent's users (role `schedule`).

    build_request(app, pair)            the request, or None where no job is due
    find_due_request(app, pair, now)    the same, if the budget of the day allows it

What it learns from follows from the log, and its id from agent, base and the number of the attempt,
so a leader that was killed, or two at once, request it once. Guarantee: no cycle names the job.
"""

from typing import TYPE_CHECKING

from daemon.cycle.estimate import read_job_budget
from daemon.cycle.proposal import FreeRequest, Skip
from daemon.methods.synthesis.users.dialogues import choose_dialogues
from daemon.methods.synthesis.users.players import find_agent
from daemon.methods.synthesis.users.spec import NoUserJob, Parent, build_user_spec
from daemon.methods.synthesis.users.state_machine import UserStep
from daemon.methods.synthesis.users.views import UserState, name_environment, read_user_state
from envs.registry import EnvironmentBroken, UnknownEnvironment
from events.envelope import derive_id
from events.learning import JobRequested

if TYPE_CHECKING:
    from datetime import datetime

    from consumers.diagnosis.round_counts import Pair
    from daemon.core.app import App


def _find_parent(state: UserState) -> Parent | None:
    """Return the adapter from which the job trains on: the one that passed its gate in the words of
    the generator alone."""
    row = state.plays
    if row is None:
        return None
    lora = next((job.spec.lora for job in state.jobs if job.job == row.job), None)
    return Parent(row.path, lora)


def build_request(app: "App", pair: "Pair") -> FreeRequest | None:
    """Return the request of the job that is due for the users of an agent; None where none is.
    Raises NoUserJob, UnknownEnvironment, EnvironmentBroken."""
    settings = app.settings
    with app.reading() as connection:
        state = read_user_state(connection, settings, pair)
        if state.step is not UserStep.REQUEST:
            return None
        environment = name_environment(settings, pair.alias)
        dialogues = choose_dialogues(connection, pair.alias, environment)
    agent = find_agent(settings, pair.alias)
    assert agent is not None, "an agent without an obstacle is in the settings"
    attempt = str(len(state.jobs) + 1)
    job = derive_id("user job", pair.alias, pair.base, attempt)
    spec = build_user_spec(app, agent, job, pair.base, dialogues, _find_parent(state))
    request = JobRequested(
        job=job, alias=pair.alias, base=pair.base, spec=spec, minutes=settings.jobs.minutes
    )
    says = f"a job that trains who plays the users of {pair.alias} was requested"
    return FreeRequest(derive_id("user job requested", job), request, says)


def find_due_request(app: "App", pair: "Pair", now: "datetime") -> FreeRequest | None:
    """Return the request of the job that is due for the users of an agent; None where none is, or
    the budget of the day has no room for it. Raises Skip where no job can be specified."""
    settings = app.settings
    with app.reading() as connection:
        if read_user_state(connection, settings, pair).step is not UserStep.REQUEST:
            return None
        if read_job_budget(connection, settings, pair, now).find_refusal(1):
            return None
    try:
        return build_request(app, pair)
    except (EnvironmentBroken, NoUserJob, UnknownEnvironment) as error:
        says = f"no job trains who plays the users of {pair.alias}: {error}"
        raise Skip(says) from error
