"""Account for the tasks that a cycle wrote and its job drew, and how hard they were. Pure."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from daemon.cycle.account.estimates import estimate_share, subtract
from daemon.cycle.account.facts import UNKNOWN, CycleFacts, PassCount, SampledRollout
from daemon.cycle.account.sampled import (
    compute_ratio,
    count_passes,
    get_kind,
    group_verdicts,
    select_targeted,
)

_LEAST_SHARE: Final = 0.05
"""Least share of the failures that a starved kind has."""


@dataclass(frozen=True, slots=True)
class KindTasks:
    """The tasks of one kind: written ones, and those in the job's pools."""

    kind: str
    written: int
    pooled: int
    """Number of tasks in targeted pools."""
    live: PassCount
    failure_share: float
    rollout_share: float | None
    """The kind's share of the job's recorded rollouts at targeted pools, if any."""
    starved: bool | None
    """Whether its share of failures is shown to exceed 5 % and twice its share of rollouts."""
    sampled: PassCount
    """Passes of the kind's tasks in targeted pools before the job's first step."""
    easier: bool | None
    """Whether `sampled` is shown to pass more often than `live`; None if one is unjudged."""


@dataclass(frozen=True, slots=True)
class PoolTasks:
    """A pool of the job's tasks."""

    pool: str
    replay: bool
    share: float
    """The pool's share, divided by the sum of all pools' shares."""
    tasks: int
    kinds: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Tasks:
    """Figures of the tasks that a cycle wrote and of those that its job drew."""

    written: int
    rejected: int
    rejected_by: Mapping[str, int]
    probes: PassCount
    """Passes of written tasks when the answering policy played them before they were accepted."""
    kinds: tuple[KindTasks, ...]
    pools: tuple[PoolTasks, ...]
    targeted_share: float | None
    """Share of the job's recorded rollouts that were on targeted pools."""
    passed_share: float | None
    """Share of the job's judged rollouts that were in groups in which all passed."""


def describe_tasks(facts: CycleFacts) -> Tasks:
    """Return the figures of the tasks that a cycle wrote and that its job drew."""
    groups = group_verdicts(facts.sampled)
    passed = sum(len(group) for group in groups if all(group))
    return Tasks(
        written=len(facts.written),
        rejected=sum(facts.rejections.values()),
        rejected_by=dict(sorted(facts.rejections.items(), key=lambda item: (-item[1], item[0]))),
        probes=facts.probes,
        kinds=_describe_kind_tasks(facts),
        pools=_describe_pools(facts),
        targeted_share=compute_ratio(len(select_targeted(facts)), len(facts.sampled)),
        passed_share=compute_ratio(passed, sum(map(len, groups))),
    )


def _describe_kind_tasks(facts: CycleFacts) -> tuple[KindTasks, ...]:
    written = Counter(task.kind or UNKNOWN for task in facts.written)
    sampled = select_targeted(facts)
    by_kind: defaultdict[str, list[SampledRollout]] = defaultdict(list)
    for item in sampled:
        by_kind[get_kind(facts, item.task)].append(item)
    names = sorted(written.keys() | facts.job_kinds.keys() | by_kind.keys())
    rows = []
    for kind in names:
        attempts, failures = facts.by_kind[kind], facts.failures_by_kind[kind]
        live = PassCount(attempts, attempts - failures)
        own = count_passes(item for item in by_kind[kind] if item.untrained)
        share = compute_ratio(len(by_kind[kind]), len(sampled))
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


def _is_starved(failures: int, failed: int, rollout_share: float) -> bool:
    """Return whether the kind's share of failures is shown to exceed `_LEAST_SHARE` and twice its
    share of rollouts."""
    share = estimate_share(failures, failed)
    return share is not None and share.low > max(_LEAST_SHARE, 2 * rollout_share)


def _is_easier(tasks: PassCount, live: PassCount) -> bool | None:
    """Return whether tasks are shown to pass more often than the traffic; None if unjudged."""
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
            dict(Counter(get_kind(facts, task) for task in pool.tasks).most_common()),
        )
        for pool in pools
    )  # fmt: skip


def explain_tasks(facts: CycleFacts, figures: Tasks) -> str:
    """Return a sentence on the tasks' number and difficulty."""
    counts = f"{figures.written} written, {figures.rejected} rejected"
    if facts.job is None:
        return f"{counts}; no job: {facts.row.ended_because}"
    easier = [kind.kind for kind in figures.kinds if kind.easier]
    text = f"{counts}; "
    if easier:
        text += f"easier than the traffic of {', '.join(easier)}"
    elif any(kind.easier is False for kind in figures.kinds):
        text += "not shown to be easier than the traffic of their kinds"
    else:
        text += "how hard they are beside the traffic is not recorded"
    starved = [kind.kind for kind in figures.kinds if kind.starved]
    if starved:
        text += f"; few rollouts for {', '.join(starved)}"
    if figures.passed_share is not None:
        text += f"; {figures.passed_share:.0%} of the job's rollouts in groups that all passed"
    return text
