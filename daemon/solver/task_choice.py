"""Choose the tasks of a batch: pools by their shares, tasks of a pool in shuffled order.

Replay pools keep their share. The share of any other pool falls as its tasks are passed:

    weight = share × (1 − EMA of its groups' pass rates), at least .05 of the share

Systematic sampling spreads the groups: each pool gets its expected number, rounded up or down by
chance. With `environments` = `apart`, each batch is from one environment: the one furthest behind
the sum of its shares so far. The draw depends only on the spec, the batch's number, the verdicts so
far and the pools that rounds left.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from random import Random
from typing import Final

from daemon.solver.telemetry.progress import by_group
from daemon.solver.trajectory import Trajectory
from events.jobs import JobSpec, TaskPool

_LEAST: Final = 0.05
"""A pool keeps at least this part of its share, however often it is passed, against forgetting."""


class Choice:
    """Draws the tasks of a job's batches, and holds the state for it."""

    def __init__(self, spec: JobSpec) -> None:
        self.spec = spec
        self.pools = spec.pools
        self.passed: dict[str, float] = {}
        self._drawn: Counter[str] = Counter()
        self._pools = {task: pool for pool in spec.pools for task in pool.tasks}
        self._order = lru_cache(2 * len(spec.pools))(self._shuffle)
        self._owed: defaultdict[str | None, float] = defaultdict(float)
        """Environment -> groups that its shares still owe it; used if environments are apart."""
        self._due: str | None = None
        self._shifts = 0

    def find_pool(self, task: str) -> TaskPool:
        """Return the pool that has the task."""
        return self._pools[task]

    def pool(self, task: str) -> str:
        """Return the name of the pool that has the task."""
        return self._pools[task].name

    def shift(self, pools: Sequence[TaskPool]) -> None:
        """Draw from `pools` from now on. A task that was dropped still counts for its last pool."""
        self.pools = tuple(pools)
        self._pools.update({task: pool for pool in pools for task in pool.tasks})
        self._drawn.clear()
        self._order = lru_cache(2 * len(pools))(self._shuffle)
        self._shifts += 1

    def draw(self, batch: int, *, refill: bool = False) -> list[str]:
        """Draw and count the tasks of a batch. With `refill`, keep the last batch's environment."""
        if self.spec.sampler.environments == "apart":
            self._take_turn(refill=refill)
        names = self._spread(Random(f"pools {self.spec.seed} {batch}").random())
        return [self._next(name) for name in names]

    def add(self, batch: Iterable[Trajectory]) -> None:
        """Update the pass rates with the verdicts of a batch."""
        for task, verdicts in by_group(batch):
            name, rate = self.pool(task), sum(verdicts) / len(verdicts)
            before = self.passed.get(name, rate)
            keep = self.spec.sampler.momentum
            self.passed[name] = keep * before + (1 - keep) * rate

    def shares(self) -> dict[str, float]:
        """Return pool name -> share of the next batch; the shares sum to 1."""
        total = sum(pool.share for pool in self.pools)
        targets = [pool for pool in self.pools if not pool.replay]
        weights = {pool.name: self._weight(pool) for pool in targets}
        targeted = sum(pool.share for pool in targets)
        scale = targeted / sum(weights.values())
        return {
            pool.name: (pool.share if pool.replay else weights[pool.name] * scale) / total
            for pool in self.pools
        }

    def _weight(self, pool: TaskPool) -> float:
        if not self.spec.sampler.adaptive:
            return pool.share
        return pool.share * max(1 - self.passed.get(pool.name, 0.0), _LEAST)

    def _spread(self, offset: float) -> list[str]:
        shares, count = self._choose_shares(), self.spec.sampler.groups
        names, ends = list(shares), list(accumulate(shares.values()))
        places = (bisect_right(ends, (group + offset) / count) for group in range(count))
        return [names[min(place, len(names) - 1)] for place in places]

    def _choose_shares(self) -> dict[str, float]:
        shares = self.shares()
        if self.spec.sampler.environments == "mixed":
            return shares
        own = {name: part for name, part in shares.items() if self._environment(name) == self._due}
        return {name: part / sum(own.values()) for name, part in own.items()}

    def _take_turn(self, *, refill: bool) -> None:
        """Choose the environment of a batch. With `refill`, keep it, but count the batch."""
        groups = self.spec.sampler.groups
        places = dict.fromkeys(self._environment(pool.name) for pool in self.pools)
        for name, share in self.shares().items():
            self._owed[self._environment(name)] += share * groups
        if not refill:
            # max takes the first of equals: pools have an order.
            self._due = max(places, key=lambda place: self._owed[place])
        self._owed[self._due] -= groups

    def _environment(self, name: str) -> str | None:
        place = next(pool.environment for pool in self.pools if pool.name == name)
        return None if place == self.spec.environment else place

    def _next(self, name: str) -> str:
        """Return a pool's next task: all in shuffled order, then all in a new shuffled order."""
        pool = next(pool for pool in self.pools if pool.name == name)
        turn, place = divmod(self._drawn[name], len(pool.tasks))
        self._drawn[name] += 1
        return self._order(name, turn)[place]

    def _shuffle(self, name: str, turn: int) -> tuple[str, ...]:
        pool = next(pool for pool in self.pools if pool.name == name)
        tasks = list(pool.tasks)
        shift = f" {self._shifts}" if self._shifts else ""
        Random(f"tasks {self.spec.seed} {name} {turn}{shift}").shuffle(tasks)
        return tuple(tasks)
