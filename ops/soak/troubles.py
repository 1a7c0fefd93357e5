"""What goes wrong during a soak, and when (minutes, seed -> troubles).

    troubles(7200.0, targets, seed=0, servers=True)     in the order in which they come

Kills of roles come until CALM of the time is over, every target once before one comes twice. Then
no role is killed any more, so that each role has one life that is long enough to show a slow leak.
The servers under them are killed or stopped all the time: it is the roles that outlive them that
leak.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice, repeat
from random import Random
from typing import Final, Literal

Kind = Literal["kill", "broker killed", "broker stopped", "database killed", "database stopped"]

KILL_EVERY: Final = 180.0
"""Seconds between two kills, give or take a third; in a short run less, so that there are some."""
SERVER_EVERY: Final = 300.0
CALM: Final = 0.55
"""Part of the run after which no role is killed."""
LAST: Final = 0.92
"""Part of the run after which nothing happens any more."""
AWAY: Final = (3.0, 30.0)
"""Seconds that a server is away."""

_AT_LEAST: Final = 3
"""Least number of troubles of each kind, about, in a short run."""
_SERVERS: Final[tuple[Kind, ...]] = (
    "broker killed", "database stopped", "broker stopped", "database killed",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Trouble:
    """One of them."""

    at: float
    """Seconds after the beginning."""
    kind: Kind
    target: str = ""
    """Role that is killed."""
    away: float = 0.0
    """Seconds until a server is started again."""


def troubles(
    seconds: float, targets: Sequence[str], seed: int, *, servers: bool
) -> tuple[Trouble, ...]:
    """All of a run. `servers`: there are a broker and a database to restart."""
    chance = Random(seed)
    plan = list(_kills(seconds * CALM, targets, chance))
    if servers:
        plan += _outages(seconds * LAST, chance)
    return tuple(sorted(plan, key=lambda trouble: trouble.at))


def _kills(until: float, targets: Sequence[str], chance: Random) -> Iterator[Trouble]:
    turns = chain.from_iterable(chance.sample(targets, len(targets)) for _ in repeat(None))
    for at, target in zip(_times(until, KILL_EVERY, chance), turns, strict=False):
        yield Trouble(at, "kill", target)


def _outages(until: float, chance: Random) -> Iterator[Trouble]:
    kinds = islice(chain.from_iterable(repeat(_SERVERS)), chance.randrange(len(_SERVERS)), None)
    for at, kind in zip(_times(until, SERVER_EVERY, chance), kinds, strict=False):
        yield Trouble(at, kind, away=chance.uniform(*AWAY))


def _times(until: float, every: float, chance: Random) -> Iterator[float]:
    every = min(every, until / _AT_LEAST)
    at = every * chance.uniform(1 / 3, 2 / 3)
    while at < until:
        yield at
        at += every * chance.uniform(2 / 3, 4 / 3)
