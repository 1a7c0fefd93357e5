"""From the data engine's tasks to jobs: the user's, the supervised and both reinforced ones.

    write-tasks    accepted tasks, in a file of bodies
    user           learns from some of the oracle's dialogues with the exact user
    sft            learns from some of the oracle's trajectories
    rl_base_user   continues sft on the other tasks; the base at the endpoint plays the user
    rl_tuned_user  the same; the user's adapter plays it, in the same engine

No training task has the calls of an evaluated one. The tuned user plays even if it fails its gate,
as the report then states: the table is about its effect.
"""

from collections import Counter
from itertools import islice
from random import Random
from typing import Any, Final
from urllib.parse import urlsplit

from daemon.adapters.directory import WEIGHTS, verify
from daemon.config.settings import Models, ProposerModel, Training
from daemon.evaluation.run import Selection
from daemon.methods.synthesis.engine import Parts, make_parts, synthesize
from daemon.methods.synthesis.manners import MANNERS
from daemon.methods.synthesis.models.parts import make_model_parts
from daemon.methods.synthesis.stages import SynthesisRequest
from daemon.methods.synthesis.users.trial import UserPlan
from daemon.proposer.candidate import FIRST_SEED, LAST_SEED, Evaluation
from daemon.solver.journal import parse_definitions, write_definitions
from daemon.solver.spec import list_tasks
from envs.environment import Environment
from events.errors import KintsugiError
from events.jobs import AdapterUser, EndpointUser, JobSpec, TaskPool
from events.learning import TaskProposed, TaskRejected
from events.synthesis.plans import PlansRevised, PlansWritten
from ops.reproduce.areal_sea.commands import USER, find_gate, find_tasks, name_stage
from ops.reproduce.areal_sea.settings import PRESET, TRAINING_TEMPERATURE, Reproduction
from ops.reproduce.commands import Document, Folder, write_model
from ops.reproduce.homes import ALIAS, build_settings, open_plan_environment
from ops.reproduce.jobs import build_spec, build_training, change_spec, reinforce, write_job

_ROUNDS: Final = 3
_LINE_TOKENS: Final = 256
"""Least token limit of a user's line, which may be longer than a small agent's answer."""
_POOL: Final = "written"
_LEAST: Final = 4


class NoTasks(KintsugiError):
    """The data engine gave too few tasks to train on."""


def write_tasks(plan: Reproduction, folder: Folder, domain: str) -> Document:
    """Run the data engine and write the accepted tasks to a file. Raise NoTasks."""
    environment = open_plan_environment(plan.select_domain(domain))
    bodies: dict[str, str] = {}
    evaluated = list(Selection(plan.split, plan.counts.tasks).tasks(environment, plan.seed))
    environment.use_definitions(bodies.get)
    request = SynthesisRequest(
        cycle=f"areal-{domain}-{plan.digest[:8]}",
        alias=ALIAS,
        base=plan.model,
        pattern=domain,
        tasks=plan.counts.written,
        plans=plan.counts.plans,
        rounds=_ROUNDS,
        evaluation=Evaluation(
            signatures=frozenset(
                task.signature for task in evaluated if task.signature is not None
            ),
            definitions=frozenset(task.digest() for task in evaluated),
        ),
        bodies=bodies,
    )
    document: dict[str, Any] = {"plans": 0, "rounds": [], "accepted": []}
    rejected: Counter[str] = Counter()
    for _, data in synthesize(environment, request, _make_parts(plan, folder, environment)):
        if isinstance(data, PlansWritten):
            document |= {"plans": len(data.entries), "trouble": data.trouble}
        elif isinstance(data, PlansRevised):
            kept = sum(revision.kept for revision in data.revisions)
            document["rounds"].append(
                {"tried": len(data.revisions), "kept": kept, "stopped": data.stopped}
            )
        elif isinstance(data, TaskRejected):
            rejected[data.check] += 1
        elif isinstance(data, TaskProposed):
            document["accepted"].append(data.task.id)
    accepted = list(dict.fromkeys(document["accepted"]))
    if len(accepted) < _LEAST:
        raise NoTasks(
            f"{len(accepted)} of {plan.counts.written} tasks of {domain} were accepted, and "
            f"{_LEAST} are needed; rejected: {dict(rejected)}"
        )
    path = find_tasks(folder, domain)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(write_definitions({task: bodies[task] for task in accepted}))
    return document | {"accepted": accepted, "rejected": dict(rejected)}


def _make_parts(plan: Reproduction, folder: Folder, environment: Environment) -> Parts:
    if plan.proposer_model is None:
        return make_parts(environment)
    url = plan.proposer_base_url or plan.base_url
    model = ProposerModel(
        url=url, model=plan.proposer_model, allowed_hosts=(urlsplit(url).hostname or "",)
    )
    settings = build_settings(
        plan.select_domain(environment.name), folder.training, Training()
    ).model_copy(update={"models": Models(proposer=model)})
    parts = make_model_parts(environment, settings)
    assert parts is not None, "the settings name a model"
    return parts


def write_jobs(plan: Reproduction, folder: Folder, domain: str) -> Document:
    """Write the specs of the supervised jobs of user and agent; `write_gate` writes the others."""
    accepted = folder.read(f"write-tasks-{domain}")["accepted"]
    specs = plan_supervised(plan, domain, accepted)
    for name, spec in specs.items():
        _write_job(folder, domain, name, spec)
    return {name: {"tasks": len(list(list_tasks(spec)))} for name, spec in specs.items()}


def write_gate(plan: Reproduction, folder: Folder, domain: str) -> Document:
    """Write the plan of the user's gate, and the specs of the reinforced jobs."""
    accepted = folder.read(f"write-tasks-{domain}")["accepted"]
    user = build_adapter_user(plan, folder, domain)
    environment = open_plan_environment(plan.select_domain(domain))
    trial = UserPlan(
        name=f"gate-{domain}-{plan.digest[:8]}",
        environment=domain,
        benchmarks=None if plan.benchmarks is None else str(plan.benchmarks),
        checkpoint=str(plan.checkpoint),
        alias=ALIAS,
        base=plan.model,
        user=user,
        tasks=draw_tasks(environment, plan, plan.counts.gate),
        manners=tuple(MANNERS),
        seed=plan.seed,
        dtype=plan.dtype,
        threads=plan.threads,
    )
    write_model(find_gate(folder, domain), trial)
    for name, spec in plan_reinforced(plan, folder, domain, accepted, user).items():
        _write_job(folder, domain, name, spec)
    return {"user": user.adapter, "dialogues": len(trial.tasks)}


def build_adapter_user(plan: Reproduction, folder: Folder, domain: str) -> AdapterUser:
    """Return the user that the trained adapter plays. Raise BadAdapter."""
    place = folder.adapter(name_stage(USER, domain))
    return AdapterUser(
        adapter=plan.name_policy(USER, domain),
        folder=str(place),
        sha256=verify(place).files[WEIGHTS],
        max_tokens=max(_LINE_TOKENS, plan.max_tokens),
    )


def draw_tasks(environment: Environment, plan: Reproduction, count: int) -> tuple[str, ...]:
    """Return ids of generated tasks of all kinds for a user's gate."""
    chance = Random(f"areal gate {environment.name} {plan.seed}")
    first = chance.randrange(FIRST_SEED, LAST_SEED - count)
    shares = dict.fromkeys(environment.capabilities, 1.0)
    tasks = islice(environment.mixture(shares, plan.seed, first), count)
    return tuple(task.id for task in tasks)


def plan_supervised(plan: Reproduction, domain: str, accepted: list[str]) -> dict[str, JobSpec]:
    """Return the specs of the supervised jobs of user and agent."""
    counts, whole = plan.counts, _build_whole(plan, domain, accepted)
    spoken = accepted[: counts.dialogues]
    held_out = max(1, len(spoken) // 8)
    (pool,) = whole.pools
    shown = {"references": tuple(spoken[held_out:]), "tasks": tuple(spoken[:held_out])}
    return {
        USER: change_spec(
            plan, whole, name_stage(USER, domain), max(2, len(spoken)),
            teaches="user", grpo=False, pools=(pool.model_copy(update=shown),),
        ),
        "sft": change_spec(
            plan, whole, name_stage("sft", domain), len(pool.references), grpo=False
        ),
    }  # fmt: skip


def plan_reinforced(
    plan: Reproduction, folder: Folder, domain: str, accepted: list[str], user: AdapterUser
) -> dict[str, JobSpec]:
    """Return the specs of the reinforced jobs, which differ only in the user's model."""
    whole = _build_whole(plan, domain, accepted)
    base = EndpointUser(
        url=plan.addresses.user,
        model=plan.user_model or plan.model,
        temperature=0.0,
        max_tokens=max(_LINE_TOKENS, plan.max_tokens),
    )
    return {
        arm: reinforce(
            plan, whole, name_stage(arm, domain), plan.counts.rollouts,
            folder.adapter(name_stage("sft", domain)), PRESET, user=player,
        )
        for arm, player in (("rl_base_user", base), ("rl_tuned_user", user))
    }  # fmt: skip


def _write_job(folder: Folder, domain: str, name: str, spec: JobSpec) -> None:
    bodies = parse_definitions(find_tasks(folder, domain).read_bytes())
    write_job(folder, name_stage(name, domain), spec, bodies)


def _build_whole(plan: Reproduction, domain: str, accepted: list[str]) -> JobSpec:
    counts = plan.counts
    shown = min(counts.shown, len(accepted) // 2)
    training = build_training(
        plan,
        rollouts=counts.rollouts + shown,
        groups=counts.groups,
        size=counts.size,
        temperature=TRAINING_TEMPERATURE,
        warm_start="always",
    )
    pool = TaskPool(name=_POOL, tasks=tuple(accepted[shown:]), references=tuple(accepted[:shown]))
    return build_spec(plan.select_domain(domain), training, pool)
