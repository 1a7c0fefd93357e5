"""Select and count the rollouts that a job sampled, for the accounts of tasks and learner (pure).

A task is of the pool that the spec names for it, else of the pattern that it was written for.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from daemon.cycle.account.facts import UNKNOWN, CycleFacts, PassCount, SampledRollout


def select_targeted(facts: CycleFacts) -> list[SampledRollout]:
    """The rollouts of the job at pools that are no replay."""
    pools = map_pools(facts)
    return [item for item in facts.sampled if not is_replay(facts, pools.get(item.task))]


def get_kind(facts: CycleFacts, task: str) -> str:
    """The kind of a task of the job."""
    return facts.kinds.get(task) or UNKNOWN


def map_pools(facts: CycleFacts) -> Mapping[str, str]:
    """Task -> its pool. A task that the spec does not name was written while the job ran: its pool
    is its pattern."""
    pools = {task.task: task.pattern for task in facts.written}
    if facts.job is not None:
        pools |= {task: pool.name for pool in facts.job.spec.pools for task in pool.tasks}
    return pools


def is_replay(facts: CycleFacts, pool: str | None) -> bool:
    """Whether a pool keeps what is passed; a task of no known pool counts as one of it."""
    if pool is None or pool == UNKNOWN or facts.job is None:
        return True
    return any(item.name == pool and item.replay for item in facts.job.spec.pools)


def group_verdicts(sampled: Iterable[SampledRollout]) -> list[list[bool]]:
    """The verdicts of each group that has any."""
    groups: defaultdict[tuple[int, int], list[bool]] = defaultdict(list)
    for item in sampled:
        if item.success is not None:
            groups[item.batch, item.group].append(item.success)
    return list(groups.values())


def count_passes(items: Iterable[SampledRollout]) -> PassCount:
    """The rollouts with a verdict, and those that passed."""
    verdicts = [item.success for item in items if item.success is not None]
    return PassCount(len(verdicts), sum(verdicts))


def compute_ratio(part: int, whole: int) -> float | None:
    """A part of a whole; None of nothing."""
    return part / whole if whole else None
