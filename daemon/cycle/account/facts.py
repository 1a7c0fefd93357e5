"""A finished cycle's facts for its account (values only; read.py reads them)."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from consumers.reads.cycle_account import RoundPattern, TaskPair, TrafficCount, WrittenTask
from consumers.reads.learning import CycleRow, JobRow
from consumers.reads.serving import AdapterRow

UNKNOWN: Final = "unknown"
"""Kind of a task or rollout without one."""


@dataclass(frozen=True, slots=True)
class PassCount:
    """Judged rollouts or sessions, and those that passed."""

    attempts: int
    passed: int


@dataclass(frozen=True, slots=True)
class SampledRollout:
    """A rollout of the cycle's job, at its place."""

    batch: int
    group: int
    """Group in the batch; its rollouts attempt one task."""
    task: str
    success: bool | None
    reward: float | None
    untrained: bool
    """Whether its policy had made no step."""


@dataclass(frozen=True, slots=True)
class CanaryFacts:
    """Live sessions of candidate and incumbent before the cycle ended."""

    canary: PassCount
    incumbent: PassCount
    shares: tuple[float, ...]
    """Shares that drew judged sessions, in order."""
    minutes: float
    """Minutes from the route's first session to the cycle's end."""


@dataclass(frozen=True)
class CycleFacts:
    """A finished cycle."""

    row: CycleRow
    traffic: tuple[TrafficCount, ...] = ()
    """Judged rollouts of the round."""
    unjudged: int = 0
    patterns: tuple[RoundPattern, ...] = ()
    """Patterns of the round, by priority."""
    written: tuple[WrittenTask, ...] = ()
    rejections: Mapping[str, int] = field(default_factory=dict)
    probes: PassCount = PassCount(0, 0)
    """Rollouts of written tasks by the answering policy."""
    job: JobRow | None = None
    """The job; of a cycle with skills, all of their jobs together."""
    jobs: tuple[JobRow, ...] = ()
    """Jobs of a cycle with skills and its router; else none."""
    parent: str | None = None
    kinds: Mapping[str, str | None] = field(default_factory=dict)
    """Task of the job's pools -> its kind, if known."""
    sampled: tuple[SampledRollout, ...] = ()
    """Recorded rollouts of the job, in order."""
    unplaced: int = 0
    """Recorded rollouts without a known place; no figure counts them."""
    adapter: AdapterRow | None = None
    pairs: tuple[TaskPair, ...] = ()
    """Tasks of the gate."""
    canary: CanaryFacts | None = None
    successors: tuple[int, ...] = ()
    """Cycles whose jobs trained on from the candidate."""

    @cached_property
    def judged(self) -> int:
        """Return the round's judged rollouts."""
        return sum(count.rollouts for count in self.traffic)

    @cached_property
    def failed(self) -> int:
        """Return the round's failed rollouts."""
        return sum(count.rollouts for count in self.traffic if not count.success)

    @cached_property
    def by_kind(self) -> Counter[str]:
        """Return kind -> judged rollouts, of those with a kind."""
        return _count_kinds(self.traffic)

    @cached_property
    def failures_by_kind(self) -> Counter[str]:
        """Return kind -> failed rollouts."""
        return _count_kinds(count for count in self.traffic if not count.success)

    @cached_property
    def kinds_by_pattern(self) -> Mapping[str, Counter[str]]:
        """Return pattern -> kind -> failed rollouts with both."""
        table: dict[str, Counter[str]] = {}
        for count in self.traffic:
            if count.pattern is not None and count.kind is not None and not count.success:
                table.setdefault(count.pattern, Counter())[count.kind] += count.rollouts
        return table

    @cached_property
    def written_kinds(self) -> Mapping[str, Counter[str]]:
        """Return pattern -> kind -> tasks that the cycle wrote."""
        table: dict[str, Counter[str]] = {}
        for task in self.written:
            if task.kind is not None:
                table.setdefault(task.pattern, Counter())[task.kind] += 1
        return table

    @cached_property
    def later_tasks(self) -> tuple[WrittenTask, ...]:
        """Return the written tasks that the job sampled and its spec's pools lack: they came while
        it ran."""
        if self.job is None:
            return ()
        first = {task for pool in self.job.spec.pools for task in pool.all_tasks}
        drawn = {item.task for item in self.sampled} - first
        return tuple(task for task in self.written if task.task in drawn)

    @cached_property
    def job_kinds(self) -> Counter[str]:
        """Return kind -> tasks of the job's targeted pools, with references."""
        if self.job is None:
            return Counter()
        tasks = [task for pool in self.job.spec.target_pools for task in pool.all_tasks]
        tasks += [task.task for task in self.later_tasks]
        kinds = (self.kinds.get(task) for task in tasks)
        return Counter(kind for kind in kinds if kind is not None)

    @cached_property
    def job_patterns(self) -> frozenset[str]:
        """Return the names of the job's targeted pools, which are patterns."""
        if self.job is None:
            return frozenset()
        pools = {pool.name for pool in self.job.spec.target_pools}
        return frozenset(pools | {task.pattern for task in self.later_tasks})

    @cached_property
    def quotas(self) -> Mapping[str, int]:
        """Return pattern -> tasks of the directive."""
        directive = self.row.directive
        return {} if directive is None else {item.pattern: item.tasks for item in directive.quotas}

    @cached_property
    def quota_by_kind(self) -> Mapping[str, float]:
        """Return kind -> tasks of the directive. A pattern's are spread as its failures of the
        round, else as its written tasks."""
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
