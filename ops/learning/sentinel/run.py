"""One run: a warm start where the arm has one, then rounds of diagnosis and training, each followed
by an evaluation on held-out tasks.

A round is a job as the daemon runs it, which goes on from the adapter of the round before; both
ways of training have the same rounds, so that they differ in their tasks alone. Everything follows
from the key and the settings (and the machine's arithmetic). Jobs leave adapters and journals in a
folder beside the result, from which a run that was killed goes on.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import torch

from daemon.adapters.directory import WEIGHTS, verify
from daemon.engine.policy import Policy
from daemon.solver import job
from events.errors import KintsugiError
from events.jobs import InProcessSource, JobSpec, Sampler, TaskPool, WarmStart
from ops.learning import arms
from ops.learning.results import Costs, PolicyEvaluation, Source, write_document
from ops.learning.run import (
    LENGTH,
    SLOTS,
    Bench,
    JobError,
    build_steps,
    count_uses,
    describe_source,
    read_batches,
)
from ops.learning.seeds import COMPARED, TUNED, Seeds
from ops.learning.sentinel.results import ComparisonRun, Key, Round, locate_unfinished
from ops.learning.sentinel.settings import ARMS, Settings
from ops.learning.targets import NothingToTarget, Targets


class UnknownTraffic(KintsugiError):
    """A traffic that the settings do not have."""


class OtherSettings(KintsugiError):
    """A folder of runs that were made with other settings."""


@dataclass(frozen=True, slots=True)
class Start:
    """A policy that training goes on from."""

    policy: Policy
    adapter: Path | None
    """Its adapter; None for the base."""


def compare(key: Key, settings: Settings, folder: Path) -> ComparisonRun:
    """Make one result. What is finished of it is left in its folder after every round, and not done
    again. Raises UnknownTraffic, OtherSettings, JobError and what a job raises."""
    torch.set_num_threads(1)
    if key.mix not in settings.mixes:
        raise UnknownTraffic(f"{key.mix!r} is no traffic; there are {', '.join(settings.mixes)}")
    bench = Bench(settings, settings.mixes[key.mix], select_seeds(key, settings, 0), key.seed)
    draft = _begin(bench, key, settings, folder)
    clock = _Clock(draft)
    arm, start = ARMS[key.arm], Start(bench.policy, None)
    if arm.warm:
        start, draft.warm_start = _warm(bench, key, settings, folder)
    if arm.training == "none" and not draft.evaluations:
        spent = draft.warm_start.total
        draft.evaluations.append(bench.evaluate_policy(start.policy, spent, spent))
    if arm.training != "none":
        for _ in _train(bench, key, settings, folder, start, draft):
            write_document(locate_unfinished(folder, key), draft.freeze(clock))
    return draft.freeze(clock)


@dataclass
class _Draft:
    """A result in the making."""

    key: Key
    source: Source
    weights: Mapping[str, float]
    warm_start: Costs = field(default_factory=Costs)
    rounds: list[Round] = field(default_factory=list)
    evaluations: list[PolicyEvaluation] = field(default_factory=list)
    seconds: float = 0.0
    """Of processes before this one."""
    processor_seconds: float = 0.0
    """Likewise."""

    def freeze(self, clock: "_Clock") -> ComparisonRun:
        """Return the result as far as it has come."""
        seconds, processor = clock.read()
        return ComparisonRun(
            key=self.key,
            source=self.source,
            weights=self.weights,
            warm_start=self.warm_start,
            rounds=tuple(self.rounds),
            evaluations=tuple(self.evaluations),
            seconds=seconds,
            processor_seconds=processor,
        )


class _Clock:
    """Wall and processor time of a run, those of earlier processes included."""

    def __init__(self, draft: _Draft) -> None:
        self._wall = time.monotonic() - draft.seconds
        self._processor = time.process_time() - draft.processor_seconds

    def read(self) -> tuple[float, float]:
        """Return both, in seconds."""
        return time.monotonic() - self._wall, time.process_time() - self._processor


def _begin(bench: Bench, key: Key, settings: Settings, folder: Path) -> _Draft:
    """Return what an earlier process has finished of a run, or nothing of it. Raises
    OtherSettings."""
    source = describe_source(settings.checkpoint, settings.digest)
    draft = _Draft(key, source, bench.mix)
    path = locate_unfinished(folder, key)
    if path.exists():
        before = ComparisonRun.model_validate_json(path.read_bytes())
        if before.source.settings != settings.digest:
            raise OtherSettings(
                f"{path} was made with settings {before.source.settings[:12]}, and these are "
                f"{settings.digest[:12]}; name another folder"
            )
        draft.rounds, draft.evaluations = list(before.rounds), list(before.evaluations)
        draft.seconds, draft.processor_seconds = before.seconds, before.processor_seconds
    return draft


def select_seeds(key: Key, settings: Settings, number: int) -> Seeds:
    """Return the block of task seeds of a round; held-out tasks and the warm start use the first
    one's. Raises ValueError for a seed without blocks."""
    blocks = TUNED if key.development else COMPARED
    return Seeds.among(blocks, key.seed * len(settings.budgets) + number)


def _warm(bench: Bench, key: Key, settings: Settings, folder: Path) -> tuple[Start, Costs]:
    """Return the policy after the warm start that all warm arms of a seed share, made where it is
    missing."""
    name = key.model_copy(update={"arm": "warm"}).name
    drawn = bench.shop.mixture(bench.mix, seed=key.seed, first_task=bench.seeds.references)
    shown = tuple(task.id for task in islice(drawn, settings.references))
    # A pool needs a task that could be drawn; a warm start alone draws none.
    idle = bench.shop.generate(next(iter(bench.mix)), bench.seeds.training).id
    pool = TaskPool(name="traffic", tasks=(idle,), references=shown)
    warm = WarmStart(mode="always", sft=settings.sft)
    spec = _spec(bench, settings, name, settings.references, None, (pool,), warm)
    adapter, _ = _run_job(spec, folder / name)
    if adapter is None:
        raise JobError(f"{name}: the warm start left no adapter; see {folder / name}")
    return (
        Start(bench.policy.with_adapter(adapter, name), adapter),
        Costs(references=settings.references),
    )


def _train(
    bench: Bench, key: Key, settings: Settings, folder: Path, start: Start, draft: _Draft
) -> Iterator[Round]:
    """Yield every round that is not finished, once it and its evaluation are in the draft."""
    spent = draft.warm_start.total
    for number, budget in enumerate(settings.budgets):
        place, name = folder / key.name / str(number), f"{key.name}-{number}"
        if number < len(draft.rounds):
            finished, adapter = draft.rounds[number], place / job.ADAPTER
            spent += finished.spent.total
            if finished.adapter is not None:
                start = Start(bench.policy.with_adapter(adapter, name), adapter)
            continue
        seeds = select_seeds(key, settings, number)
        targets, diagnosis = None, 0
        if ARMS[key.arm].training == "targeted":
            diagnosis = settings.diagnosis
            targets = _diagnose(bench, start.policy, seeds)
        rollouts = budget - spent - diagnosis
        pools = _plan(bench, targets, settings, seeds, rollouts).pools
        spec = _spec(bench, settings, name, rollouts, start.adapter, pools, None)
        trained, ended = _run_job(spec, place)
        if trained is not None:
            start = Start(bench.policy.with_adapter(trained, name), trained)
        finished = _describe_round(spec, place, targets, diagnosis, spent, ended)
        spent += finished.spent.total
        draft.rounds.append(finished)
        draft.evaluations.append(bench.evaluate_policy(start.policy, budget, spent))
        yield finished


def _diagnose(bench: Bench, policy: Policy, seeds: Seeds) -> Targets | None:
    """Return what to train; None where no generator fails often enough."""
    try:
        return bench.diagnose_traffic(policy, seeds)
    except NothingToTarget:
        return None


def _plan(
    bench: Bench, targets: Targets | None, settings: Settings, seeds: Seeds, rollouts: int
) -> arms.Plan:
    groups = rollouts // settings.size
    if targets is None:
        return arms.plan_general(bench.shop, bench.mix, seeds, bench.seed, groups)
    return arms.plan_targets(bench.shop, targets, settings, seeds, bench.seed, groups, warm=False)


def _spec(
    bench: Bench,
    settings: Settings,
    name: str,
    rollouts: int,
    parent: Path | None,
    pools: tuple[TaskPool, ...],
    warm_start: WarmStart | None,
) -> JobSpec:
    """Return a job's spec: a warm start alone, or GRPO."""
    return JobSpec(
        job=name,
        base=settings.base,
        checkpoint=str(settings.checkpoint),
        parent=None if parent is None else str(parent),
        environment=bench.shop.name,
        pools=pools,
        warm_start=warm_start,
        grpo=warm_start is None,
        seed=bench.seed,
        sampler=Sampler(
            groups=settings.groups,
            size=settings.size,
            rollouts=rollouts,
            max_tokens=settings.max_tokens,
            momentum=settings.momentum,
            source=InProcessSource(slots=SLOTS, length=LENGTH),
        ),
        algorithm=settings.updates.algorithm,
        optimizer=settings.updates.optimizer,
        lora=settings.lora,
        limits=settings.limits,
        threads=1,
    )


def _run_job(spec: JobSpec, folder: Path) -> tuple[Path | None, str]:
    """Run a job; return its adapter, None after a competence gap, and how it ended. Raises
    JobError."""
    outcome = job.run(spec, folder)
    if outcome.outcome == "failed":
        raise JobError(f"{spec.job}: {outcome.reason}")
    adapter = None if outcome.adapter is None else Path(outcome.adapter)
    return adapter, outcome.reason or outcome.outcome


def _describe_round(
    spec: JobSpec, folder: Path, targets: Targets | None, diagnosis: int, spent: int, ended: str
) -> Round:
    batches = read_batches(spec, folder)
    adapter = folder / job.ADAPTER
    provenance = verify(adapter) if adapter.exists() else None
    return Round(
        spent=Costs(diagnosis=diagnosis).model_copy(update=count_uses(batches)),
        targets=() if targets is None else targets.targets,
        ended=ended,
        updates=0 if provenance is None else provenance.steps,
        adapter=None if provenance is None else provenance.files[WEIGHTS],
        steps=tuple(build_steps(spec, batches, spent + diagnosis)),
    )
