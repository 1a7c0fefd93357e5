"""Build the spec of a cycle's job from settings, agent and pools of tasks. Pure.

Guarantee: the spec fixes everything that the result depends on. Random draws follow from the job's
id, so a repeated request gives the same job.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal
from uuid import UUID

from daemon.config.presets import PRESETS, build_loop_algorithm, preset
from daemon.jobs.learning_rate import (
    compute_training_rate,
    compute_warm_start_epochs,
    compute_warm_start_rate,
)
from envs.registry import locate
from events.envelope import derive_id
from events.errors import KintsugiError
from events.jobs import (
    EndpointSource,
    InProcessSource,
    JobRounds,
    JobSpec,
    KnownPattern,
    Limits,
    LoraSettings,
    ModelUser,
    OptimizerSettings,
    Probe,
    Sampler,
    SftSettings,
    TaskPool,
    VllmSource,
    WarmStart,
)

if TYPE_CHECKING:
    from daemon.config.settings import Agent, Proposer, Training

_SEED_BITS: Final = 48
_UNLIMITED: Final = Limits(kl=None, entropy_factor=None, malformed_factor=None)
"""Limits that never stop a job: only a broken update does, and the gate judges its adapter."""


class NotTrainable(KintsugiError):
    """No job can be built with these settings; the text says why."""


def build_job_spec(
    training: "Training",
    agent: "Agent",
    *,
    job: str,
    base: str,
    pools: Sequence[TaskPool],
    benchmarks: Path | None = None,
    environments: Sequence[Path] = (),
    parent: Path | None = None,
    parameters: int | None = None,
    successes: str | None = None,
    rounds: JobRounds | None = None,
    user: ModelUser | None = None,
) -> JobSpec:
    """Return the spec of a cycle's job. `environments` are the settings' paths. `parent` is the
    folder of the adapter to train on from, None for the base. `parameters` is the base's number of
    weights, for unset rates (learning_rate.needs_size). `successes` is the sha256 of the pools'
    successes. `rounds` are plan_rounds'. `user` plays the users; None: the environment's own. Raise
    NotTrainable, UnknownEnvironment, EnvironmentBroken."""
    if agent.environment is None or agent.checkpoint is None:
        lacking = "environment" if agent.environment is None else "checkpoint"
        raise NotTrainable(
            f"agent {agent.alias} has no {lacking}, so nothing can be trained for it; name one in "
            "the setting agents"
        )
    training, lora = _apply_recipe(training)
    algorithm = (
        preset(training.algorithm) if training.algorithm else build_loop_algorithm(training.kl)
    )
    warm = None
    if training.warm_start != "off":
        marked = _mark_references(pools, training)
        # A pool with a single task has no reference to show.
        if successes or any(pool.references for pool in marked if not pool.replay):
            pools = marked
            warm = _warm_start(training, training.warm_start, parameters, successes)
    return JobSpec(
        job=job,
        base=base,
        checkpoint=str(agent.checkpoint),
        parent=None if parent is None else str(parent),
        environment=locate(agent.environment, environments),
        benchmarks=None if benchmarks is None else str(benchmarks),
        pools=tuple(_name_user(pool, user) for pool in pools),
        seed=seed_of(job),
        sampler=_sampler(training, base),
        probe=Probe(groups=training.probe_groups, below=training.probe_below),
        warm_start=warm,
        rounds=rounds,
        algorithm=algorithm,
        optimizer=OptimizerSettings(lr=_resolve(training.lr, compute_training_rate, parameters)),
        lora=lora,
        limits=_UNLIMITED,
        device=training.device,
        dtype=training.dtype,
        threads=training.threads,
    )


def _name_user(pool: TaskPool, user: ModelUser | None) -> TaskPool:
    """Return the pool with a model that plays its users. Pools of another environment, and pools
    that reward only the repair of the first call, stay as they are."""
    if user is None or pool.environment is not None or pool.reward == "repair":
        return pool
    return pool.model_copy(update={"user": user})


def _apply_recipe(training: "Training") -> tuple["Training", LoraSettings]:
    """Return the settings, with the numbers of the algorithm's published recipe if they ask so."""
    recipe = PRESETS[training.algorithm].recipe if training.recipe == "published" else None
    if recipe is None:
        return training, LoraSettings(rank=training.lora_rank, alpha=training.lora_alpha)
    numbers = {"groups": recipe.groups, "size": recipe.size, "lr": recipe.lr}
    return training.model_copy(update=numbers), recipe.lora


def plan_rounds(
    training: "Training",
    proposer: "Proposer",
    *,
    cycle: str,
    alias: str,
    history: int,
    patterns: Sequence[KnownPattern],
    known: Sequence[str],
    aims: Sequence[str] = (),
) -> JobRounds:
    """Return a job's rounds, after each of which it diagnoses its own rollouts. `patterns` are of
    round `history`, `known` are written tasks outside the job's pools, `aims` the patterns of a
    branch's job. Raise NotTrainable for a budget below one batch per round."""
    batches = training.rollouts // (training.groups * training.size)
    if batches < training.rounds:
        raise NotTrainable(
            f"training.rounds is {training.rounds}, and training.rollouts ({training.rollouts}) "
            f"has {batches} batches of {training.groups * training.size}; lower training.rounds"
        )
    return JobRounds(
        count=training.rounds,
        cycle=cycle,
        alias=alias,
        history=history,
        tasks=proposer.tasks,
        explore=proposer.explore,
        replay=proposer.replay,
        patterns=tuple(patterns),
        known=tuple(known),
        aims=tuple(aims),
    )


def name_capability(pools: Sequence[TaskPool], kind: Callable[[str], str]) -> str:
    """Return the most frequent kind among the targeted tasks; of equals, the first by name."""
    counts = Counter(kind(task) for pool in pools if not pool.replay for task in pool.tasks)
    return min(counts, key=lambda name: (-counts[name], name))


def seed_of(job: str) -> int:
    """Return the seed from which all random draws of a job follow."""
    return UUID(derive_id(job, "seed")).int >> (128 - _SEED_BITS)


def _sampler(training: "Training", base: str) -> Sampler:
    return Sampler(
        groups=training.groups,
        size=training.size,
        rollouts=training.rollouts,
        temperature=training.temperature,
        max_tokens=training.max_tokens,
        momentum=training.momentum,
        source=_source(training, base),
    )


def _source(training: "Training", base: str) -> InProcessSource | VllmSource | EndpointSource:
    match training.source:
        case "in_process":
            return InProcessSource()
        case "vllm":
            return VllmSource(kind="vllm")
        case "endpoint":
            if not training.endpoint:
                raise NotTrainable(
                    "training.source is endpoint, and training.endpoint names none; name the URL "
                    "of an engine, or have the job itself play (in_process)"
                )
            return EndpointSource(
                kind="endpoint",
                url=training.endpoint,
                model=base,
                max_requests_per_second=training.requests_per_second,
            )


def _warm_start(
    training: "Training",
    mode: Literal["auto", "always"],
    parameters: int | None,
    successes: str | None,
) -> WarmStart:
    lr = _resolve(training.warm_start_lr, compute_warm_start_rate, parameters)
    epochs = _resolve(training.warm_start_epochs, compute_warm_start_epochs, parameters)
    sft = SftSettings(
        optimizer=OptimizerSettings(lr=lr), epochs=round(epochs), warmup=0.1, schedule="linear"
    )
    return WarmStart(mode=mode, sft=sft, successes=successes)


def _resolve(setting: float | None, rule: Callable[[int], float], parameters: int | None) -> float:
    """Return the setting; if it is None, compute it from the base's size. Raise NotTrainable."""
    if setting is not None:
        return setting
    if parameters is None:
        raise NotTrainable(
            "learning rates are unset and the size of the base is unknown; set training.lr, and "
            "for a warm start training.warm_start_lr and training.warm_start_epochs"
        )
    return rule(parameters)


def _mark_references(pools: Sequence[TaskPool], training: "Training") -> list[TaskPool]:
    """Return the pools with references, which are shown and not drawn. A targeted pool shows its
    newest tasks. A replay pool shows tasks from all of it, since it is ordered by names."""
    counts = _count_references(pools, training)
    marked_pools = []
    for pool in pools:
        size, count = len(pool.tasks), counts[pool.name]
        if not pool.references and count:
            first = size - count
            places = {n * size // count if pool.replay else first + n for n in range(count)}
            changes = {
                "tasks": tuple(task for n, task in enumerate(pool.tasks) if n not in places),
                "references": tuple(pool.tasks[n] for n in sorted(places)),
            }
            pool = pool.model_copy(update=changes)
        marked_pools.append(pool)
    return marked_pools


def _count_references(pools: Sequence[TaskPool], training: "Training") -> dict[str, int]:
    """Return how many tasks of each pool a warm start shows: at most half of a pool, and in all at
    most `references_most` of the budget less a batch. Replay shows as many as the targets, by
    shares: a policy that sees targets alone unlearns requests in the same words."""
    wanted = {
        pool.name: min(training.references, len(pool.tasks) // 2)
        for pool in pools
        if not pool.replay
    }
    batch = training.groups * training.size
    budget = min(int(training.rollouts * training.references_most), training.rollouts - batch)
    whole = sum(pool.share for pool in pools if pool.replay)
    most = max(0, budget) // (2 if whole else 1)
    shown = sum(wanted.values())
    counts = {name: count * min(most, shown) // max(1, shown) for name, count in wanted.items()}
    shown = sum(counts.values())
    for pool in pools:
        if pool.replay:
            counts[pool.name] = min(int(shown * pool.share / whole), len(pool.tasks) // 2)
    return counts
