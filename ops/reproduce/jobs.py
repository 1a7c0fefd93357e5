"""Specs and task bodies of jobs, and new addresses for jobs that have not ended."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from daemon.adapters.compatibility import count_parameters
from daemon.config.presets import preset
from daemon.config.settings import Training
from daemon.cycle.job_spec import build_job_spec
from daemon.solver import journal
from daemon.solver.job import ADAPTER, JOURNAL, OUTCOME
from daemon.solver.journal import DEFINITIONS, write_definitions
from daemon.solver.spec import digest, list_tasks, read_spec
from events.jobs import EndpointSource, EndpointUser, JobSpec, Probe, TaskPool
from ops.reproduce.commands import Folder, write_model
from ops.reproduce.homes import ALIAS, build_settings, build_source
from ops.reproduce.settings import Served


def build_training(plan: Served, **fields: Any) -> Training:
    """Return the settings of a plan's jobs; `fields` are further settings."""
    return Training(
        max_tokens=plan.max_tokens,
        source="vllm" if plan.source == "vllm" else "in_process",
        device=plan.device,
        dtype=plan.dtype,
        threads=plan.threads,
        **fields,
    )


def build_spec(plan: Served, training: Training, pool: TaskPool) -> JobSpec:
    """Return the spec of a job on a pool of tasks."""
    (agent,) = build_settings(plan, Path(), training).agents
    spec = build_job_spec(
        training,
        agent,
        job=f"{ALIAS}-{plan.digest[:8]}",
        base=plan.model,
        pools=[pool],
        benchmarks=plan.benchmarks,
        parameters=count_parameters(plan.checkpoint),
    )
    sampler = spec.sampler.model_copy(update={"source": build_source(plan, spec.sampler.source)})
    return spec.model_copy(update={"seed": plan.seed, "sampler": sampler})


def change_spec(
    plan: Served, spec: JobSpec, name: str, rollouts: int, **changes: object
) -> JobSpec:
    """Return a copy of the spec with another name, number of rollouts, and further changes."""
    sampler = spec.sampler.model_copy(update={"rollouts": rollouts})
    changes |= {"job": f"{name}-{plan.digest[:8]}", "sampler": sampler}
    return JobSpec.model_validate(spec.model_copy(update=changes).model_dump())


def reinforce(
    plan: Served, whole: JobSpec, name: str, rollouts: int, parent: Path, algorithm: str,
    **changes: object,
) -> JobSpec:  # fmt: skip
    """Return a spec that continues `parent` with a preset; `changes` are to its only pool."""
    (pool,) = whole.pools
    return change_spec(
        plan, whole, name, rollouts,
        pools=(pool.model_copy(update={"references": (), **changes}),),
        warm_start=None, parent=str(parent), algorithm=preset(algorithm),
        # No early stop by the first groups: the arms have equal rollouts.
        probe=Probe(below=0.0),
    )  # fmt: skip


def write_job(folder: Folder, name: str, spec: JobSpec, bodies: Mapping[str, str]) -> None:
    """Write a job's spec, and the bodies of its tasks beside it."""
    folder.job(name).mkdir(parents=True, exist_ok=True)
    wanted = {task: bodies[task] for task in list_tasks(spec)}
    (folder.job(name) / DEFINITIONS).write_bytes(write_definitions(wanted))
    write_model(folder.spec(name), spec)


def move_jobs(plan: Served, folder: Folder) -> None:
    """Move unfinished jobs to the plan's addresses. Raise BadSpec, BadJournal or OSError."""
    for path in sorted(folder.jobs.glob("*.json")):
        job = folder.job(path.stem)
        if (job / ADAPTER).exists() or (job / OUTCOME).exists():
            continue
        spec = read_spec(path)
        changed = set_addresses(plan, spec)
        if changed != spec:
            # Change the journal first: after a kill in between, this step repeats.
            journal.rename(job / JOURNAL, digest(spec), digest(changed))
            write_model(path, changed)


def set_addresses(plan: Served, spec: JobSpec) -> JobSpec:
    """Return the spec with the plan's addresses for its source and for users behind an endpoint."""
    source = spec.sampler.source
    if isinstance(source, EndpointSource):
        source = source.model_copy(update={"url": plan.base_url})
    user = {"url": plan.addresses.user}
    pools = tuple(
        pool.model_copy(update={"user": pool.user.model_copy(update=user)})
        if isinstance(pool.user, EndpointUser)
        else pool
        for pool in spec.pools
    )
    sampler = spec.sampler.model_copy(update={"source": source})
    return spec.model_copy(update={"sampler": sampler, "pools": pools})
