"""What a cycle's job is told: a spec from settings, agent and pools of tasks (pure).

    spec = build_job_spec(settings.training, agent, job=..., base=..., pools=pools)
    name_capability(pools, kind)     what its adapter is called after

The spec fixes everything that the result depends on; all that is drawn follows from the job's id,
so that a request which is made twice is the same one.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal
from uuid import UUID

from daemon.config.presets import preset
from envs.registry import locate
from events.algorithm import Algorithm, FilterConfig, KlConfig, LossConfig
from events.envelope import derive_id
from events.errors import KintsugiError
from events.jobs import (
    EndpointSource,
    InProcessSource,
    JobSpec,
    Limits,
    LoraSettings,
    OptimizerSettings,
    Probe,
    Sampler,
    SftSettings,
    TaskPool,
    VllmSource,
    WarmStart,
)

if TYPE_CHECKING:
    from daemon.config.settings import Agent, Training

_SEED_BITS: Final = 48
_UNLIMITED: Final = Limits(kl=None, entropy_factor=None, malformed_factor=None)
"""What stops a job is a broken update; whether its adapter is good is for the gate."""


class NotTrainable(KintsugiError):
    """Settings by which no job can be made."""


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
) -> JobSpec:
    """The spec of a cycle's job; `environments` are the paths of the settings, `parent` is the
    folder of the adapter that serves, None where the base does. Raises NotTrainable,
    UnknownEnvironment, EnvironmentBroken."""
    if agent.environment is None or agent.checkpoint is None:
        lacking = "environment" if agent.environment is None else "checkpoint"
        raise NotTrainable(
            f"agent {agent.alias} has no {lacking}, so nothing can be trained for it; name one in "
            "the setting agents"
        )
    warm = None if training.warm_start == "off" else _warm_start(training.warm_start)
    return JobSpec(
        job=job,
        base=base,
        checkpoint=str(agent.checkpoint),
        parent=None if parent is None else str(parent),
        environment=locate(agent.environment, environments),
        benchmarks=None if benchmarks is None else str(benchmarks),
        pools=tuple(pools if warm is None else _mark_references(pools, training.references)),
        seed=seed_of(job),
        sampler=_sampler(training, base),
        probe=Probe(groups=training.probe_groups, below=training.probe_below),
        warm_start=warm,
        algorithm=_algorithm(training),
        optimizer=OptimizerSettings(lr=training.lr),
        lora=LoraSettings(rank=training.lora_rank, alpha=training.lora_alpha),
        limits=_UNLIMITED,
        device=training.device,
        dtype=training.dtype,
        threads=training.threads,
    )


def name_capability(pools: Sequence[TaskPool], kind: Callable[[str], str]) -> str:
    """The most frequent kind among the tasks that shall be learnt; of equals the first by name."""
    counts = Counter(kind(task) for pool in pools if not pool.replay for task in pool.tasks)
    return min(counts, key=lambda name: (-counts[name], name))


def seed_of(job: str) -> int:
    """Return the seed of everything that a job draws; it follows from the id."""
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


def _algorithm(training: "Training") -> Algorithm:
    if training.algorithm:
        return preset(training.algorithm)
    # Groups of one verdict stay for their divergence from the start alone: on replay, that is what
    # keeps the other kinds of task as they are (docs/learning.md).
    kl = KlConfig(estimator="k2", beta=training.kl)
    return Algorithm(loss=LossConfig(kl=kl), filter=FilterConfig(informative=training.kl == 0))


def _warm_start(mode: Literal["auto", "always"]) -> WarmStart:
    sft = SftSettings(optimizer=OptimizerSettings(lr=4e-3), epochs=4, warmup=0.1, schedule="linear")
    return WarmStart(mode=mode, sft=sft)


def _mark_references(pools: Sequence[TaskPool], count: int) -> list[TaskPool]:
    """The pools with references: where there are none, the last of a pool's own tasks, which then
    are shown and not drawn. Raises NotTrainable."""
    marked_pools = []
    for pool in pools:
        if pool.references or pool.replay:
            marked_pools.append(pool)
            continue
        if len(pool.tasks) <= count:
            raise NotTrainable(
                f"pool {pool.name} has {len(pool.tasks)} tasks, and a warm start shows "
                f"{count} of them; lower training.references, or switch training.warm_start off"
            )
        drawn, shown = pool.tasks[:-count], pool.tasks[-count:]
        marked_pools.append(pool.model_copy(update={"tasks": drawn, "references": shown}))
    return marked_pools
