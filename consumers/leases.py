"""Who acts under a name: a lease that ends by itself when its holder no longer renews it.

On the database's clock, so that clocks of hosts need not agree. Not folded from the log and not
rebuilt: a lease says who may try to decide. Whose decisions count is a matter of the epoch
(consumers/folds/cycles.py), so a lease that is wrong costs time and never makes a wrong decision.

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
    """That the holder claimed; None until it has."""
    seconds: float
    """For how long yet; below 0 where it is over."""


def take(connection: Connection, name: str, holder: str, seconds: float) -> bool:
    """Hold a lease that nobody holds, within `database.write_transaction`; False where somebody
    does. Whoever holds it already has it anew."""
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
    """Hold it on, within `database.write_transaction`; False where it was taken by another or
    given back. One that is over, and that nobody took, goes on."""
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
    """Who holds it, or held it last; None for nobody."""
    row = connection.execute(select(_LEASES).where(_LEASES.c.name == name)).first()
    if row is None:
        return None
    return LeaseState(row.holder, row.epoch, row.expires - clock(connection))
