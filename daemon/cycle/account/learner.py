"""Account for a cycle's training job: its samples, at first and at last. Pure."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import mean
from typing import Final

from consumers.reads.learning import JobRow
from daemon.cycle.account.balance import LEAST
from daemon.cycle.account.facts import UNKNOWN, CycleFacts, PassCount, SampledRollout
from daemon.cycle.account.gate import describe_gains
from daemon.cycle.account.sampled import (
    count_passes,
    get_kind,
    group_verdicts,
    is_replay,
    map_pools,
    select_targeted,
)
from events.learning import BRANCH

_PARTS: Final = 4
"""A job's batches are divided into so many parts; the first and the last are compared."""


@dataclass(frozen=True, slots=True)
class PoolSamples:
    """The rollouts that the job sampled from one pool."""

    pool: str
    replay: bool
    rollouts: int
    groups: int
    informative: int
    """Number of groups with both passed and failed rollouts."""
    first: PassCount
    """Passes in the first quarter of the job's batches; `last`: in the last quarter."""
    last: PassCount
    first_reward: float | None
    last_reward: float | None


@dataclass(frozen=True, slots=True)
class KindSamples:
    """The rollouts that the job sampled from targeted pools on tasks of one kind."""

    kind: str
    rollouts: int
    groups: int
    informative: int
    first: PassCount
    last: PassCount
    left: float | None
    """Points of pass^1 over all traffic that the kind's failures cost, less the gain that the gate
    measured; None without a gate."""


@dataclass(frozen=True, slots=True)
class Learner:
    """Figures of a cycle's training job: steps, rollouts, samples by pool and kind."""

    job: str | None
    outcome: str | None
    reason: str | None
    parent: str | None
    steps: int | None
    """Number of optimizer steps, those of the warm start included."""
    rollouts: int | None
    """Rollouts used of the budget, reference trajectories included."""
    budget: int | None
    recorded: int
    """Number of recorded rollouts, from which the figures are computed."""
    unplaced: int
    """Number of recorded rollouts without a known batch and group; no figure counts them."""
    warm_start: str | None
    """Mode of the warm start in the job's spec; None without one."""
    references: int | None
    """Number of reference trajectories shown; None if no rollout is recorded."""
    pools: tuple[PoolSamples, ...]
    kinds: tuple[KindSamples, ...]
    """Samples of targeted pools by kind, most rollouts first."""
    jobs: tuple[dict[str, str | int | None], ...] = ()
    """Figures of each job in a cycle with branches, else (); the other figures are their sums."""


def describe_learner(facts: CycleFacts) -> Learner:
    """Return the figures of a cycle's training job: steps, rollouts and samples."""
    job, recorded = facts.job, len(facts.sampled) + facts.unplaced
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
        unplaced=facts.unplaced,
        warm_start=None if job is None or job.spec.warm_start is None else job.spec.warm_start.mode,
        references=None if used is None or not recorded else max(0, used - recorded),
        pools=_describe_samples(facts),
        kinds=_describe_kind_samples(facts),
        jobs=tuple(map(_describe_branch_job, facts.jobs)),
    )  # fmt: skip


def _describe_branch_job(job: JobRow) -> dict[str, str | int | None]:
    """Return the figures of one of a cycle's jobs; its branch is None for the chooser's job."""
    return {
        "job": job.job,
        BRANCH: job.branch,
        "outcome": job.outcome,
        "reason": job.reason or None,
        "steps": job.steps,
        "rollouts": job.rollouts,
        "budget": job.spec.sampler.rollouts,
    }


def _describe_samples(facts: CycleFacts) -> tuple[PoolSamples, ...]:
    pools = map_pools(facts)
    by_pool: defaultdict[str, list[SampledRollout]] = defaultdict(list)
    for item in facts.sampled:
        by_pool[pools.get(item.task, UNKNOWN)].append(item)
    is_first, is_last = _parts(facts.sampled)
    return tuple(
        _describe_pool_samples(pool, is_replay(facts, pool), items, is_first, is_last)
        for pool, items in sorted(
            by_pool.items(),
            key=lambda entry: (is_replay(facts, entry[0]), -len(entry[1]), entry[0]),
        )
    )


def _describe_kind_samples(facts: CycleFacts) -> tuple[KindSamples, ...]:
    by_kind: defaultdict[str, list[SampledRollout]] = defaultdict(list)
    for item in select_targeted(facts):
        by_kind[get_kind(facts, item.task)].append(item)
    is_first, is_last = _parts(facts.sampled)
    gains = {gain.kind: gain.traffic_gain for gain in describe_gains(facts)}
    rows = []
    for kind, items in by_kind.items():
        groups, gain = group_verdicts(items), gains.get(kind)
        cost = 100 * facts.failures_by_kind[kind] / facts.judged if facts.judged else 0.0
        rows.append(
            KindSamples(
                kind=kind,
                rollouts=len(items),
                groups=len(groups),
                informative=sum(any(group) and not all(group) for group in groups),
                first=count_passes(filter(is_first, items)),
                last=count_passes(filter(is_last, items)),
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
    groups = group_verdicts(items)
    first, last = list(filter(is_first, items)), list(filter(is_last, items))
    return PoolSamples(
        pool=pool,
        replay=replay,
        rollouts=len(items),
        groups=len(groups),
        informative=sum(any(group) and not all(group) for group in groups),
        first=count_passes(first),
        last=count_passes(last),
        first_reward=_average_reward(first),
        last_reward=_average_reward(last),
    )


def _parts(
    sampled: Sequence[SampledRollout],
) -> tuple[Callable[[SampledRollout], bool], Callable[[SampledRollout], bool]]:
    """Return tests for rollouts of the first, and of the last, quarter of a job's batches."""
    batches = sorted({item.batch for item in sampled})
    count = ceil(len(batches) / _PARTS)
    first, last = set(batches[:count]), set(batches[len(batches) - count :])
    return lambda item: item.batch in first, lambda item: item.batch in last


def _average_reward(items: Iterable[SampledRollout]) -> float | None:
    rewards = [item.reward for item in items if item.reward is not None]
    return mean(rewards) if rewards else None


def explain_learner(figures: Learner) -> str:
    """Return a sentence on a job's steps, rollouts and informative groups."""
    if figures.job is None:
        return "no job was requested"
    what = f"{figures.outcome}, {figures.steps or 0} steps, {figures.rollouts or 0:,} rollouts"
    reason = f": {figures.reason}" if figures.reason else ""
    targets = [pool for pool in figures.pools if not pool.replay]
    if not targets:
        return f"{what}{reason}; what was sampled is not recorded"
    groups = sum(pool.groups for pool in targets)
    informative = sum(pool.informative for pool in targets)
    parts = (
        f"{sum(part.passed for part in counts)} of {sum(part.attempts for part in counts)}"
        for counts in ([pool.first for pool in targets], [pool.last for pool in targets])
    )
    text = (
        f"{what}{reason}; of the target pools {informative} of {groups} groups were informative, "
        f"and passed {' at first, '.join(parts)} at last"
    )
    left = sorted(
        ((kind.left, kind.kind) for kind in figures.kinds if (kind.left or 0.0) > LEAST),
        reverse=True,
    )
    points = ", ".join(f"{kind} {value:.1f}" for value, kind in left)
    return f"{text}; points left: {points}" if points else text
