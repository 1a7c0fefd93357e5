"""Run a job: read a spec, train batch by batch, write an adapter directory; resumable after a kill.

    with Job(spec, out) as job:
        for progress in job:        # one update each
            ...
        job.outcome                 # set once the loop ends by itself

A job draws tasks, plays, journals and updates until the budget is spent. With rounds, it shifts the
pools after each part of the budget. The directory holds `rollouts.jsonl` (journal.py),
`rounds/N.json` (rounds/record.py), `adapter/` once trained, `checkpoints/N/` where the spec asks
for them, and `outcome.json` after a competence gap.

Guarantees: a batch is on disk before its update. A killed job repeats the updates of its journal
and then continues; a finished job repeats its outcome and does nothing else. On a CPU with a fixed
number of threads, and rollouts sampled in this process, the adapter always has the same sha256. A
task by content is left out if the directory lacks its body or its prefix does not replay; empty
pools are left out too. One process works in a directory. Further processes that it leads
(parallel.py) only update.
"""

import fcntl
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import IO, Any, Final, Self

import torch

from daemon.adapters.directory import PROVENANCE, WEIGHTS, Provenance, verify
from daemon.engine.chat import Chat
from daemon.engine.fingerprint import probe_model
from daemon.solver import journal, parallel, sft
from daemon.solver.base import CannotBegin, checkpoint, load_model, new_learner
from daemon.solver.journal import DEFINITIONS, BadJournal, Journal, read_definitions, read_successes
from daemon.solver.lora import save
from daemon.solver.methods import REWARDS
from daemon.solver.parallel import Anew, Update
from daemon.solver.rounds.rounds import Rounds
from daemon.solver.sampling.environments import drop_unplayable, open_environments
from daemon.solver.sampling.own_vllm import OwnVllm
from daemon.solver.sampling.remote import RemoteSource
from daemon.solver.sampling.seals import Seals
from daemon.solver.sampling.sources import Batch, HereSource, Source, Version, batch_of
from daemon.solver.spec import check_pools, check_ranges, digest
from daemon.solver.task_choice import Choice
from daemon.solver.telemetry.metrics import Guard, StepMetrics, TrainingAbort
from daemon.solver.telemetry.outcome import Activity, Outcome, make_failure
from daemon.solver.telemetry.progress import (
    History,
    ProbeResult,
    Progress,
    WarmStartReport,
    compare_figures,
    complete,
    gap,
    probe_pools,
)
from daemon.solver.telemetry.tracker import Tracker, open_tracker
from daemon.solver.trajectory import Trajectory
from daemon.solver.update import Learner
from daemon.solver.warm_start import examples, references
from envs.simulator import UserBudgetSpent
from events.errors import KintsugiError
from events.files import replace_file
from events.jobs import JobSpec
from events.privacy.sealing import Key

JOURNAL: Final = "rollouts.jsonl"
ADAPTER: Final = "adapter"
CHECKPOINTS: Final = "checkpoints"
OUTCOME: Final = "outcome.json"
_LOCK: Final = "lock"


class NothingLearnt(KintsugiError):
    """The budget of rollouts is spent and no group gave the learner anything to learn from."""


class JobInterrupt(KintsugiError):
    """The job was asked to stop; the same command resumes it."""


def run(
    spec: JobSpec,
    out: Path,
    report: Callable[[Progress], None] = lambda _: None,
    *,
    activity: Activity | None = None,
    stopping: Callable[[], bool] = lambda: False,
    keys: Mapping[str, Key] | None = None,
) -> Outcome:
    """Run the job; return also a KintsugiError or OSError as outcome. `keys`: key id -> key."""
    activity = activity or Activity()
    try:
        if finished := outcome_of(spec, out):
            return finished
        with Job(spec, out, activity=activity, stopping=stopping, keys=keys) as job:
            for progress in job:
                report(progress)
            assert job.outcome is not None, "a job that was not interrupted has an outcome"
            return job.outcome
    except (KintsugiError, OSError) as error:
        return make_failure(error, activity)


def outcome_of(spec: JobSpec, out: Path) -> Outcome | None:
    """Return the job's outcome, or None before its end. Raise BadAdapter, CannotBegin."""
    folder = out / ADAPTER
    if folder.exists():
        provenance = verify(folder)
        check_same_spec(spec, provenance.spec, folder)
        batches, _ = journal.read(out / JOURNAL, digest(spec))
        used = sum(map(len, batches))
        return _make_outcome(spec, folder, provenance.files[WEIGHTS], provenance.steps, used)
    return read_gap(spec, out)


def check_same_spec(spec: JobSpec, stored: Any, where: Path) -> None:
    """Raise CannotBegin unless `stored`, the content of the file `where`, names this spec."""
    if stored != spec.model_dump(mode="json"):
        raise CannotBegin(f"{where} is the result of another spec; choose another directory")


def read_gap(spec: JobSpec, out: Path) -> Outcome | None:
    """Return the competence gap that ended the job, or None. Raise CannotBegin."""
    if not (out / OUTCOME).exists():
        return None
    stored = json.loads((out / OUTCOME).read_bytes())
    check_same_spec(spec, stored["spec"], out / OUTCOME)
    return Outcome.model_validate(stored["outcome"])


def write_gap(spec: JobSpec, out: Path, outcome: Outcome) -> None:
    """Store a competence gap, so that the job ends with it again. Raise OSError."""
    stored = {"spec": spec.model_dump(mode="json"), "outcome": outcome.model_dump()}
    replace_file(out / OUTCOME, json.dumps(stored, indent=1).encode(), is_durable=True)


def _make_outcome(spec: JobSpec, folder: Path, sha256: str, steps: int, used: int) -> Outcome:
    left = spec.sampler.rollouts - used
    return Outcome(
        outcome="trained",
        adapter=str(folder),
        sha256=sha256,
        steps=steps,
        rollouts=used,
        reason=f"{left} of {spec.sampler.rollouts} rollouts were left unused" if left else None,
    )


class Job:
    """A job that its caller drives: iterate it, stop at any time, resume later."""

    def __init__(
        self,
        spec: JobSpec,
        out: Path,
        *,
        activity: Activity | None = None,
        stopping: Callable[[], bool] = lambda: False,
        keys: Mapping[str, Key] | None = None,
    ) -> None:
        """Load base, adapter and tasks, and lock the directory; play no rollout yet. `keys`, by key
        id, open sealed tasks. Raise NotSupported, CannotBegin, BadAdapter, WrongBase, BadJournal,
        BadSeal, NothingPlayable, UnknownTask, UnknownEnvironment, AmbiguousEnvironment, NoTemplate,
        NoTrackerLibrary, TrackerRefusal, OSError, and what a reward's check raises."""
        check_ranges(spec)
        check_pools(spec)
        if spec.teaches != "agent":
            raise CannotBegin(
                f"job {spec.job} teaches a {spec.teaches}, and plays nothing: run it with "
                "python -m daemon.solver"
            )
        self.requested = spec
        """Spec as requested; the journal and the adapter's provenance name its digest."""
        self.spec = spec
        """Spec as played: without the tasks that cannot be played."""
        self.out = out
        self.activity = activity or Activity()
        self.outcome: Outcome | None = None
        self._stopping = stopping
        self._keys = keys or {}
        out.mkdir(parents=True, exist_ok=True)
        with ExitStack() as held:
            held.enter_context(lock_file(out / _LOCK))
            self._load(held)
            self._held = held.pop_all()

    def _load(self, held: ExitStack) -> None:
        if self.spec.threads is not None:
            torch.set_num_threads(self.spec.threads)
        self._seals = Seals(read_definitions(self.out), self._keys)
        self.environments = open_environments(self.requested, self._seals.find_body)
        self.spec = spec = drop_unplayable(self.requested, self.environments)
        self._check_tasks()
        self._successes = read_successes(self.out, self.requested)
        self.chat = Chat(checkpoint(spec))
        self.model, self._base, self._parent = load_model(spec)
        self._learner = self._new_learner()
        self._guard = Guard(limits=spec.limits)
        self._choice = Choice(spec)
        self._rounds = self._open_rounds(held)
        self.history = History()
        """Rollouts sampled since the job began, or since its warm start."""
        self._tracker = self._open_tracker(held)
        self._source = held.enter_context(closing(self._new_source()))
        self._journal = held.enter_context(closing(self._open_journal()))
        self._batches = 0
        self.steps = 0
        self.rollouts = 0
        self._trained_on: list[str] = []
        self._refused: list[str] = []
        self._shortfall: str | None = None
        """Reason why the job played fewer rollouts than its budget, or None."""
        self._warmed = False
        self._played_with = -1
        """Number of optimizer steps of the policy that the source of rollouts plays with."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def __iter__(self) -> Iterator[Progress]:
        """Yield a report after each update or warm start. The job advances only when iterated.
        Raise JobInterrupt, TrainingAbort, UnstableUpdate, NothingLearnt, JournalWriteError,
        AdapterWriteError, EnvironmentFailure and what source and tracker raise."""
        for progress in self._updates():
            if self._tracker is not None:
                self._tracker.log(progress.batch, progress.model_dump())
            yield progress

    def _updates(self) -> Iterator[Progress]:
        warm = self.spec.warm_start
        if warm is not None and warm.mode == "always":
            pools = self.spec.target_pools
            yield self._warm_start(
                [pool.name for pool in pools if pool.references or pool.successes]
            )
        if self.spec.grpo:
            yield from self._grpo()
        if self.outcome is None:
            self._finish()

    def _grpo(self) -> Iterator[Progress]:
        judged = False
        while self.outcome is None and self._has_room(self.spec.batch):
            seconds = self._close_round()
            try:
                progress = self._step()
            except UserBudgetSpent as error:
                self._shortfall = f"it ended after {self.rollouts} rollouts: {error}"
                return
            yield progress.model_copy(update={"round_seconds": seconds}) if seconds else progress
            if judged or not complete(self.spec, self.history):
                continue
            probe = probe_pools(self.spec, self.history)
            if self._should_warm(probe):
                yield self._warm_start(probe.weak)
                continue
            judged = True
            if probe.hopeless:
                self._give_up()

    def _should_warm(self, probe: ProbeResult) -> bool:
        warm = self.spec.warm_start
        return (
            warm is not None
            and not self._warmed
            and self._can_show(probe.weak)
            and self._has_room(len(self._select_references(probe.weak)))
        )

    def _can_show(self, pools: Sequence[str]) -> bool:
        return any(
            pool.references or pool.successes for pool in self.spec.pools if pool.name in pools
        )

    def _close_round(self) -> float:
        if self._rounds is None or not self._rounds.is_due(self.rollouts):
            return 0.0
        began = time.monotonic()
        self._check_stop()
        self.activity.phase = "round"
        self._choice.shift(self._rounds.close_next().pools)
        return time.monotonic() - began

    def _step(self) -> Progress:
        began = time.monotonic()
        batch: list[Trajectory] = []
        for _ in range(1 + self.spec.algorithm.filter.refill):
            if not self._has_room(self.spec.batch):
                break
            batch += self._sample(refill=bool(batch))
            if len(self._learner.choose(batch).kept.groups) >= self.spec.sampler.groups:
                break
        played = time.monotonic()
        metrics = self._update(batch)
        return self._progress(batch, metrics, played - began, time.monotonic() - played)

    def _sample(self, *, refill: bool = False) -> Sequence[Trajectory]:
        self._save_due(self.spec.batch)
        number = self._batches
        tasks = self._choice.draw(number, refill=refill)
        drawn = [(task, self._choice.find_pool(task)) for task in tasks]
        batch = batch_of(self.spec, self.environments, number, drawn)
        named = [(attempt.rollout, attempt.task.id) for attempt in batch.attempts]
        trajectories = self._next(named, lambda: self._play(batch))
        self._choice.add(trajectories)
        if self._rounds is not None:
            self._rounds.add(batch.attempts, trajectories)
        self.history.add(trajectories, self._choice.pool, self.environments.name_kind)
        return trajectories

    def _next(
        self, named: Sequence[tuple[str, str]], make: Callable[[], Sequence[Trajectory]]
    ) -> Sequence[Trajectory]:
        """Return the journal's next batch; if there is none, make it and store it. Raise BadJournal
        unless the batch's (rollout, task) pairs are `named`."""
        number = self._batches
        if number == len(self._journal.batches):
            self._journal.append(tuple(make()))
        trajectories = self._journal.batches[number]
        if [(trajectory.rollout, trajectory.task) for trajectory in trajectories] != list(named):
            raise BadJournal(
                f"{self._journal.path}, batch {number}: these are not the rollouts that this "
                f"program samples there; it was written by another version, or {DEFINITIONS} had "
                "other bodies: remove the directory to begin again"
            )
        self._batches += 1
        self.rollouts += len(trajectories)
        self.activity.rollouts = self.rollouts
        return trajectories

    def _play(self, batch: Batch) -> list[Trajectory]:
        self._check_stop()
        self.activity.phase = "rollouts"
        if self._played_with != self.steps:
            self._source.adopt(self._version())
            self._played_with = self.steps
        trajectories: dict[str, Trajectory] = {}
        for trajectory in self._source.play(batch):
            trajectories[trajectory.rollout] = trajectory
            self.activity.rollouts += 1
            self._check_stop()
        return [trajectories[attempt.rollout] for attempt in batch.attempts]

    def _update(self, batch: Sequence[Trajectory]) -> StepMetrics:
        self.activity.phase = "update"
        self._check_numbers(batch)
        self._learner.steps = self.steps
        parallel.broadcast(Update(tuple(batch)))
        metrics = self._learner.step(batch)
        chosen = self._learner.choose(batch)
        self._refused += [item.reason for item in chosen.refused]
        if metrics.updated:
            kept = set(chosen.kept.groups) or {item.group for item in chosen.judged}
            self._trained_on += [item.rollout for item in chosen.judged if item.group in kept]
        self._set_steps(self._learner.steps)
        self._guard = self._guard.after(metrics)
        return metrics

    def _check_numbers(self, batch: Sequence[Trajectory]) -> None:
        """Raise TrainingAbort early if no answer of the batch has finite log-probabilities."""
        if self.steps and batch and not any(trajectory.finite for trajectory in batch):
            raise TrainingAbort(
                f"after step {self.steps} no answer of the policy has log-probabilities that are "
                "numbers: training diverged; lower optimizer.lr"
            )

    def _progress(
        self, batch: Sequence[Trajectory], metrics: StepMetrics, rollout: float, update: float
    ) -> Progress:
        own = History()
        own.add(batch, self._choice.pool, self.environments.name_kind)
        rewards = {p.name: p.reward for p in self.spec.pools if p.reward != "verdict"}
        return Progress(
            batch=self._batches,
            steps=self.steps,
            rollouts=self.rollouts,
            budget=self.spec.sampler.rollouts,
            metrics=metrics,
            pools=compare_figures(own.pools, self.history.pools, rewards),
            capabilities=compare_figures(own.capabilities, self.history.capabilities),
            user_faults=sum(item.user_fault is not None for item in batch),
            rollout_seconds=rollout,
            update_seconds=update,
        )

    def _select_references(self, pools: Sequence[str]) -> list[str]:
        warm = self.spec.warm_start
        assert warm is not None, "only a spec with a warm start asks for one"
        wanted = [pool for pool in self.spec.pools if pool.replay or pool.name in pools]
        return [*(task for pool in wanted for task in pool.references), *warm.siblings]

    def _show_references(self, tasks: Sequence[str], name: str) -> Sequence[Trajectory]:
        if not tasks:
            return ()
        return self._next(
            [(f"{name}/{number}", task) for number, task in enumerate(tasks)],
            lambda: list(references(self.environments.find, self.chat, tasks, name)),
        )

    def _select_successes(self, pools: Sequence[str]) -> list[Trajectory]:
        names = (name for pool in self.spec.pools if pool.name in pools for name in pool.successes)
        return [self._successes[name] for name in dict.fromkeys(names)]

    def _warm_start(self, pools: Sequence[str]) -> Progress:
        """Train on reference trajectories and own successes, then reset figures and limits."""
        warm = self.spec.warm_start
        assert warm is not None, "only a spec with a warm start asks for one"
        began = time.monotonic()
        tasks, name = self._select_references(pools), f"{self.spec.job}/{self._batches}"
        self._save_due(len(tasks))
        self._check_stop()
        self.activity.phase = "references"
        shown = self._show_references(tasks, name)
        passed = [trajectory for trajectory in shown if trajectory.success]
        own = self._select_successes(pools)
        if not passed and not own:
            raise NothingLearnt(
                f"the oracle passed none of {len(shown)} reference tasks, the first is "
                f"{tasks[0]}; see kintsugi env check {self.environments.find(tasks[0]).name}"
            )
        self.activity.phase = "warm start"
        steps = list(sft.train(self.model, examples([*passed, *own]), warm.sft))
        self._warmed = True
        self._trained_on += [trajectory.rollout for trajectory in (*passed, *own)]
        self._set_steps(self.steps + len(steps))
        self._learner, self._guard = self._new_learner(), Guard(limits=self.spec.limits)
        self._choice.passed.clear()
        self.history = History()
        return Progress(
            batch=self._batches,
            steps=self.steps,
            rollouts=self.rollouts,
            budget=self.spec.sampler.rollouts,
            warm_start=WarmStartReport(
                pools=tuple(pools),
                references=len(passed),
                successes=len(own),
                left_out=tuple(trajectory.task for trajectory in shown if not trajectory.success),
                steps=len(steps),
                tokens=sum(step.tokens for step in steps),
                first_loss=steps[0].loss,
                last_loss=steps[-1].loss,
            ),
            update_seconds=time.monotonic() - began,
        )

    def _finish(self) -> None:
        sampled = bool(self.history.pools) and not self._users_err
        if sampled and probe_pools(self.spec, self.history).hopeless:
            self._give_up()
            return
        if not self.steps:
            why = self._shortfall or self._fruitless()
            raise NothingLearnt(f"none of {self.rollouts} rollouts taught anything: {why}")
        self._save_due(self.spec.sampler.rollouts + 1)
        self.activity.phase = "saving"
        folder = self.out / ADAPTER
        sha256 = self._save(folder)
        self.outcome = _make_outcome(self.spec, folder, sha256, self.steps, self.rollouts)
        if self._shortfall is not None:
            self.outcome = self.outcome.model_copy(update={"reason": self._shortfall})

    @property
    def _users_err(self) -> bool:
        """Whether the user failed in most rollouts, so that they say nothing about the agent."""
        return 2 * self.history.unjudged > self.history.rollouts

    def _fruitless(self) -> str:
        if 2 * len(self._refused) > self.rollouts:
            reason, count = Counter(self._refused).most_common(1)[0]
            return f"{len(self._refused)} cannot be trained on, {count} of them because: {reason}"
        counts = self.history.pools.values()
        passed = f"{sum(c.passes for c in counts)} of {sum(c.attempts for c in counts)} passed"
        return f"the filter kept no group ({passed}); choose tasks that pass now and then"

    def _give_up(self) -> None:
        outcome = Outcome(
            outcome="competence_gap",
            steps=self.steps,
            rollouts=self.rollouts,
            reason=gap(self.history),
        )
        write_gap(self.requested, self.out, outcome)
        self.outcome = outcome

    def _save_due(self, coming: int) -> None:
        for count in sorted(self.spec.checkpoints):
            folder = self.out / CHECKPOINTS / str(count)
            if self.rollouts + coming > count and not (folder / PROVENANCE).exists():
                self.activity.phase = "saving"
                self._save(folder)

    def _save(self, folder: Path) -> str:
        changes = {"fingerprint": probe_model(self.model)}
        return save(self.model, folder, self._provenance().model_copy(update=changes))

    def _version(self) -> Version:
        return Version(
            name=f"{self.spec.job}-{self.steps}",
            model=self.model,
            provenance=self._provenance(),
            untrained=self.steps == 0 and self.spec.parent is None,
        )

    def _provenance(self) -> Provenance:
        return Provenance(
            base=self._base,
            parent=self._parent,
            lora=self.spec.lora,
            seed=self.spec.seed,
            steps=self.steps,
            rollouts=tuple(self._trained_on),
            spec=self.requested.model_dump(mode="json"),
        )

    def _has_room(self, coming: int) -> bool:
        return self.rollouts + coming <= self.spec.sampler.rollouts

    def _check_stop(self) -> None:
        if self._stopping():
            raise JobInterrupt(
                f"stopped after {self.rollouts} rollouts; run the same command to go on"
            )

    def _set_steps(self, steps: int) -> None:
        self.steps = self.activity.steps = steps

    def _open_journal(self) -> Journal:
        return Journal(self.out / JOURNAL, self._digest, self._seals)

    @property
    def _digest(self) -> str:
        return digest(self.requested)

    def _check_tasks(self) -> None:
        """Check early that tasks exist (one per id prefix, since making all is slow) and that their
        pools can reward them. Raise UnknownTask, and any error of a reward's check."""
        siblings = self.spec.warm_start.siblings if self.spec.warm_start else ()
        named = (task for pool in self.spec.pools for task in pool.all_tasks)
        for task in {task.rpartition("/")[0]: task for task in (*named, *siblings)}.values():
            self.environments.task(task)
        for pool in self.spec.pools:
            check = REWARDS[pool.reward].check
            if check is None:
                continue
            for task in pool.tasks:
                check(self.environments.find(task), self.environments.task(task), pool.name)

    def _new_learner(self) -> Learner:
        # The other processes make their learners now: each begins with the weights of this process.
        parallel.broadcast(Anew(self.spec))
        return new_learner(self.spec, self.model, self.chat.ends)

    def _open_rounds(self, held: ExitStack) -> Rounds | None:
        settings = self.spec.rounds
        if settings is None:
            return None
        environment = self.environments.own
        rounds = Rounds(self.spec, settings, environment, self.chat, self.out, self._digest)
        return held.enter_context(closing(rounds))

    def _open_tracker(self, held: ExitStack) -> Tracker | None:
        if self.spec.tracker is None:
            return None
        return held.enter_context(open_tracker(self.spec.tracker, self.spec.job, self.out))

    def _new_source(self) -> Source:
        place = self.spec.sampler.source
        if place.kind == "endpoint":
            return RemoteSource(self.spec, place, self.environments, self.chat, self.out)
        if place.kind == "vllm":
            return OwnVllm(
                self.spec, place, self.environments, self.chat, self.out, self._check_stop
            )
        return HereSource(self.spec, place, self.environments, self.chat)


def lock_file(path: Path) -> IO[bytes]:
    """Return the file, locked until it is closed or the process dies. Raise CannotBegin."""
    file = path.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise CannotBegin(f"another process works in {path.parent}; wait for it") from None
    return file
