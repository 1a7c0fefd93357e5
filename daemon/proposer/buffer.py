"""The pools of tasks that a training job draws from, and their shares. Pure.

    targeted    tasks written for patterns, one pool per pattern; their shares add up to
                p = min(most, step·round)
    modes       tasks of a mode with its own pool, beside their pattern's pool; with the mode's
                reward and at most the mode's part of the pattern's share
    siblings    tasks like the passed ones, near in words to failed ones (siblings.py)
    traffic     the tasks of the agent's own traffic
    operator    tasks that an operator added for no pattern; `PoolMix.operator` of all
    replay      written tasks that the policy passes, and those of patterns that fail no more

A targeted pool's share is in proportion to P(pattern) times the mean of 4ĉ(1−ĉ) over its tasks.
P is the priority, and ĉ = (c+1)/(n+2) over a task's last n rollouts with c passes; open outcomes
count most. A sum would count P twice, since quotas follow it too. A job draws each task of a pool
before any task again. A task with ĉ ≥ .9 over at least `LEAST` rollouts retires. Siblings, traffic,
operator and replay have fixed shares, and a job's probe ignores them. Source: docs/proposing.md
(after SENTINEL, arXiv 2606.12908).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from events.canonical import sha256
from events.jobs import RewardKind, TaskPool
from events.learning import OPERATOR

WINDOW: Final = 16
"""Number of last rollouts from which a task's pass rate is estimated."""
RETIRED: Final = 0.9
LEAST: Final = 8
"""Fewest rollouts of a task that retires: a job's group, since a job draws most tasks once."""
SIBLINGS: Final = "siblings"
TRAFFIC: Final = "traffic"
REPLAY: Final = "replay"
_NAME: Final = 128


@dataclass(frozen=True, slots=True)
class ModePool:
    """A separate pool for a mode's tasks, beside the pool of their pattern."""

    prefix: str
    """Beginning of the pool's name, before the pattern's name."""
    reward: RewardKind
    most: float
    """Largest part of the pattern's share if the pattern also has ordinary tasks."""


@dataclass(frozen=True, slots=True)
class PoolEntry:
    """A task written for a pattern, with the counts of its last rollouts, at most `WINDOW`."""

    task: str
    pattern: str
    attempts: int = 0
    passes: int = 0
    own_pool: ModePool | None = None
    """Separate pool of the task's mode; None if the task is in its pattern's pool."""

    @property
    def rate(self) -> float:
        """Return the estimated pass rate ĉ."""
        return (self.passes + 1) / (self.attempts + 2)

    @property
    def retires(self) -> bool:
        """Return whether the policy passes the task so often that nothing is left to learn."""
        return self.attempts >= LEAST and self.rate >= RETIRED

    @property
    def openness(self) -> float:
        """Return 4ĉ(1−ĉ), which is 1 if passing and failing are equally likely."""
        return 4 * self.rate * (1 - self.rate)


@dataclass(frozen=True, slots=True)
class PoolMix:
    """The settings that decide the shares of a job's pools."""

    step: float = 0.1
    """Growth of the targeted share with each round."""
    most: float = 0.5
    replay: float = 0.05
    """Share of the replay pool, if it has tasks."""
    siblings: float = 0.5
    """Siblings' part of the share that siblings and traffic divide, if there are siblings."""
    operator: float = 0.1
    """Share of the tasks that an operator added, if any; the other pools divide the rest."""

    def compute_target_share(self, number: int) -> float:
        """Return the share of targeted tasks in round `number`, counted from 1."""
        return min(self.most, self.step * max(1, number))


def pools(
    buffered: Iterable[PoolEntry],
    priorities: Mapping[str, float],
    traffic: Sequence[str],
    number: int,
    mixing: PoolMix | None = None,
    siblings: Sequence[str] = (),
) -> tuple[TaskPool, ...]:
    """Return a job's pools, whose shares sum to 1. Return () if no task belongs to a pattern with a
    positive priority: an operator's tasks alone make no job.

    `priorities` are the last round's; tasks of other patterns are replayed. `traffic` are tasks
    that were written for no pattern, and `siblings` are other tasks than these.
    """
    mixing = mixing or PoolMix()
    retired: list[str] = []
    added: list[str] = []
    by_pattern: defaultdict[str, list[PoolEntry]] = defaultdict(list)
    for entry in buffered:
        if entry.pattern == OPERATOR and not entry.retires:
            added.append(entry.task)
        elif entry.retires or priorities.get(entry.pattern, 0) <= 0:
            retired.append(entry.task)
        else:
            by_pattern[entry.pattern].append(entry)
    if not by_pattern:
        return ()
    aimed = mixing.compute_target_share(number) if traffic else 1.0
    kept = mixing.replay if retired else 0.0
    own = mixing.operator if added else 0.0
    left = (1 - kept) * (1 - own)
    weights = {
        pattern: priorities[pattern] * fmean(entry.openness for entry in tasks)
        for pattern, tasks in by_pattern.items()
    }
    whole = sum(weights.values())
    task_pools = [
        pool
        for pattern in sorted(weights, key=lambda name: (-weights[name], name))
        for pool in _build_target_pools(
            pattern, left * aimed * weights[pattern] / whole, by_pattern[pattern]
        )
    ]
    near = mixing.siblings if siblings else 0.0
    for name, share, tasks in (
        (SIBLINGS, left * (1 - aimed) * near, siblings),
        (TRAFFIC, left * (1 - aimed) * (1 - near), traffic),
        (OPERATOR, own, added),
        (REPLAY, kept * (1 - own), retired),
    ):
        if share > 0:
            task_pools.append(TaskPool(name=name, share=share, tasks=tuple(tasks), replay=True))
    return tuple(task_pools)


def _build_target_pools(pattern: str, share: float, entries: Sequence[PoolEntry]) -> list[TaskPool]:
    """Return a pattern's pools: one of ordinary tasks and one for each mode with its own pool. If
    there are ordinary tasks, a mode gets its part by number, up to the mode's limit: a few old
    tasks shall not crowd out the directive's."""
    drawn = tuple(entry.task for entry in entries if entry.own_pool is None)
    by_mode: defaultdict[ModePool, list[str]] = defaultdict(list)
    for entry in entries:
        if entry.own_pool is not None:
            by_mode[entry.own_pool].append(entry.task)
    parts = {own: len(tasks) / len(entries) for own, tasks in by_mode.items()}
    if drawn:
        parts = {own: min(own.most, part) for own, part in parts.items()}
    left = 1 - sum(parts.values())
    ordinary = [TaskPool(name=pattern, share=share * left, tasks=drawn)] if drawn else []
    return ordinary + [
        TaskPool(
            name=_name_pool(own, pattern),
            share=share * parts[own],
            tasks=tuple(tasks),
            reward=own.reward,
        )
        for own, tasks in by_mode.items()
    ]


def _name_pool(own: ModePool, pattern: str) -> str:
    name = f"{own.prefix}{pattern}"
    return name if len(name) <= _NAME else f"{own.prefix}{sha256(pattern)[:32]}"
