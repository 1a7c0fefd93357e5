"""Describe which model plays each agent's users, and why an adapter does not, for display."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from consumers.diagnosis.round_counts import Pair
from consumers.reads import agents
from consumers.reads.evidence import count_session_successes
from daemon.adapters.compatibility import read_rank
from daemon.adapters.directory import BadAdapter
from daemon.cycle.estimate import read_job_budget
from daemon.methods.synthesis.users.players import find_user
from daemon.methods.synthesis.users.state_machine import NoUserStep, UserStep
from daemon.methods.synthesis.users.views import UserState, name_environment, read_user_state
from events.envelope import utc_now
from events.jobs import AdapterUser, ModelUser

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from consumers.reads.serving import AdapterRow
    from daemon.config.settings import Settings
    from daemon.core.app import App

_DEFAULT_MAX_RANK: Final = 16
"""vLLM's default of --max-lora-rank."""
SCRIPT = "script"
"""Name that stands for users without a model."""


@dataclass(frozen=True, slots=True)
class UserPractice:
    """The player of an agent's users (script, model or adapter), and why it plays."""

    alias: str
    base: str
    setting: str
    """Value of the setting `improve.users`."""
    plays: str
    """Name of the model or adapter, with the number of its candidates; or `script`."""
    step: str | None
    """Next step for the adapter that is to play them, or None."""
    dialogues: int
    """Number of accepted dialogues that a job could learn from."""
    persons: int
    """Number of sessions with persons that passed; no job learns from them."""
    says: str
    """A sentence on what plays the users, with the reason if the trained adapter does not."""


def read_user_practices(connection: "Connection", settings: "Settings") -> list[UserPractice]:
    """Return what plays the users of each agent that was seen, ordered by alias."""
    practices = []
    for pair in sorted(agents.present(connection)):
        state = read_user_state(connection, settings, pair)
        user = find_user(connection, settings, pair.alias, pair.base)
        plays = SCRIPT if user is None else user.simulator
        persons = _count_persons(connection, settings, state)
        practices.append(
            UserPractice(
                alias=pair.alias,
                base=pair.base,
                setting=settings.improve.users,
                plays=plays,
                step=state.step.value if isinstance(state.step, UserStep) else None,
                dialogues=state.view.dialogues,
                persons=persons,
                says=_describe(settings, state, plays, persons)
                + _describe_candidates(settings, user)
                + _describe_rounds(settings, plays),
            )
        )
    return practices


def _count_persons(connection: "Connection", settings: "Settings", state: UserState) -> int:
    """Count the passed sessions with persons; 0 if no adapter can be trained."""
    if state.view.setting != "trained" or state.view.obstacle:
        return 0
    environment = name_environment(settings, state.alias)
    return count_session_successes(connection, state.alias, environment)


def _describe(settings: "Settings", state: UserState, plays: str, persons: int) -> str:
    if state.view.setting != "trained":
        obstacle = state.view.obstacle
        return f"{plays} plays them" + (f": {obstacle}" if obstacle else "")
    if plays != SCRIPT:
        return f"{plays} plays them, trained and through its gate"
    sentence = f"the {SCRIPT} plays them: {_explain_script(settings, state)}"
    if persons:
        sentence += (
            f"; {persons:,} sessions with persons passed and teach none, for no "
            "job is handed what persons said"
        )
    return sentence


def _describe_candidates(settings: "Settings", user: ModelUser | None) -> str:
    setting = settings.improve.users_candidates
    if not isinstance(user, AdapterUser) or user.candidates == setting:
        return ""
    return (
        f"; it was measured with {user.candidates} candidates and so plays with them, and "
        f"improve.users_candidates = {setting} is for the next one"
    )


def _describe_rounds(settings: "Settings", plays: str) -> str:
    rounds = settings.training.rounds
    if plays == SCRIPT or rounds == 1:
        return ""
    return (
        f"; jobs have one round and not {rounds} (training.rounds), for rounds within a job "
        "diagnose rollouts with the environment's own user alone"
    )


def _explain_rank(settings: "Settings", row: "AdapterRow") -> str:
    """Return a clause on what engines need if the rank exceeds their limits or vLLM's default."""
    try:
        rank = read_rank(settings.adapter_paths.locate(row.path))
    except BadAdapter as error:
        return f": {error}"
    limits = [upstream.max_lora_rank for upstream in settings.upstreams]
    least = min((limit for limit in limits if limit is not None), default=None)
    if least is not None and rank > least:
        return (
            f"; its rank is {rank}, and upstreams[].max_lora_rank is {least}: start the engine "
            f"with --max-lora-rank {rank}, and set it to that"
        )
    if rank <= _DEFAULT_MAX_RANK or (limits and None not in limits):
        return ""
    return (
        f"; its rank is {rank}, and vLLM takes {_DEFAULT_MAX_RANK} at most unless it is started "
        f"with --max-lora-rank {rank} (then set upstreams[].max_lora_rank, too)"
    )


def _explain_script(settings: "Settings", state: UserState) -> str:
    view = state.view
    match state.step:
        case NoUserStep(reason):
            return reason
        case UserStep.RETIRE:
            return f"{', '.join(view.outdated)} of another base goes out of service first"
        case UserStep.EVALUATE:
            return f"{view.candidate} plays its gate now"
        case UserStep.STAGE:
            assert state.plays is not None, "something is to be staged"
            return (
                f"{view.plays} passed its gate, and every replica is to load it next"
                f"{_explain_rank(settings, state.plays)}"
            )
        case UserStep.TRAIN:
            return f"job {view.job} trains one now"
        case UserStep.REQUEST:
            return f"a job learns from {view.dialogues:,} accepted dialogues next"


def read_user_documents(app: "App", connection: "Connection") -> list[dict[str, Any]]:
    """Return the practices as documents; a due request tells what the day's budget allows."""
    documents = []
    for practice in read_user_practices(connection, app.settings):
        document = asdict(practice)
        if practice.step == UserStep.REQUEST.value:
            pair = Pair(practice.alias, practice.base)
            budget = read_job_budget(connection, app.settings, pair, utc_now())
            if (refusal := budget.find_refusal(1)) is not None:
                document["says"] += f", once the budget of the day allows it: {refusal}"
        documents.append(document)
    return documents
