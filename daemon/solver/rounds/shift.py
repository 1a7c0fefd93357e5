"""Decide which task pools a job draws from after a round (pure functions).

    weight of a pattern's pool     P(pattern) · Σ 4ĉ(1−ĉ) over its tasks, ĉ = (c+1)/(n+2)
    replay                         written tasks that retire (buffer.py), those of patterns whose
                                   priority is 0, and what the spec replays

P is the pattern's priority in the round. ĉ comes from a task's last 16 rollouts in the job: c
passes of n. Pools of written tasks keep their share as a whole. Pools that replay other tasks
(traffic), and pools with an environment, a user or a reward of their own, keep their tasks, share
and name. Source: docs/proposing.md (after SENTINEL, arXiv 2606.12908); the pools of a new job use
the mean over a pattern's tasks instead of the sum (buffer.py).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from daemon.proposer.buffer import REPLAY, PoolEntry
from events.jobs import TaskPool
from events.learning import PoolShare


def shift_pools(
    pools: Sequence[TaskPool],
    entries: Sequence[PoolEntry],
    priorities: Mapping[str, float],
    replay: float,
) -> tuple[TaskPool, ...]:
    """Return the pools after a round, from the pools before it and all tasks written for the job's
    patterns (`entries`). `replay` is the share of a new pool of passed tasks, relative to all
    written tasks. An existing replay pool keeps its share and its older tasks. If nothing is left
    to learn, return the pools unchanged."""
    fixed = [pool for pool in pools if _is_fixed(pool)]
    taken = {pool.name for pool in fixed}
    before = {pool.name: pool for pool in pools if pool.name not in taken}
    open_tasks: defaultdict[str, list[PoolEntry]] = defaultdict(list)
    aimed = {entry.task for entry in entries}
    replayed = before[REPLAY].tasks if REPLAY in before else ()
    passed = [task for task in replayed if task not in aimed]
    for entry in entries:
        if entry.pattern in taken:
            continue
        if entry.retires or priorities.get(entry.pattern, 0) <= 0:
            passed.append(entry.task)
        else:
            open_tasks[entry.pattern].append(entry)
    weights = {
        pattern: priorities[pattern] * sum(entry.openness for entry in own)
        for pattern, own in open_tasks.items()
    }
    if not weights:
        return tuple(pools)
    written = sum(pool.share for pool in pools if not _is_fixed(pool))
    kept = before[REPLAY].share if REPLAY in before else replay * written
    if not passed or REPLAY in taken:
        kept = 0.0
    whole = sum(weights.values())
    shifted = [
        TaskPool(
            name=pattern,
            share=(written - kept) * weights[pattern] / whole,
            tasks=tuple(entry.task for entry in open_tasks[pattern]),
        )
        for pattern in sorted(weights, key=lambda name: (-weights[name], name))
    ]
    shifted += fixed
    if passed and kept:
        shifted.append(TaskPool(name=REPLAY, share=kept, tasks=tuple(passed), replay=True))
    return tuple(shifted)


def _is_fixed(pool: TaskPool) -> bool:
    return not pool.is_plain or (pool.replay and pool.name != REPLAY)


def describe_shift(
    before: Sequence[TaskPool], after: Sequence[TaskPool], outcomes: Mapping[str, tuple[int, int]]
) -> tuple[PoolShare, ...]:
    """Return the share of each pool, with attempts and passes at its tasks. Removed pools are last.
    `outcomes`: task -> (attempts, passes)."""
    old, new = _shares(before), _shares(after)
    gone = [pool for pool in before if pool.name not in new]
    return tuple(
        PoolShare(
            pool=pool.name,
            share=new.get(pool.name, 0.0),
            before=old.get(pool.name, 0.0),
            tasks=len(pool.tasks) if pool.name in new else 0,
            attempts=sum(outcomes.get(task, (0, 0))[0] for task in pool.tasks),
            passes=sum(outcomes.get(task, (0, 0))[1] for task in pool.tasks),
        )
        for pool in (*after, *gone)
    )


def _shares(pools: Sequence[TaskPool]) -> dict[str, float]:
    whole = sum(pool.share for pool in pools)
    return {pool.name: min(1.0, pool.share / whole) for pool in pools}
