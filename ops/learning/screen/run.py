"""One configuration on one seed: plan, train, evaluate on held-out tasks; a JSON file is left.

A run that was killed goes on from its job's journal, and what has a file is not run again.
"""

import time
from collections.abc import Mapping
from pathlib import Path

import torch

from daemon.solver import job
from daemon.solver.rounds.record import read_record
from daemon.solver.spec import digest
from daemon.solver.telemetry.progress import Progress
from envs.shop.environment import Shop
from events.canonical import exact_json, sha256
from events.errors import KintsugiError
from events.jobs import JobSpec
from events.learning import TaskProposed
from events.messages import StrictModel
from ops.learning.evaluation import evaluate, generate_holdout
from ops.learning.results import Source, write_document
from ops.learning.run import describe_source
from ops.learning.screen.plan import Recorder
from ops.learning.screen.settings import BASE, CONFIGURATIONS, Settings
from ops.learning.seeds import Seeds


class JobError(KintsugiError):
    """A job that ended without an adapter."""


class Update(StrictModel):
    """One update of a job."""

    rollouts: int
    """Spent of the budget so far."""
    updated: bool
    informative: float
    """Share of the batch's groups with both verdicts."""
    success: float
    zero_advantage: float
    kl: float | None
    tis_clipped: float
    clipped_high: float


class Training(StrictModel):
    """What a job did; all empty of the base."""

    pools: str = ""
    """sha256 of the job's pools with their shares, tasks and references."""
    sizes: Mapping[str, int] = {}
    """Pool -> tasks that are drawn."""
    shown: Mapping[str, int] = {}
    """Pool -> tasks that a warm start shows."""
    updates: tuple[Update, ...] = ()
    references: int = 0
    """Trajectories of the oracle that a warm start trained on."""
    successes: int = 0
    """Recorded successes that it trained on."""
    reason: str | None = None
    """What the job said at its end."""
    adapter: str | None = None
    """sha256 of its weights."""
    seconds: float = 0.0
    """Wall time of this process; less than the job's where it went on from a journal."""
    rounds: int = 0
    """Rounds that it closed over its own rollouts."""
    round_seconds: float = 0.0
    """Wall time of these."""
    written: int = 0
    """Tasks that they wrote and that passed every check."""


class Screened(StrictModel):
    """A policy of the screen on held-out tasks."""

    configuration: str
    seed: int
    development: bool
    source: Source
    training: Training
    seconds: float
    """Wall time of the whole run, evaluation included."""
    outcomes: Mapping[str, Mapping[str, tuple[bool, ...]]]


def path_of(folder: Path, name: str, seed: int, *, development: bool) -> Path:
    """Return where a result is."""
    return folder / f"{name}-{'development' if development else 'seed'}{seed}.json"


def screen(
    name: str, seed: int, settings: Settings, folder: Path, *, development: bool
) -> Screened:
    """Make one result. Raises NoJob, JobError."""
    torch.set_num_threads(1)
    began = time.monotonic()
    seeds = Seeds.of(seed, development=development)
    recorder = Recorder(settings, seed, seeds)
    policy, training = recorder.policy, Training()
    if name != BASE:
        place = path_of(folder, name, seed, development=development).with_suffix("")
        training, adapter = train(recorder.build_spec(CONFIGURATIONS[name], place), place)
        policy = policy.with_adapter(adapter, name)
    shop = Shop()
    tasks = generate_holdout(shop, settings.traffic, seeds.holdout, settings.tasks)
    outcomes = evaluate(recorder.player, shop, policy, tasks, settings.trials, seed)
    return Screened.model_validate(
        {
            "configuration": name,
            "seed": seed,
            "development": development,
            "source": describe_source(settings.checkpoint, settings.digest),
            "training": training,
            "seconds": time.monotonic() - began,
            "outcomes": outcomes,
        }
    )


def train(spec: JobSpec, folder: Path) -> tuple[Training, Path]:
    """Run a job; return what it did and the folder of its adapter. Raises JobError."""
    training, adapter = spend(spec, folder)
    if adapter is None:
        raise JobError(f"{folder.name}: {training.reason}")
    return training, adapter


def spend(spec: JobSpec, folder: Path) -> tuple[Training, Path | None]:
    """Run a job; return what it did and the folder of its adapter, None where its whole budget
    taught it nothing. Raises JobError."""
    began, updates, references, successes = time.monotonic(), list[Update](), 0, 0
    rounds = list[float]()

    def note(progress: Progress) -> None:
        nonlocal references, successes
        if progress.warm_start is not None:
            references += progress.warm_start.references
            successes += progress.warm_start.successes
        if progress.round_seconds:
            rounds.append(progress.round_seconds)
        if (metrics := progress.metrics) is not None:
            updates.append(
                Update(
                    rollouts=progress.rollouts,
                    updated=metrics.updated,
                    informative=metrics.informative,
                    success=metrics.success,
                    zero_advantage=metrics.zero_advantage,
                    kl=metrics.kl,
                    tis_clipped=metrics.tis_clipped,
                    clipped_high=metrics.clipped_high,
                )
            )

    outcome = job.run(spec, folder, note)
    if outcome.adapter is None and outcome.rollouts < spec.sampler.rollouts:
        raise JobError(f"{folder.name}: {outcome.outcome}, {outcome.reason}")
    training = Training(
        pools=sha256(exact_json([[p.name, p.share, *p.tasks, *p.references] for p in spec.pools])),
        sizes={pool.name: len(pool.tasks) for pool in spec.pools},
        shown={pool.name: len(pool.references) for pool in spec.pools},
        updates=tuple(updates),
        references=references,
        successes=successes,
        reason=outcome.reason,
        adapter=outcome.sha256,
        seconds=time.monotonic() - began,
        rounds=len(rounds),
        round_seconds=sum(rounds),
        written=count_written(spec, folder, len(rounds)),
    )
    return training, None if outcome.adapter is None else Path(outcome.adapter)


def count_written(spec: JobSpec, folder: Path, rounds: int) -> int:
    """Return how many tasks the rounds of a job wrote that passed every check."""
    records = (read_record(folder, number, digest(spec)) for number in range(1, rounds + 1))
    tasks = [task.data for record in records if record is not None for task in record.tasks]
    return sum(isinstance(data, TaskProposed) for data in tasks)


def write(folder: Path, result: Screened) -> None:
    """Leave the result, whole or not at all."""
    target = path_of(folder, result.configuration, result.seed, development=result.development)
    write_document(target, result)
