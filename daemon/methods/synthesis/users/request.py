"""Request the job that trains an adapter to play an agent's users (role `schedule`).

    request = build_request(app, pair)      the event, or None where no job is due

What it learns from follows from the log, and its id from agent, base and the number of the attempt,
so a leader that was killed, or two at once, request it once. Guarantee: no cycle names the job.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from daemon.methods.synthesis.users.dialogues import choose_dialogues
from daemon.methods.synthesis.users.players import find_agent
from daemon.methods.synthesis.users.spec import Parent, build_user_spec
from daemon.methods.synthesis.users.state_machine import UserStep
from daemon.methods.synthesis.users.views import UserState, name_environment, read_user_state
from events.envelope import derive_id
from events.learning import JobRequested

if TYPE_CHECKING:
    from consumers.diagnosis.round_counts import Pair
    from daemon.core.app import App


@dataclass(frozen=True, slots=True)
class UserJobRequest:
    """A job that is to be requested."""

    event: str
    """Id of the event."""
    data: JobRequested


def _find_parent(state: UserState) -> Parent | None:
    """Return the adapter from which the job trains on: the one that passed its gate in the words of
    the generator alone."""
    row = state.plays
    if row is None:
        return None
    lora = next((job.spec.lora for job in state.jobs if job.job == row.job), None)
    return Parent(row.path, lora)


def build_request(app: "App", pair: "Pair") -> UserJobRequest | None:
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
    return UserJobRequest(derive_id("user job requested", job), request)
