"""Divide a directive's places (tasks to write) among patterns, and among the API keys whose
failures they follow. Pure.

A pattern's priority says how many places it wants (`quotas` in diagnosis/priority.py). No key gets
more places than its share of the usable failures, rounded up. So neither a key with fast traffic
nor one that fails in many ways has a larger part of a directive than of the failures. A place that
a key's limit refuses goes to the next pattern. The limits are lifted only if other keys' failures
cannot fill the places: their patterns have no priority, or the maximum of half the places each.
Within a pattern, places are divided in proportion to the keys' failures. A place moves to another
key if that lets another pattern have its place.
"""

import math
from collections.abc import Mapping
from typing import Final

from consumers.diagnosis.priority import quotas

Client = str | None
"""Name of an API key; None for imported rollouts, or if no keys are configured."""

_FREE: Final = 1 << 62


def divide_places(
    priorities: Mapping[str, float],
    claims: Mapping[str, Mapping[Client, int]],
    failures: Mapping[Client, int],
    most: int,
) -> dict[str, dict[Client, int]]:
    """Return pattern -> API key -> places, highest priority first, without patterns that get none.

    `claims` is pattern -> key -> failures that can be followed, for each pattern with a priority.
    `failures` is key -> failures of the round, from which the keys' shares follow (0 for other
    keys). If the round has no failures, no key has a limit.
    """
    wanted = quotas(priorities, most)
    goal, cap = sum(wanted.values()), math.ceil(most / 2)
    total = sum(failures.values())
    keys = {key for of_pattern in claims.values() for key in of_pattern}
    division = _Division(
        claims,
        {key: -(-goal * failures.get(key, 0) // total) if total else _FREE for key in keys},
    )
    for level in range(1, max(wanted.values(), default=0) + 1):
        for pattern in wanted:
            if wanted[pattern] >= level:
                division.add(pattern)
    division.fill(priorities, goal, cap)
    division.limits = dict.fromkeys(keys, _FREE)
    division.fill(priorities, goal, cap)
    ranked = sorted(priorities, key=lambda pattern: (-priorities[pattern], pattern))
    return {pattern: division.read(pattern) for pattern in ranked if division.count(pattern)}


class _Division:
    """The places given out so far: a flow from failure patterns to API keys, which have limits."""

    def __init__(
        self, claims: Mapping[str, Mapping[Client, int]], limits: Mapping[Client, int]
    ) -> None:
        self.limits = limits
        self._claims = claims
        self._counts = {name: dict.fromkeys(of_pattern, 0) for name, of_pattern in claims.items()}
        self._of_key = dict.fromkeys(limits, 0)

    def count(self, pattern: str) -> int:
        return sum(self._counts.get(pattern, {}).values())

    def read(self, pattern: str) -> dict[Client, int]:
        return {key: places for key, places in self._counts[pattern].items() if places}

    def fill(self, priorities: Mapping[str, float], goal: int, cap: int) -> None:
        """Give out the places that are left of `goal`, at most `cap` per pattern. Patterns without
        a place come first, then those with the highest priority per place."""
        waiting = {name for name in self._claims if priorities.get(name, 0.0) > 0}
        left = goal - sum(map(self.count, self._claims))
        while left and waiting:
            pattern = min(waiting, key=lambda name: self._rank(name, priorities[name]))
            if self.count(pattern) < cap and self.add(pattern):
                left -= 1
            else:
                waiting.remove(pattern)

    def _rank(self, pattern: str, priority: float) -> tuple[bool, float, str]:
        places = self.count(pattern)
        return places > 0, -priority / (2 * places + 1), pattern

    def add(self, pattern: str) -> bool:
        """Give a pattern one more place. Return False if the keys' limits forbid each division."""
        return self._add(pattern, set())

    def _add(self, pattern: str, visited: set[Client]) -> bool:
        """Search an augmenting path (as in maximum flow) that avoids the `visited` keys."""
        counts, claims = self._counts[pattern], self._claims[pattern]
        ranked = sorted(
            claims, key=lambda key: ((counts[key] + 1) / claims[key], key is not None, key or "")
        )
        for key in ranked:
            if self._of_key[key] < self.limits[key]:
                self._of_key[key] += 1
                counts[key] += 1
                return True
        for key in ranked:
            if key not in visited:
                visited.add(key)
                if self._release(pattern, key, visited):
                    counts[key] += 1
                    return True
        return False

    def _release(self, pattern: str, key: Client, visited: set[Client]) -> bool:
        """Free one of this key's places: another pattern takes a place of another key instead."""
        for other, counts in self._counts.items():
            if other != pattern and counts.get(key):
                counts[key] -= 1
                if self._add(other, visited):
                    return True
                counts[key] += 1
        return False
