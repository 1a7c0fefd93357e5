"""The facts about a finished cycle from which its account is computed (read.py reads them)."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from consumers.reads.cycle_account import RoundPattern, TaskPair, TrafficCount, WrittenTask
from consumers.reads.learning import CycleRow, JobRow
from consumers.reads.serving import AdapterRow

UNKNOWN: Final = "unknown"
"""Name that stands for the kind if a task or rollout has none."""


@dataclass(frozen=True, slots=True)
class PassCount:
    """The number of judged rollouts or sessions, and how many of them passed."""

    attempts: int
    passed: int


@dataclass(frozen=True, slots=True)
class SampledRollout:
    """A rollout of the cycle's job, with its place in the sampling order."""

    batch: int
    group: int
    """Number of the group in the batch; all rollouts of a group attempt one task."""
    task: str
    success: bool | None
    reward: float | None
    untrained: bool
    """Whether the policy that played it had not been trained by any step yet."""


@dataclass(frozen=True, slots=True)
class CanaryFacts:
    """Judged live sessions of candidate and incumbent until the cycle ended."""

    canary: PassCount
    incumbent: PassCount
    shares: tuple[float, ...]
    """Shares of the traffic under which the judged sessions were drawn, in order."""
    minutes: float
    """Minutes from the start of the canary to the cycle's end."""


@dataclass(frozen=True)
class CycleFacts:
    """The facts about a finished cycle from which its account is computed."""

    row: CycleRow
    traffic: tuple[TrafficCount, ...] = ()
    """Counts of the round's judged rollouts."""
    unjudged: int = 0
    patterns: tuple[RoundPattern, ...] = ()
    """Failure patterns of the round, by priority."""
    written: tuple[WrittenTask, ...] = ()
    rejections: Mapping[str, int] = field(default_factory=dict)
    probes: PassCount = PassCount(0, 0)
    """Passes of the written tasks when the answering policy played them as probes."""
    job: JobRow | None = None
    """The cycle's job. In a cycle with branches, the branches' jobs combined as one."""
    jobs: tuple[JobRow, ...] = ()
    """The jobs of a cycle with branches, its chooser's included; else empty."""
    parent: str | None = None
    kinds: Mapping[str, str | None] = field(default_factory=dict)
    """Task in the job's pools or written by the cycle -> its kind; None if unknown."""
    sampled: tuple[SampledRollout, ...] = ()
    """Recorded rollouts of the job, in sampling order."""
    unplaced: int = 0
    """Number of recorded rollouts without a known batch and group; no figure counts them."""
    adapter: AdapterRow | None = None
    pairs: tuple[TaskPair, ...] = ()
    """Results of candidate and incumbent on each task of the gate."""
    canary: CanaryFacts | None = None
    successors: tuple[int, ...] = ()
    """Numbers of later cycles whose jobs trained on from this cycle's candidate."""

    @cached_property
    def judged(self) -> int:
        """Return the number of judged rollouts in the round."""
        return sum(count.rollouts for count in self.traffic)

    @cached_property
    def failed(self) -> int:
        """Return the number of failed rollouts in the round."""
        return sum(count.rollouts for count in self.traffic if not count.success)

    @cached_property
    def by_kind(self) -> Counter[str]:
        """Return kind -> number of judged rollouts; those without a kind are left out."""
        return _count_kinds(self.traffic)

    @cached_property
    def failures_by_kind(self) -> Counter[str]:
        """Return kind -> number of failed rollouts."""
        return _count_kinds(count for count in self.traffic if not count.success)

    @cached_property
    def kinds_by_pattern(self) -> Mapping[str, Counter[str]]:
        """Return pattern -> kind -> number of failed rollouts."""
        table: dict[str, Counter[str]] = {}
        for count in self.traffic:
            if count.pattern is not None and count.kind is not None and not count.success:
                table.setdefault(count.pattern, Counter())[count.kind] += count.rollouts
        return table

    @cached_property
    def written_kinds(self) -> Mapping[str, Counter[str]]:
        """Return pattern -> kind -> number of tasks that the cycle wrote."""
        table: dict[str, Counter[str]] = {}
        for task in self.written:
            if task.kind is not None:
                table.setdefault(task.pattern, Counter())[task.kind] += 1
        return table

    @cached_property
    def later_tasks(self) -> tuple[WrittenTask, ...]:
        """Return the written tasks that the job sampled although its spec's pools lack them: they
        were written while it ran."""
        if self.job is None:
            return ()
        first = {task for pool in self.job.spec.pools for task in pool.all_tasks}
        drawn = {item.task for item in self.sampled} - first
        return tuple(task for task in self.written if task.task in drawn)

    @cached_property
    def job_kinds(self) -> Counter[str]:
        """Return kind -> tasks of the job's targeted pools, those of references included."""
        if self.job is None:
            return Counter()
        tasks = [task for pool in self.job.spec.target_pools for task in pool.all_tasks]
        tasks += [task.task for task in self.later_tasks]
        kinds = (self.kinds.get(task) for task in tasks)
        return Counter(kind for kind in kinds if kind is not None)

    @cached_property
    def job_patterns(self) -> frozenset[str]:
        """Return the patterns of the job's targeted pools, which are the pools' names."""
        if self.job is None:
            return frozenset()
        pools = {pool.name for pool in self.job.spec.target_pools}
        return frozenset(pools | {task.pattern for task in self.later_tasks})

    @cached_property
    def quotas(self) -> Mapping[str, int]:
        """Return pattern -> number of tasks in the directive."""
        directive = self.row.directive
        return {} if directive is None else {item.pattern: item.tasks for item in directive.quotas}

    @cached_property
    def quota_by_kind(self) -> Mapping[str, float]:
        """Return kind -> tasks of the directive, maybe fractions. A pattern's tasks are divided
        among kinds like its failures in the round; without failures, like its written tasks."""
        spread: dict[str, float] = {}
        for pattern, tasks in self.quotas.items():
            kinds = self.kinds_by_pattern.get(pattern) or self.written_kinds.get(pattern)
            if kinds:
                whole = kinds.total()
                for kind, count in kinds.items():
                    spread[kind] = spread.get(kind, 0.0) + tasks * count / whole
        return spread


def _count_kinds(counts: Iterable[TrafficCount]) -> Counter[str]:
    table: Counter[str] = Counter()
    for count in counts:
        if count.kind is not None:
            table[count.kind] += count.rollouts
    return table
