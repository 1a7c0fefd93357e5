"""One seed: a job for each environment and two in all of them, each policy on held-out tasks.

Everything follows from the seed and the settings (and the machine's arithmetic). Jobs leave their
journals in a folder beside the result, from which a run that was killed goes on.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

import torch

from daemon.engine.chat import Chat
from daemon.engine.generation import Engine
from daemon.engine.policy import Policy
from daemon.engine.reference.weights import CHECKPOINT
from daemon.solver import job
from daemon.solver.sampling.local import InProcess
from daemon.solver.telemetry.progress import by_group
from daemon.solver.trajectory import Trajectory
from envs.shop.environment import Shop
from events.jobs import JobSpec
from events.messages import StrictModel
from ops.learning.environments.plan import build_specs, join_specs
from ops.learning.environments.settings import BASE, ENVIRONMENTS, JOINT, UNTAUGHT, Settings
from ops.learning.evaluation import Outcomes, evaluate, generate_holdout
from ops.learning.results import TimedRun
from ops.learning.run import LENGTH, SLOTS, JobError, describe_source, read_batches
from ops.learning.seeds import MIXED, TUNED, Seeds


class SampleFigures(StrictModel):
    """What a job sampled in one environment."""

    rollouts: int
    batches: int
    """Batches with a task of it."""
    informative: float
    """Share of its groups with both verdicts."""
    passed: float
    """Share of its rollouts that passed."""
    tokens: float
    """Mean number of tokens that the policy wrote in a rollout."""


class JobFigures(StrictModel):
    """What a job did."""

    environments: Mapping[str, SampleFigures]
    steps: int
    sha256: str
    """Of its adapter's weights."""


class SeedRun(TimedRun):
    """A finished seed."""

    jobs: Mapping[str, JobFigures]
    """Arm -> its job; not of the base."""
    outcomes: Mapping[str, Mapping[str, Mapping[str, tuple[bool, ...]]]]
    """Arm -> kind -> held-out task -> verdict on each trial."""


def name_run(seed: int, *, development: bool) -> str:
    """Return the name of a seed's files."""
    return f"{'development' if development else 'seed'}{seed}"


def run(seed: int, settings: Settings, folder: Path, *, development: bool) -> SeedRun:
    """Make one result. Raises NoJob, JobError and what a job raises."""
    torch.set_num_threads(1)
    began, worked = time.monotonic(), time.process_time()
    seeds = Seeds.among(TUNED if development else MIXED, seed)
    place = folder / name_run(seed, development=development)
    specs = build_specs(settings, seed, seeds, place)
    specs |= {kind: join_specs(specs, kind) for kind in JOINT}
    base = Policy.load(CHECKPOINT, BASE)
    holdout = _Holdout(settings, seed, seeds)
    outcomes = {BASE: holdout.evaluate(base)}
    jobs = {}
    for arm, spec in specs.items():
        jobs[arm], adapter = train(arm, spec, place / arm)
        outcomes[arm] = holdout.evaluate(base.with_adapter(adapter, arm))
    return SeedRun.model_validate(
        {
            "seed": seed,
            "development": development,
            "source": describe_source(CHECKPOINT, settings.digest),
            "jobs": jobs,
            "outcomes": outcomes,
            "seconds": time.monotonic() - began,
            "processor_seconds": time.process_time() - worked,
        }
    )


def train(arm: str, spec: JobSpec, folder: Path) -> tuple[JobFigures, Path]:
    """Run a job; return what it did and the folder of its adapter. Raises JobError."""
    outcome = job.run(spec, folder)
    if outcome.outcome != "trained" or outcome.adapter is None or outcome.sha256 is None:
        raise JobError(f"{arm}: {outcome.outcome}, {outcome.reason}")
    figures = JobFigures(
        environments=count_samples(read_batches(spec, folder)),
        steps=outcome.steps,
        sha256=outcome.sha256,
    )
    return figures, Path(outcome.adapter)


def count_samples(batches: Sequence[Sequence[Trajectory]]) -> dict[str, SampleFigures]:
    """Return what was sampled in each environment that has any, by the first part of the tasks'
    ids."""
    sampled = {}
    for name in ENVIRONMENTS:
        own = [
            [item for item in batch if _name_environment(item.task) == name] for batch in batches
        ]
        rollouts = [item for batch in own for item in batch]
        if not rollouts:
            continue
        groups = [verdicts for batch in own for _, verdicts in by_group(batch)]
        sampled[name] = SampleFigures(
            rollouts=len(rollouts),
            batches=sum(map(bool, own)),
            informative=fmean(0 < sum(verdicts) < len(verdicts) for verdicts in groups),
            passed=fmean(bool(item.success) for item in rollouts),
            tokens=fmean(item.tokens for item in rollouts),
        )
    return sampled


def _name_environment(task: str) -> str:
    return task.partition("/")[0]


class _Holdout:
    """Held-out tasks of the kinds of all environments and of those that none has; all policies of a
    seed meet the same."""

    def __init__(self, settings: Settings, seed: int, seeds: Seeds) -> None:
        self._settings, self._seed = settings, seed
        self._shop, self._chat = Shop(), Chat(CHECKPOINT)
        kinds = [kind for own in ENVIRONMENTS.values() for kind in own.every]
        self._tasks = generate_holdout(
            self._shop, (*kinds, *UNTAUGHT), seeds.holdout, settings.tasks
        )

    def evaluate(self, policy: Policy) -> Outcomes:
        """Play every task."""
        player = InProcess(Engine(policy, SLOTS, LENGTH), self._chat, max_tokens=64)
        return evaluate(player, self._shop, policy, self._tasks, self._settings.trials, self._seed)
