"""Which tasks a training job draws, and how often: pure.

    targeted    tasks written for patterns, one pool per pattern; together p = min(most, step·round)
    modes       tasks of a mode that has a pool of its own are drawn beside those of their pattern,
                with the reward of the mode and at most the mode's part of the pattern's share
    siblings    tasks like the passed ones that ask in the words of failed ones (siblings.py)
    traffic     the tasks of the agent's own traffic
    operator    tasks that an operator added for no pattern; `PoolMix.operator` of all
    replay      written tasks that the policy passes, and those of patterns that fail no more

A pool's share is P(pattern) times the mean of 4ĉ(1−ĉ) over its tasks, with ĉ = (c+1)/(n+2) over a
task's last rollouts: most where the outcome is open. The mean, not the sum: the quota of a pattern
follows P as well, and would count it twice. Inside a pool a job draws each task before any again. A
task with ĉ ≥ .9 over a group of rollouts or more retires. Siblings, traffic, operator and replay
are replay pools to a job: their share is fixed, and its probe ignores them. Source:
docs/proposing.md (after SENTINEL, arXiv 2606.12908).
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
"""Number of a task's last rollouts that its pass rate is computed from."""
RETIRED: Final = 0.9
LEAST: Final = 8
"""Fewest rollouts of a task that retires: a group of a job, which draws most tasks once."""
SIBLINGS: Final = "siblings"
TRAFFIC: Final = "traffic"
REPLAY: Final = "replay"
_NAME: Final = 128
"""Most characters of a pool's name."""


@dataclass(frozen=True, slots=True)
class ModePool:
    """The pool that tasks of a mode have beside the other tasks of their pattern."""

    prefix: str
    """What its name begins with; the pattern follows."""
    reward: RewardKind
    most: float
    """Largest part of what the pattern has, where the pattern has other tasks too."""


@dataclass(frozen=True, slots=True)
class PoolEntry:
    """A task written for a pattern, with its last rollouts (`WINDOW` at most)."""

    task: str
    pattern: str
    attempts: int = 0
    passes: int = 0
    own_pool: ModePool | None = None
    """The pool of its mode; None where it is drawn with the other tasks of its pattern."""

    @property
    def rate(self) -> float:
        """Return the estimated pass rate ĉ."""
        return (self.passes + 1) / (self.attempts + 2)

    @property
    def retires(self) -> bool:
        """Whether the task is passed so often that nothing is left to learn."""
        return self.attempts >= LEAST and self.rate >= RETIRED

    @property
    def openness(self) -> float:
        """Return 4ĉ(1−ĉ): 1 where both outcomes are equally likely."""
        return 4 * self.rate * (1 - self.rate)


@dataclass(frozen=True, slots=True)
class PoolMix:
    """Shares of targeted and retired tasks in a job."""

    step: float = 0.1
    """Increase of the targeted share per round."""
    most: float = 0.5
    replay: float = 0.05
    """Share of retired tasks, if there are any."""
    siblings: float = 0.5
    """Share of the siblings in what is left for the traffic, if there are any."""
    operator: float = 0.1
    """Share of the tasks that an operator added for no pattern, if there are any; all other shares
    are of what is left."""

    def compute_target_share(self, number: int) -> float:
        """Return the share of tasks written for patterns in round `number`, counted from 1."""
        return min(self.most, self.step * max(1, number))


def pools(
    buffered: Iterable[PoolEntry],
    priorities: Mapping[str, float],
    traffic: Sequence[str],
    number: int,
    mixing: PoolMix | None = None,
    siblings: Sequence[str] = (),
) -> tuple[TaskPool, ...]:
    """Return the pools of a job; empty if no pattern with a positive priority has a task left, for
    tasks of an operator alone make no job.

    `priorities` are those of the last round: the tasks of a pattern without one are replayed.
    `traffic` are tasks that were not written for a pattern, `siblings` none of these. Shares sum
    to 1.
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
    """Return the pools of a pattern: of its ordinary tasks, and of each mode with a pool of its
    own. Where there are both, those of a mode have their part by number, and at most the mode's
    largest: a few old ones do not crowd out what the directive asks for."""
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
