"""Leases: a row per name says which process may act. A lease ends unless its holder renews it.

Leases run on the database's clock, so the clocks of hosts need not agree. They are not folded from
the log: a lease says which process may try to decide, while epochs (consumers/folds/cycles.py) say
which decisions count, so a wrong lease costs time and never makes a wrong decision. If the clock is
set forward, leases end early; if it is set back, a lease that would end later than any new lease
counts as over.
"""

from dataclasses import dataclass

from sqlalchemy import Connection, delete, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from consumers.database import clock
from consumers.tables import METADATA

_LEASES = METADATA.tables["leases"]


@dataclass(frozen=True, slots=True)
class LeaseState:
    """The holder of a lease, its epoch, and the time that is left."""

    holder: str
    epoch: int | None
    """Epoch that the holder has claimed as leader; None before the claim."""
    seconds: float
    """Seconds until the lease ends; below 0 if it is over."""


def take(connection: Connection, name: str, holder: str, seconds: float) -> bool:
    """Take a lease within `database.write_transaction`. Return False if another process holds it.
    `holder` may take its own lease again."""
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    now = clock(connection)
    ours = {"holder": holder, "epoch": None, "expires": now + seconds}
    stored = _LEASES.c
    free = or_(stored.holder == holder, stored.expires <= now, stored.expires > now + seconds)
    taken = connection.execute(
        dialect.insert(_LEASES)
        .values(name=name, **ours)
        .on_conflict_do_update(index_elements=["name"], set_=ours, where=free)
        .returning(stored.holder)
    )
    return taken.scalar() == holder


def renew(
    connection: Connection, name: str, holder: str, seconds: float, epoch: int | None = None
) -> bool:
    """Renew the lease of `holder`, even after its end, within `database.write_transaction`. Return
    False if another process took the lease or it was given back."""
    expires = clock(connection) + seconds
    renewed = connection.execute(
        update(_LEASES)
        .where(_LEASES.c.name == name, _LEASES.c.holder == holder)
        .values(expires=expires, epoch=epoch)
    )
    return renewed.rowcount == 1


def give_back(connection: Connection, name: str, holder: str) -> None:
    """End a lease within `database.write_transaction`, so that the next holder need not wait."""
    connection.execute(delete(_LEASES).where(_LEASES.c.name == name, _LEASES.c.holder == holder))


def read_lease(connection: Connection, name: str) -> LeaseState | None:
    """Return the lease with its present or last holder; None if never taken or given back."""
    row = connection.execute(select(_LEASES).where(_LEASES.c.name == name)).first()
    if row is None:
        return None
    return LeaseState(row.holder, row.epoch, row.expires - clock(connection))
