"""Select and count the rollouts that a job sampled. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from daemon.cycle.account.facts import UNKNOWN, CycleFacts, PassCount, SampledRollout


def select_targeted(facts: CycleFacts) -> list[SampledRollout]:
    """Return the sampled rollouts on tasks that were written for failure patterns."""
    pools = map_pools(facts)
    return [item for item in facts.sampled if not is_replay(facts, pools.get(item.task))]


def get_kind(facts: CycleFacts, task: str) -> str:
    """Return the kind of a task that the job drew; UNKNOWN if it has none."""
    return facts.kinds.get(task) or UNKNOWN


def map_pools(facts: CycleFacts) -> Mapping[str, str]:
    """Return task -> its pool; a task written while the job ran is in its pattern's pool."""
    pools = {task.task: task.pattern for task in facts.written}
    if facts.job is not None:
        pools |= {task: pool.name for pool in facts.job.spec.pools for task in pool.tasks}
    return pools


def is_replay(facts: CycleFacts, pool: str | None) -> bool:
    """Return whether a pool only replays tasks, so is no target; True for an unknown pool."""
    if pool is None or pool == UNKNOWN or facts.job is None:
        return True
    return any(item.name == pool and item.replay for item in facts.job.spec.pools)


def group_verdicts(sampled: Iterable[SampledRollout]) -> list[list[bool]]:
    """Return each group's verdicts, without groups that have none."""
    groups: defaultdict[tuple[int, int], list[bool]] = defaultdict(list)
    for item in sampled:
        if item.success is not None:
            groups[item.batch, item.group].append(item.success)
    return list(groups.values())


def count_passes(items: Iterable[SampledRollout]) -> PassCount:
    """Count the rollouts with a verdict, and those that passed."""
    verdicts = [item.success for item in items if item.success is not None]
    return PassCount(len(verdicts), sum(verdicts))


def compute_ratio(part: int, whole: int) -> float | None:
    """Return part / whole; None if `whole` is 0."""
    return part / whole if whole else None
