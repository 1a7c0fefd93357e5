"""Request the job that trains an adapter to play an agent's users (role `schedule`).

Recorded dialogues come first (dialogues.py). Dialogues of the environment's oracle with its exact
user fill up to `improve.users_dialogues`, and `HELD_OUT` further ones are for early stopping.
Generated tasks have seeds of written tasks, from which neither traffic, reports nor gates draw. All
random choices follow from the job's id, so a repeated request is the same one. The id follows from
agent, base and the attempt's number, so two leaders at once request one job, without a cycle.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import TYPE_CHECKING, Final

from consumers.reads.evidence import PassedRollout
from daemon.adapters.compatibility import BadBase, count_parameters
from daemon.core.task_definitions import with_definitions
from daemon.cycle.estimate import read_job_budget
from daemon.cycle.proposal import FreeRequest, Skip
from daemon.jobs.learning_rate import Points, compute_warm_start_epochs, interpolate
from daemon.methods.synthesis.users.dialogues import choose_dialogues, offer_dialogues
from daemon.methods.synthesis.users.players import list_manners
from daemon.methods.synthesis.users.state_machine import UserStep
from daemon.methods.synthesis.users.views import UserState, name_environment, read_user_state
from daemon.proposer.candidate import FIRST_SEED, LAST_SEED
from envs.registry import EnvironmentBroken, UnknownEnvironment, locate, open_place
from events.envelope import derive_id
from events.errors import KintsugiError
from events.jobs import (
    JobSpec,
    LoraSettings,
    OptimizerSettings,
    Sampler,
    SftSettings,
    TaskPool,
    WarmStart,
)
from events.learning import JobRequested

if TYPE_CHECKING:
    from datetime import datetime

    from consumers.diagnosis.round_counts import Pair
    from daemon.config.settings import Agent, Training
    from daemon.core.app import App
    from envs.environment import Environment

POOL: Final = "users"
"""Name of the job's only pool."""
HELD_OUT: Final = 64
"""Number of dialogues for early stopping."""
_SEED_BITS: Final = 48
_RATES: Final[Points] = ((1e7, 3e-3), (1e9, 1e-4), (1e10, 2e-5))
"""Learning rate by the base's number of parameters; above 10 M it equals a warm start's."""
_DIALOGUES: Final[Points] = ((1e7, 8192.0), (1e9, 512.0))
"""Number of a job's dialogues by the base's number of parameters."""
MANNERS_DIALOGUES: Final = 2
"""Factor on the dialogues of a job that trains on in all manners."""
MANNERS_RATE: Final = 2 / 3
"""Factor on the learning rate of a job that trains on in all manners."""
_BATCH_TOKENS: Final = 2048
"""Tokens of a step, read and written ones; most tokens of a dialogue are read."""
_SMALL: Final = 10_000_000
"""Most parameters of a base that is trained like the one measured in docs/LOG.md."""
_SMALL_RANK: Final = 32
_HEAD: Final = "lm_head"


class NoUserJob(KintsugiError):
    """No job can be built with these settings."""


@dataclass(frozen=True, slots=True)
class Parent:
    """The adapter that a job trains on from, if it trains the same weights."""

    folder: str
    lora: LoraSettings | None
    """LoRA settings of the job that made it, or None."""


def build_user_spec(
    app: "App",
    agent: "Agent",
    job: str,
    base: str,
    dialogues: Sequence[PassedRollout],
    parent: Parent | None = None,
) -> JobSpec:
    """Return the spec of a job that learns from these dialogues, given newest first.

    A base's first job learns the generator's words. If plans write tasks, the next one trains on in
    all manners: a small base that begins with all of them learns no values. Raise NoUserJob,
    UnknownEnvironment, EnvironmentBroken, EnvironmentFailure, BlobUnavailable.
    """
    assert agent.environment is not None, "an agent without an obstacle has an environment"
    assert agent.checkpoint is not None, "an agent without an obstacle has a checkpoint"
    settings = app.settings
    training, manners = settings.training, () if parent is None else list_manners(settings)
    most = settings.improve.users_dialogues
    if most is None:
        most = compute_user_dialogues(_count_parameters(agent), manners=bool(manners))
    environment = with_definitions(
        app,
        open_place(
            agent.environment, benchmarks=settings.benchmarks, paths=settings.environments.paths
        ),
    )
    offer = offer_dialogues(app, environment, dialogues, most)
    chance = Random(f"user job {job}").getrandbits(_SEED_BITS)
    count = most - len(offer.rollouts)
    gold = _draw_tasks(environment, agent.traffic, chance, HELD_OUT + count)
    pool = TaskPool(
        name=POOL, tasks=gold[:HELD_OUT], references=gold[HELD_OUT:], successes=offer.rollouts
    )
    benchmarks, lora = settings.benchmarks, _build_lora(training, agent)
    return JobSpec(
        job=job,
        base=base,
        checkpoint=str(agent.checkpoint),
        environment=locate(agent.environment, settings.environments.paths),
        benchmarks=None if benchmarks is None else str(benchmarks),
        teaches="user",
        dialogues=offer.sha256,
        dialogue_count=len(dialogues),
        manners=manners,
        parent=parent.folder if parent is not None and parent.lora == lora else None,
        pools=(pool,),
        seed=chance,
        sampler=Sampler(groups=1, size=2, rollouts=most + 2),
        warm_start=WarmStart(
            mode="always",
            successes=offer.sha256,
            sft=_build_sft(training, agent, manners=bool(manners)),
        ),
        grpo=False,
        lora=lora,
        device=training.device,
        dtype=training.dtype,
        threads=training.threads,
    )


def compute_user_rate(parameters: int, *, manners: bool = False) -> float:
    """Return the learning rate for a base of this size; `manners`: to train on in all manners."""
    return interpolate(_RATES, parameters) * (MANNERS_RATE if manners else 1)


def compute_user_dialogues(parameters: int, *, manners: bool = False) -> int:
    """Return the number of a job's dialogues for a base of this size; `manners` as above."""
    return round(interpolate(_DIALOGUES, parameters) * (MANNERS_DIALOGUES if manners else 1))


def _draw_tasks(
    environment: "Environment", traffic: dict[str, float], chance: int, count: int
) -> tuple[str, ...]:
    """Return ids of generated tasks with seeds for written ones, in the traffic's shares."""
    shares = traffic or dict.fromkeys(environment.capabilities, 1.0)
    first = FIRST_SEED + chance % (LAST_SEED - FIRST_SEED - count)
    return tuple(task.id for task in islice(environment.mixture(shares, chance, first), count))


def _build_sft(training: "Training", agent: "Agent", *, manners: bool) -> SftSettings:
    """Return the training settings: a warm start's, or by the base's size. Raise NoUserJob."""
    lr, epochs = training.warm_start_lr, training.warm_start_epochs
    if lr is None or epochs is None:
        parameters = _count_parameters(agent)
        lr = compute_user_rate(parameters, manners=manners) if lr is None else lr
        epochs = compute_warm_start_epochs(parameters) if epochs is None else epochs
    return SftSettings(
        optimizer=OptimizerSettings(lr=lr),
        epochs=round(epochs),
        batch_tokens=_BATCH_TOKENS,
        warmup=0.05,
        schedule="linear",
    )


def _build_lora(training: "Training", agent: "Agent") -> LoraSettings:
    """Return the weights to train: in a small base, which never wrote a customer's words, the head
    too, at rank `_SMALL_RANK` or more. A base that cannot be counted is quantised, and not small.
    """
    assert agent.checkpoint is not None, "an agent without an obstacle has a checkpoint"
    own = LoraSettings(rank=training.lora_rank, alpha=training.lora_alpha)
    try:
        small = count_parameters(agent.checkpoint) <= _SMALL
    except BadBase:
        small = False
    if not small:
        return own
    rank = max(own.rank, _SMALL_RANK)
    return LoraSettings(rank=rank, alpha=own.alpha * rank / own.rank, targets=(*own.targets, _HEAD))


def _count_parameters(agent: "Agent") -> int:
    """Return the base's number of weights. Raise NoUserJob."""
    assert agent.checkpoint is not None, "an agent without an obstacle has a checkpoint"
    try:
        return count_parameters(agent.checkpoint)
    except BadBase as error:
        raise NoUserJob(
            f"neither a learning rate nor a number of dialogues follows from the base: {error}; "
            "set training.warm_start_lr, training.warm_start_epochs and improve.users_dialogues"
        ) from error


def _find_parent(state: UserState) -> Parent | None:
    """Return the adapter to train on from: it passed its gate with the generator's words."""
    row = state.plays
    if row is None:
        return None
    lora = next((job.spec.lora for job in state.jobs if job.job == row.job), None)
    return Parent(row.path, lora)


def build_request(app: "App", pair: "Pair") -> FreeRequest | None:
    """Return the due request, or None. Raise NoUserJob, UnknownEnvironment, EnvironmentBroken."""
    settings = app.settings
    with app.reading() as connection:
        state = read_user_state(connection, settings, pair)
        if state.step is not UserStep.REQUEST:
            return None
        environment = name_environment(settings, pair.alias)
        dialogues = choose_dialogues(connection, pair.alias, environment)
    agent = settings.find_agent(pair.alias)
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
    """Return the request if it is due within the day's budget. Raise Skip if none is possible."""
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
