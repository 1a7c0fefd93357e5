"""Which agents there are, and on which base each of them runs now.

An agent is an alias; its numbers are kept per (alias, base). The present base is the one that
answered its newest rollout: what the engines serve is no fact of the log, who answered is one.
A live rollout in which nobody answered, say for a client who asked for a model that does not exist,
says nothing of that; it counts only where there is no other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, and_, func, or_, select

from consumers.tables import Rollout
from consumers.tally import LIVE_PURPOSES, Pair

_NOBODY: Final = "unknown"
"""What a gateway notes as the base of a call that no engine was asked for."""


def present(connection: Connection) -> list[Pair]:
    """Every agent with its present base, by alias. Reads the rollouts once and sorts none: it is
    asked for with every tick."""
    rollouts = Rollout.table().c
    kinds = (rollouts.alias, rollouts.base, rollouts.purpose)
    query = select(*kinds, func.max(rollouts.time).label("newest")).group_by(*kinds)
    found: dict[str, list[_Kind]] = {}
    for row in connection.execute(query.where(rollouts.purpose.in_(LIVE_PURPOSES))):
        kind = _Kind(row.base, row.purpose, row.newest)
        found.setdefault(row.alias, []).append(kind)
    return [Pair(alias, _base(connection, alias, found[alias])) for alias in sorted(found)]


@dataclass(frozen=True, slots=True)
class _Kind:
    """Rollouts of an agent on one base and for one purpose."""

    base: str
    purpose: str
    newest: str | None
    """None: none of them has a time."""

    @property
    def answered(self) -> bool:
        return self.purpose != "live" or self.base != _NOBODY


def _base(connection: Connection, alias: str, kinds: Sequence[_Kind]) -> str:
    """That of the newest rollout; of several at that time, of the one with the largest id."""
    kinds = [kind for kind in kinds if kind.answered] or kinds
    newest = max((kind.newest for kind in kinds if kind.newest is not None), default=None)
    newest_ones = [kind for kind in kinds if kind.newest == newest]
    if len({kind.base for kind in newest_ones}) == 1:
        return newest_ones[0].base
    rollouts = Rollout.table().c
    either = or_(
        *(
            and_(rollouts.base == kind.base, rollouts.purpose == kind.purpose)
            for kind in newest_ones
        )
    )
    at = rollouts.time.is_(None) if newest is None else rollouts.time == newest
    query = select(rollouts.base).where(rollouts.alias == alias, either, at)
    base: str = connection.execute(query.order_by(rollouts.rollout.desc()).limit(1)).scalar_one()
    return base
