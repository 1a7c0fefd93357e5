"""The figures of each stage of a cycle, beside what it lost (pure).

    describe_diagnosis(facts)   kinds and patterns of the round's traffic, and who got which quota
    describe_tasks(facts)       what was written, and how hard it is beside the traffic
    describe_learner(facts)     what the job sampled, per pool, from its first to its last part
    describe_gate(facts)        what each target and kind gained, and what the gate threw away
    describe_canary(facts)      what live traffic showed

A figure that the tables do not hold is None. Kinds without a name are `UNKNOWN`.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import mean
from typing import Final

from daemon.cycle.account.balance import is_refuted, measure_gate_gain, measure_live
from daemon.cycle.account.estimates import estimate_mean, estimate_share, subtract, to_points
from daemon.cycle.account.facts import ArmSessions, CycleFacts, SampledRollout
from envs.statistics import Interval

UNKNOWN: Final = "unknown"
"""Kind of a task that has none, and of a rollout that names no task."""
_LEAST_SHARE: Final = 0.05
"""Share of failures below which no kind is said to be starved."""
_PARTS: Final = 4
"""First and last part of a job are such a share of its batches each."""


@dataclass(frozen=True, slots=True)
class PassCount:
    """Judged rollouts, and passed ones among them."""

    attempts: int
    passed: int


@dataclass(frozen=True, slots=True)
class KindTraffic:
    """A kind of task in the round's traffic."""

    kind: str
    rollouts: int
    failures: int
    pass_rate: Interval | None
    lost: Interval
    """Points of all traffic's pass^1 that its failures cost."""
    failure_share: float
    """Of all failures of the round."""
    quota: float
    """Tasks of the directive that fall to it."""


@dataclass(frozen=True, slots=True)
class PatternRank:
    """A failure pattern of the round."""

    pattern: str
    priority: float
    failures: int
    """Deduplicated."""
    quota: int
    kinds: Mapping[str, int]
    """Kind -> failed rollouts of the round's traffic that have the pattern."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """How the failures were ranked."""

    round: int | None
    judged: int
    unjudged: int
    without_pattern: int
    """Failures that no rule explains: they form no pattern."""
    kinds: tuple[KindTraffic, ...]
    """Most failures first."""
    patterns: tuple[PatternRank, ...]
    """Highest priority first."""
    weakest: tuple[str, ...]
    """The kind with the most failures, and those not shown to have fewer."""
    ranked_first: str | None
    """The kind of most failures of the pattern with the highest priority."""
    weakest_first: bool | None
    """Whether that is one of the weakest; None where no kind is known."""
    without_quota: tuple[str, ...]
    """Kinds with failures to which no whole task of the directive falls."""


@dataclass(frozen=True, slots=True)
class KindTasks:
    """The tasks of a kind that the cycle wrote, and those of its job's pools."""

    kind: str
    written: int
    pooled: int
    """Tasks of the job's pools that are no replay."""
    live: PassCount
    """The round's traffic of this kind."""
    failure_share: float
    """Of all failures of the round."""
    rollout_share: float | None
    """Of the job's recorded rollouts at pools that are no replay; None where there are none."""
    starved: bool | None
    """Whether the kind's share of failures is shown to be above 5 %, and more than twice that."""
    sampled: PassCount
    """Those tasks as the job sampled them before its first step."""
    easier: bool | None
    """Whether those are shown to be passed more often than the traffic; None where one has no
    judged rollout."""


@dataclass(frozen=True, slots=True)
class PoolTasks:
    """A pool of the job."""

    pool: str
    replay: bool
    share: float
    """Of the shares of all pools, as the spec has them."""
    tasks: int
    kinds: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Tasks:
    """What was written, and what the job was given."""

    written: int
    rejected: int
    rejected_by: Mapping[str, int]
    """Check -> tasks that failed it."""
    probes: PassCount
    """Written tasks as the policy that answered passed them, before they entered the buffer."""
    kinds: tuple[KindTasks, ...]
    pools: tuple[PoolTasks, ...]
    targeted_share: float | None
    """Of the job's recorded rollouts, those at pools that are no replay."""
    passed_share: float | None
    """Of the job's judged rollouts, those in groups in which all passed."""


@dataclass(frozen=True, slots=True)
class PoolSamples:
    """What the job sampled of one pool."""

    pool: str
    replay: bool
    rollouts: int
    groups: int
    informative: int
    """Groups in which some passed and some failed."""
    first: PassCount
    """In the first quarter of the job's batches; `last`: in the last one."""
    last: PassCount
    first_reward: float | None
    """Mean shaped reward there."""
    last_reward: float | None


@dataclass(frozen=True, slots=True)
class KindSamples:
    """What the job sampled of one kind, in pools that are no replay."""

    kind: str
    rollouts: int
    groups: int
    informative: int
    first: PassCount
    last: PassCount
    left: float | None
    """Points of all traffic's pass^1 that its failures cost and that the gate did not see gained;
    None without a gate."""


@dataclass(frozen=True, slots=True)
class Learner:
    """What the job did."""

    job: str | None
    outcome: str | None
    reason: str | None
    parent: str | None
    steps: int | None
    """Optimizer steps, those of a warm start included."""
    rollouts: int | None
    """Used of the budget, reference trajectories included."""
    budget: int | None
    recorded: int
    """Rollouts that the log has, and that the figures rest on."""
    unplaced: int
    """Recorded rollouts whose place in the job is unknown: they are in no figure."""
    warm_start: str | None
    """Its mode, in the spec; None without one."""
    references: int | None
    """Reference trajectories that were shown; None where no rollout was recorded."""
    pools: tuple[PoolSamples, ...]
    kinds: tuple[KindSamples, ...]
    """Of the pools that are no replay, most rollouts first."""


@dataclass(frozen=True, slots=True)
class TargetGain:
    """What the gate measured on one target."""

    target: str
    kinds: Mapping[str, float]
    tasks: int
    gain: float
    """Points of pass^1; so is the next."""
    low: float
    verdict: str
    power: float | None
    detectable: float | None
    """Points that so many tasks show with a power of 80 %."""


@dataclass(frozen=True, slots=True)
class KindGain:
    """What the gate's tasks of a kind show."""

    kind: str
    tasks: int
    traffic_share: float
    """Of the round's rollouts that have a kind."""
    gain: Interval | None
    """Points of pass^1 of the kind."""
    traffic_gain: float | None
    """The same in points of all traffic's pass^1: times its share."""


@dataclass(frozen=True, slots=True)
class FailedCheck:
    """A check that a candidate did not pass."""

    check: str
    verdict: str
    value: float
    limit: float
    low: float | None
    tasks: int


@dataclass(frozen=True, slots=True)
class Gate:
    """What the gate measured and decided."""

    adapter: str | None
    incumbent: str | None
    decision: str | None
    gain: Interval | None
    """Points of all traffic's pass^1, not clipped."""
    unmeasured_share: float | None
    """Of the round's rollouts that have a kind, those of kinds without a task at the gate."""
    targets: tuple[TargetGain, ...]
    kinds: tuple[KindGain, ...]
    failed: tuple[FailedCheck, ...]
    carried_on_by: tuple[int, ...]
    """Numbers of the cycles whose jobs trained on from the candidate."""


@dataclass(frozen=True, slots=True)
class Canary:
    """What live traffic showed."""

    minutes: float | None
    canary: PassCount
    incumbent: PassCount
    difference: Interval | None
    """Of their shares of passed sessions, in points."""
    shares: tuple[float, ...]
    refuted: bool
    """Whether live traffic shows the candidate to be worse than the incumbent."""


def describe_diagnosis(facts: CycleFacts) -> Diagnosis:
    """How the failures were ranked."""
    kinds = _describe_kinds(facts)
    known = [kind for kind in kinds if kind.kind != UNKNOWN and kind.failures]
    weakest = tuple(kind.kind for kind in known if not _is_fewer(kind.failures, known[0].failures))
    patterns = tuple(
        PatternRank(
            row.pattern, row.priority, row.failures, facts.quotas.get(row.pattern, 0),
            dict((facts.kinds_by_pattern.get(row.pattern) or Counter()).most_common()),
        )
        for row in facts.patterns
    )  # fmt: skip
    first = _find_first_kind(facts, patterns)
    return Diagnosis(
        round=facts.row.round,
        judged=facts.judged,
        unjudged=facts.unjudged,
        without_pattern=sum(
            count.rollouts
            for count in facts.traffic
            if not count.success and count.pattern not in {row.pattern for row in patterns}
        ),
        kinds=kinds,
        patterns=patterns,
        weakest=weakest,
        ranked_first=first,
        weakest_first=first in weakest if first is not None and weakest else None,
        without_quota=tuple(kind.kind for kind in known if kind.quota < 1 - 1e-9),
    )


def describe_tasks(facts: CycleFacts) -> Tasks:
    """What was written, and what the job was given."""
    groups = _group(facts.sampled)
    passed = sum(len(group) for group in groups if all(group))
    return Tasks(
        written=len(facts.written),
        rejected=sum(facts.rejections.values()),
        rejected_by=dict(sorted(facts.rejections.items(), key=lambda item: (-item[1], item[0]))),
        probes=PassCount(*facts.probes),
        kinds=_describe_kind_tasks(facts),
        pools=_describe_pools(facts),
        targeted_share=_share(len(_select_targeted(facts)), len(facts.sampled)),
        passed_share=_share(passed, sum(map(len, groups))),
    )


def describe_learner(facts: CycleFacts) -> Learner:
    """What the job did."""
    job, recorded = facts.job, len(facts.sampled) + facts.ungrouped
    used = None if job is None else job.rollouts
    return Learner(
        job=None if job is None else job.job,
        outcome=None if job is None else job.outcome,
        reason=None if job is None else job.reason or None,
        parent=facts.parent,
        steps=None if job is None else job.steps,
        rollouts=used,
        budget=None if job is None else job.spec.sampler.rollouts,
        recorded=recorded,
        unplaced=facts.ungrouped,
        warm_start=None if job is None or job.spec.warm_start is None else job.spec.warm_start.mode,
        references=None if used is None or not recorded else max(0, used - recorded),
        pools=_describe_samples(facts),
        kinds=_describe_kind_samples(facts),
    )


def describe_gate(facts: CycleFacts) -> Gate:
    """What the gate measured and decided."""
    row = facts.adapter
    report = None if row is None else row.gate
    return Gate(
        adapter=None if row is None else row.adapter,
        incumbent=None if row is None or report is None else row.incumbent or row.base,
        decision=None if report is None else report.decision,
        gain=measure_gate_gain(facts),
        unmeasured_share=_count_unmeasured_share(facts) if facts.pairs else None,
        targets=() if report is None else tuple(
            TargetGain(
                target.name, dict(target.kinds), target.tasks, 100 * target.gain, 100 * target.low,
                target.verdict, target.power,
                None if target.detectable is None else 100 * target.detectable,
            )
            for target in report.targets
        ),
        kinds=_describe_gains(facts),
        failed=() if report is None else tuple(
            FailedCheck(item.name, item.verdict, item.value, item.limit, item.low, item.tasks)
            for item in report.checks
            if item.verdict != "PASS"
        ),
        carried_on_by=facts.successors,
    )  # fmt: skip


def describe_canary(facts: CycleFacts) -> Canary:
    """What live traffic showed."""
    canary = facts.canary
    if canary is None:
        return Canary(None, PassCount(0, 0), PassCount(0, 0), None, (), refuted=False)
    return Canary(
        minutes=canary.minutes,
        canary=_count_arm(canary.canary),
        incumbent=_count_arm(canary.incumbent),
        difference=measure_live(canary),
        shares=canary.shares,
        refuted=is_refuted(facts),
    )


# Diagnosis


def _describe_kinds(facts: CycleFacts) -> tuple[KindTraffic, ...]:
    """The kinds of the round's traffic, most failures first, and those without a kind last."""
    kinds = [
        _describe_kind(facts, kind, count, facts.failures_by_kind[kind])
        for kind, count in facts.by_kind.items()
    ]
    kinds.sort(key=lambda kind: (-kind.failures, -kind.rollouts, kind.kind))
    unknown = facts.judged - facts.by_kind.total()
    if unknown:
        failures = facts.failed - facts.failures_by_kind.total()
        kinds.append(_describe_kind(facts, UNKNOWN, unknown, failures))
    return tuple(kinds)


def _describe_kind(facts: CycleFacts, kind: str, rollouts: int, failures: int) -> KindTraffic:
    lost = estimate_share(failures, facts.judged)
    assert lost is not None, "a kind of the round has rollouts"
    return KindTraffic(
        kind=kind,
        rollouts=rollouts,
        failures=failures,
        pass_rate=estimate_share(rollouts - failures, rollouts),
        lost=to_points(lost),
        failure_share=failures / facts.failed if facts.failed else 0.0,
        quota=facts.quota_by_kind.get(kind, 0.0),
    )


def _is_fewer(few: int, many: int) -> bool:
    """Whether a count is shown to be smaller than another: the share of both that is the larger is
    above one half, with its interval."""
    share = estimate_share(many, few + many)
    return share is not None and share.low > 0.5


def _find_first_kind(facts: CycleFacts, patterns: Sequence[PatternRank]) -> str | None:
    """The kind of most failures of the pattern with the highest priority; where the round has none
    of it with a kind, the kind of most tasks that were written for it."""
    if not patterns or patterns[0].priority <= 0:
        return None
    name = patterns[0].pattern
    kinds = facts.kinds_by_pattern.get(name) or facts.written_kinds.get(name)
    return None if not kinds else min(kinds, key=lambda kind: (-kinds[kind], kind))


# Tasks


def _describe_kind_tasks(facts: CycleFacts) -> tuple[KindTasks, ...]:
    written = Counter(task.kind or UNKNOWN for task in facts.written)
    sampled = _select_targeted(facts)
    by_kind: defaultdict[str, list[SampledRollout]] = defaultdict(list)
    for item in sampled:
        by_kind[_kind_of(facts, item.task)].append(item)
    names = sorted(written.keys() | facts.job_kinds.keys() | by_kind.keys())
    rows = []
    for kind in names:
        attempts, failures = facts.by_kind[kind], facts.failures_by_kind[kind]
        live = PassCount(attempts, attempts - failures)
        own = _count_passes(item for item in by_kind[kind] if item.untrained)
        share = _share(len(by_kind[kind]), len(sampled))
        rows.append(
            KindTasks(
                kind=kind,
                written=written[kind],
                pooled=facts.job_kinds[kind],
                live=live,
                failure_share=failures / facts.failed if facts.failed else 0.0,
                rollout_share=share,
                starved=None if share is None else _is_starved(failures, facts.failed, share),
                sampled=own,
                easier=_is_easier(own, live),
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.pooled, -row.written, row.kind)))


def _select_targeted(facts: CycleFacts) -> list[SampledRollout]:
    """The rollouts of the job at pools that are no replay."""
    pools = _pools_of(facts)
    return [item for item in facts.sampled if not _is_replay(facts, pools.get(item.task))]


def _is_starved(failures: int, failed: int, rollout_share: float) -> bool:
    """Whether a kind's share of failures is shown to be above `_LEAST_SHARE`, and more than twice
    its share of rollouts."""
    share = estimate_share(failures, failed)
    return share is not None and share.low > max(_LEAST_SHARE, 2 * rollout_share)


def _is_easier(tasks: PassCount, live: PassCount) -> bool | None:
    """Whether tasks are shown to be passed more often than the traffic of their kind."""
    first = estimate_share(tasks.passed, tasks.attempts)
    second = estimate_share(live.passed, live.attempts)
    return None if first is None or second is None else subtract(first, second).low > 0


def _describe_pools(facts: CycleFacts) -> tuple[PoolTasks, ...]:
    if facts.job is None:
        return ()
    pools = facts.job.spec.pools
    whole = sum(pool.share for pool in pools)
    return tuple(
        PoolTasks(
            pool.name, pool.replay, pool.share / whole, len(pool.tasks),
            dict(Counter(_kind_of(facts, task) for task in pool.tasks).most_common()),
        )
        for pool in pools
    )  # fmt: skip


def _kind_of(facts: CycleFacts, task: str) -> str:
    return facts.kinds.get(task) or UNKNOWN


def _pools_of(facts: CycleFacts) -> Mapping[str, str]:
    """Task -> its pool. A task that the spec does not name was written while the job ran: its pool
    is its pattern."""
    pools = {task.task: task.pattern for task in facts.written}
    if facts.job is not None:
        pools |= {task: pool.name for pool in facts.job.spec.pools for task in pool.tasks}
    return pools


def _is_replay(facts: CycleFacts, pool: str | None) -> bool:
    """Whether a pool keeps what is passed; a task of no known pool counts as one of it."""
    if pool is None or pool == UNKNOWN or facts.job is None:
        return True
    return any(item.name == pool and item.replay for item in facts.job.spec.pools)


# Learner


def _describe_samples(facts: CycleFacts) -> tuple[PoolSamples, ...]:
    pools = _pools_of(facts)
    by_pool: defaultdict[str, list[SampledRollout]] = defaultdict(list)
    for item in facts.sampled:
        by_pool[pools.get(item.task, UNKNOWN)].append(item)
    is_first, is_last = _parts(facts.sampled)
    return tuple(
        _describe_pool_samples(pool, _is_replay(facts, pool), items, is_first, is_last)
        for pool, items in sorted(
            by_pool.items(),
            key=lambda entry: (_is_replay(facts, entry[0]), -len(entry[1]), entry[0]),
        )
    )


def _describe_kind_samples(facts: CycleFacts) -> tuple[KindSamples, ...]:
    by_kind: defaultdict[str, list[SampledRollout]] = defaultdict(list)
    for item in _select_targeted(facts):
        by_kind[_kind_of(facts, item.task)].append(item)
    is_first, is_last = _parts(facts.sampled)
    gains = {gain.kind: gain.traffic_gain for gain in _describe_gains(facts)}
    rows = []
    for kind, items in by_kind.items():
        groups, gain = _group(items), gains.get(kind)
        cost = 100 * facts.failures_by_kind[kind] / facts.judged if facts.judged else 0.0
        rows.append(
            KindSamples(
                kind=kind,
                rollouts=len(items),
                groups=len(groups),
                informative=sum(any(group) and not all(group) for group in groups),
                first=_count_passes(filter(is_first, items)),
                last=_count_passes(filter(is_last, items)),
                left=None if gain is None else cost - gain,
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.rollouts, row.kind)))


def _describe_pool_samples(
    pool: str,
    replay: bool,
    items: Sequence[SampledRollout],
    is_first: Callable[[SampledRollout], bool],
    is_last: Callable[[SampledRollout], bool],
) -> PoolSamples:
    groups = _group(items)
    first, last = list(filter(is_first, items)), list(filter(is_last, items))
    return PoolSamples(
        pool=pool,
        replay=replay,
        rollouts=len(items),
        groups=len(groups),
        informative=sum(any(group) and not all(group) for group in groups),
        first=_count_passes(first),
        last=_count_passes(last),
        first_reward=_average_reward(first),
        last_reward=_average_reward(last),
    )


def _parts(
    sampled: Sequence[SampledRollout],
) -> tuple[Callable[[SampledRollout], bool], Callable[[SampledRollout], bool]]:
    """Whether a rollout is of the first quarter of the job's batches, and of the last one."""
    batches = sorted({item.batch for item in sampled})
    count = ceil(len(batches) / _PARTS)
    first, last = set(batches[:count]), set(batches[len(batches) - count :])
    return lambda item: item.batch in first, lambda item: item.batch in last


def _group(sampled: Iterable[SampledRollout]) -> list[list[bool]]:
    """The verdicts of each group that has any."""
    groups: defaultdict[tuple[int, int], list[bool]] = defaultdict(list)
    for item in sampled:
        if item.success is not None:
            groups[item.batch, item.group].append(item.success)
    return list(groups.values())


def _count_passes(items: Iterable[SampledRollout]) -> PassCount:
    verdicts = [item.success for item in items if item.success is not None]
    return PassCount(len(verdicts), sum(verdicts))


def _average_reward(items: Iterable[SampledRollout]) -> float | None:
    rewards = [item.reward for item in items if item.reward is not None]
    return mean(rewards) if rewards else None


# Gate and canary


def _describe_gains(facts: CycleFacts) -> tuple[KindGain, ...]:
    differences: defaultdict[str, list[float]] = defaultdict(list)
    for pair in facts.pairs:
        differences[pair.kind or UNKNOWN].append(pair.candidate - pair.incumbent)
    known = facts.by_kind.total()
    rows = []
    for kind, values in differences.items():
        gain = estimate_mean(values)
        share = facts.by_kind[kind] / known if known else 0.0
        points = None if gain is None else to_points(gain)
        weighted = None if points is None or not known else share * points.value
        rows.append(KindGain(kind, len(values), share, points, weighted))
    return tuple(sorted(rows, key=lambda row: (-row.traffic_share, row.kind)))


def _count_unmeasured_share(facts: CycleFacts) -> float | None:
    played = {pair.kind for pair in facts.pairs}
    others = sum(count for kind, count in facts.by_kind.items() if kind not in played)
    return _share(others, facts.by_kind.total())


def _count_arm(arm: ArmSessions) -> PassCount:
    return PassCount(arm.judged, arm.passed)


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
