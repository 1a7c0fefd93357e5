"""The plan of a soak's faults (seconds, seed -> troubles).

Roles are killed until the share CALM of the time is over, every target once before any repeats.
Afterwards each role lives long enough to show a slow leak. The servers are killed or stopped until
the share LAST, because roles may leak when a server is lost.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice, repeat
from random import Random
from typing import Final, Literal

Kind = Literal["kill", "broker killed", "broker stopped", "database killed", "database stopped"]

KILL_EVERY: Final = 180.0
"""Mean seconds between two kills, plus or minus a third; less in a short run."""
SERVER_EVERY: Final = 300.0
CALM: Final = 0.55
"""Share of the run after which no role is killed."""
LAST: Final = 0.92
"""Share of the run after which no fault happens at all."""
AWAY: Final = (3.0, 30.0)

_AT_LEAST: Final = 3
"""Approximate least number of troubles of each kind in a short run."""
_SERVERS: Final[tuple[Kind, ...]] = (
    "broker killed", "database stopped", "broker stopped", "database killed",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Trouble:
    """A planned fault."""

    at: float
    """Seconds from the beginning of the run."""
    kind: Kind
    target: str = ""
    away: float = 0.0


def troubles(
    seconds: float, targets: Sequence[str], seed: int, *, servers: bool
) -> tuple[Trouble, ...]:
    """Return the planned faults of a run; `servers` says whether broker and database exist."""
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
