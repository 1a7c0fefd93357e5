"""One job on the accepted tasks of an arm, and what its adapter passes on held-out tasks.

The job draws from the accepted tasks alone, after a warm start that shows some of them as the
oracle plays them. All arms of a seed have the same rollouts and meet the same held-out tasks, which
the generator draws. A job that was killed goes on from its journal.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch

from daemon.engine.chat import Chat
from daemon.engine.generation import Engine
from daemon.engine.policy import Policy
from daemon.solver import job
from daemon.solver.journal import DEFINITIONS, write_definitions
from daemon.solver.sampling.local import InProcess
from envs.shop.environment import Shop
from events.jobs import InProcessSource, JobSpec, Probe, Sampler, TaskPool, WarmStart
from ops.learning.evaluation import Outcomes, evaluate, generate_holdout
from ops.learning.results import TimedRun
from ops.learning.run import LENGTH, SLOTS, JobError, build_steps, describe_source, read_batches
from ops.learning.seeds import SYNTHESIZED, TUNED, Seeds
from ops.learning.synthesis.run import name_run
from ops.learning.synthesis.settings import Arm, JobSettings, Settings
from ops.learning.synthesis.writing import write_tasks

BASE: Final = "base"
"""Name of the policy that is not trained."""


class TrainedRun(TimedRun):
    """A policy on held-out tasks."""

    arm: str
    """Name of the arm, or `base`."""
    tasks: int = 0
    """That were accepted."""
    batches: int = 0
    informative: float = 0.0
    """Mean share of the groups with both verdicts."""
    outcomes: Mapping[str, Mapping[str, tuple[bool, ...]]]
    """Kind -> held-out task -> verdict on each trial."""


def run_job(
    arm: Arm | None, seed: int, settings: Settings, jobs: JobSettings, folder: Path,
    *, development: bool,
) -> TrainedRun:  # fmt: skip
    """Return what the policy of an arm passes; None: the base. Raises JobError, NoPlans."""
    torch.set_num_threads(1)
    began, worked = time.monotonic(), time.process_time()
    seeds = Seeds.among(TUNED if development else SYNTHESIZED, seed)
    policy = Policy.load(settings.checkpoint, settings.base)
    count, informative, batches = 0, 0.0, 0
    if arm is not None:
        writing = write_tasks(arm, name_run(seed, development=development), seed, settings)
        spec = _build_spec(arm, seed, tuple(writing.accepted), settings, jobs)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / DEFINITIONS).write_bytes(write_definitions(writing.accepted))
        outcome = job.run(spec, folder)
        if outcome.outcome != "trained" or outcome.adapter is None:
            raise JobError(f"{folder.name}: {outcome.outcome}, {outcome.reason}")
        policy = policy.with_adapter(Path(outcome.adapter), arm.name)
        count = len(writing.accepted)
        batches, informative = _count_informative(spec, folder)
    return TrainedRun.model_validate(
        {
            "seed": seed,
            "development": development,
            "source": describe_source(settings.checkpoint, jobs.digest),
            "arm": BASE if arm is None else arm.name,
            "tasks": count,
            "batches": batches,
            "informative": informative,
            "outcomes": _evaluate(policy, seed, seeds, settings, jobs),
            "seconds": time.monotonic() - began,
            "processor_seconds": time.process_time() - worked,
        }
    )


def _evaluate(
    policy: Policy, seed: int, seeds: Seeds, settings: Settings, jobs: JobSettings
) -> Outcomes:
    shop = Shop()
    tasks = generate_holdout(shop, shop.capabilities, seeds.holdout, jobs.tasks)
    chat = Chat(settings.checkpoint)
    player = InProcess(Engine(policy, SLOTS, LENGTH), chat, max_tokens=jobs.max_tokens)
    return evaluate(player, shop, policy, tasks, jobs.trials, seed)


def _build_spec(
    arm: Arm, seed: int, tasks: tuple[str, ...], settings: Settings, jobs: JobSettings
) -> JobSpec:
    """Return the job; the first tasks that were accepted, at most half of them, are shown."""
    shown = min(jobs.references, len(tasks) // 2)
    pool = TaskPool(name="written", tasks=tasks[shown:], references=tasks[:shown])
    return JobSpec(
        job=f"{arm.name.replace('.', '')}-{seed}",
        base=settings.base,
        checkpoint=str(settings.checkpoint),
        environment=Shop.name,
        pools=(pool,),
        seed=seed,
        sampler=Sampler(
            groups=jobs.groups,
            size=jobs.size,
            rollouts=jobs.budget,
            max_tokens=jobs.max_tokens,
            source=InProcessSource(slots=SLOTS, length=LENGTH),
        ),
        # Also where hardly anything can be learnt: the arms have the same rollouts.
        probe=Probe(below=0.0),
        warm_start=WarmStart(mode="always", sft=jobs.sft),
        algorithm=jobs.algorithm,
        optimizer=jobs.optimizer,
        lora=jobs.lora,
        limits=jobs.limits,
        threads=1,
    )


def _count_informative(spec: JobSpec, folder: Path) -> tuple[int, float]:
    """Return the number of batches of reinforcement learning, and the mean share of their groups
    with both verdicts."""
    steps = list(build_steps(spec, read_batches(spec, folder), 0))
    if not steps:
        return 0, 0.0
    return len(steps), sum(step.informative for step in steps) / len(steps)
