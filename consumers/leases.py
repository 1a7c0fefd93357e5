"""Leases: which process acts under a name. A lease ends by itself unless its holder renews it.

Leases run on the database's clock, so the clocks of hosts need not agree. They are not folded from
the log and not rebuilt: a lease says which process may try to decide. Which decisions count depends
on the epoch (consumers/folds/cycles.py), so a lease that is wrong costs time and never makes a
wrong decision.

A clock of the database that is set forward ends leases early. One that is set back does not make
them last: a lease that would end later than any that could be given now is over.
"""

from dataclasses import dataclass

from sqlalchemy import Connection, delete, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from consumers.database import clock
from consumers.tables import METADATA

_LEASES = METADATA.tables["leases"]


@dataclass(frozen=True, slots=True)
class LeaseState:
    """A lease as it stands."""

    holder: str
    epoch: int | None
    """Epoch that the holder claimed; None until it has claimed one."""
    seconds: float
    """Seconds until the lease ends; below 0 where it is over."""


def take(connection: Connection, name: str, holder: str, seconds: float) -> bool:
    """Take a lease that is free or over, within `database.write_transaction`. Returns False where
    another process holds it. A lease that `holder` has already is taken anew."""
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
    """Renew a lease, within `database.write_transaction`. Returns False where another process took
    it or it was given back. A lease that is over and was not taken is renewed."""
    expires = clock(connection) + seconds
    renewed = connection.execute(
        update(_LEASES)
        .where(_LEASES.c.name == name, _LEASES.c.holder == holder)
        .values(expires=expires, epoch=epoch)
    )
    return renewed.rowcount == 1


def give_back(connection: Connection, name: str, holder: str) -> None:
    """Let the next one begin at once, within `database.write_transaction`."""
    connection.execute(delete(_LEASES).where(_LEASES.c.name == name, _LEASES.c.holder == holder))


def read_lease(connection: Connection, name: str) -> LeaseState | None:
    """Return the lease with its present or last holder; None where it was never held or was given
    back."""
    row = connection.execute(select(_LEASES).where(_LEASES.c.name == name)).first()
    if row is None:
        return None
    return LeaseState(row.holder, row.epoch, row.expires - clock(connection))
