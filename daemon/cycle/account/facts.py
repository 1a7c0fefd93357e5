"""What a finished cycle left in the tables, as its account reads it (values only).

The readings are made in read.py; balance.py and the modules of the stages turn them into figures.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from consumers.reads.cycle_account import RoundPattern, TaskPair, TrafficCount, WrittenTask
from consumers.reads.learning import CycleRow, JobRow
from consumers.reads.serving import AdapterRow

UNKNOWN: Final = "unknown"
"""Kind of a task that has none, and of a rollout that names no task."""


@dataclass(frozen=True, slots=True)
class PassCount:
    """Judged rollouts or sessions, and passed ones among them."""

    attempts: int
    passed: int


@dataclass(frozen=True, slots=True)
class SampledRollout:
    """A rollout of the cycle's job, at its place in the job."""

    batch: int
    group: int
    """The group within the batch: its rollouts attempt the same task."""
    task: str
    success: bool | None
    reward: float | None
    untrained: bool
    """Whether the policy that played it had made no step."""


@dataclass(frozen=True, slots=True)
class CanaryFacts:
    """The live sessions of the candidate before the cycle ended, beside the incumbent's."""

    canary: PassCount
    incumbent: PassCount
    shares: tuple[float, ...]
    """Shares of the sessions that drew judged ones, in order."""
    minutes: float
    """The time from the first session of the canary's route to the end of the cycle."""


@dataclass(frozen=True)
class CycleFacts:
    """A finished cycle."""

    row: CycleRow
    traffic: tuple[TrafficCount, ...] = ()
    """The judged rollouts of the cycle's round."""
    unjudged: int = 0
    patterns: tuple[RoundPattern, ...] = ()
    """The patterns of the round, the highest priority first."""
    written: tuple[WrittenTask, ...] = ()
    rejections: Mapping[str, int] = field(default_factory=dict)
    """Check -> tasks that failed it."""
    probes: PassCount = PassCount(0, 0)
    """Rollouts of written tasks by the policy that answered."""
    job: JobRow | None = None
    """Of a cycle that trains for skills, all of its jobs for them together."""
    jobs: tuple[JobRow, ...] = ()
    """The jobs of a cycle that trains for skills, that of the router included; of others, none."""
    parent: str | None = None
    """The adapter that the job trained on from."""
    kinds: Mapping[str, str | None] = field(default_factory=dict)
    """Task of the job's pools -> its kind, where that is known."""
    sampled: tuple[SampledRollout, ...] = ()
    """Rollouts of the job that were recorded, in order."""
    unplaced: int = 0
    """Recorded rollouts whose place in the job is unknown: they are in no figure."""
    adapter: AdapterRow | None = None
    pairs: tuple[TaskPair, ...] = ()
    """Tasks that candidate and incumbent played for the gate."""
    canary: CanaryFacts | None = None
    """None where the candidate had no canary."""
    successors: tuple[int, ...] = ()
    """Numbers of the cycles whose jobs trained on from the candidate."""

    @cached_property
    def judged(self) -> int:
        """Judged rollouts of the round."""
        return sum(count.rollouts for count in self.traffic)

    @cached_property
    def failed(self) -> int:
        """Failed rollouts of the round."""
        return sum(count.rollouts for count in self.traffic if not count.success)

    @cached_property
    def by_kind(self) -> Counter[str]:
        """Kind -> judged rollouts of the round; those without a kind are in none."""
        return _count_kinds(self.traffic)

    @cached_property
    def failures_by_kind(self) -> Counter[str]:
        """Kind -> failed rollouts of the round."""
        return _count_kinds(count for count in self.traffic if not count.success)

    @cached_property
    def kinds_by_pattern(self) -> Mapping[str, Counter[str]]:
        """Pattern -> kind -> failed rollouts of the round, of failures that have both."""
        table: dict[str, Counter[str]] = {}
        for count in self.traffic:
            if count.pattern is not None and count.kind is not None and not count.success:
                table.setdefault(count.pattern, Counter())[count.kind] += count.rollouts
        return table

    @cached_property
    def written_kinds(self) -> Mapping[str, Counter[str]]:
        """Pattern -> kind -> tasks that the cycle wrote."""
        table: dict[str, Counter[str]] = {}
        for task in self.written:
            if task.kind is not None:
                table.setdefault(task.pattern, Counter())[task.kind] += 1
        return table

    @cached_property
    def later_tasks(self) -> tuple[WrittenTask, ...]:
        """Tasks that the cycle wrote, that its job sampled, and that no pool of the spec names:
        they entered the pool of their pattern while the job ran."""
        if self.job is None:
            return ()
        first = {task for pool in self.job.spec.pools for task in pool.all_tasks}
        drawn = {item.task for item in self.sampled} - first
        return tuple(task for task in self.written if task.task in drawn)

    @cached_property
    def job_kinds(self) -> Counter[str]:
        """Kind -> tasks of the job's pools that are no replay, references included."""
        if self.job is None:
            return Counter()
        tasks = [task for pool in self.job.spec.target_pools for task in pool.all_tasks]
        tasks += [task.task for task in self.later_tasks]
        kinds = (self.kinds.get(task) for task in tasks)
        return Counter(kind for kind in kinds if kind is not None)

    @cached_property
    def job_patterns(self) -> frozenset[str]:
        """The job's pools that are no replay: they are called after patterns."""
        if self.job is None:
            return frozenset()
        pools = {pool.name for pool in self.job.spec.target_pools}
        return frozenset(pools | {task.pattern for task in self.later_tasks})

    @cached_property
    def quotas(self) -> Mapping[str, int]:
        """Pattern -> tasks that the directive gave it."""
        directive = self.row.directive
        return {} if directive is None else {item.pattern: item.tasks for item in directive.quotas}

    @cached_property
    def quota_by_kind(self) -> Mapping[str, float]:
        """Kind -> tasks of the directive that fall to it: a pattern's are spread as its failures of
        the round are, and where it had none that has a kind, as the tasks written for it."""
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
