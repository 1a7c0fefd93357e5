"""Who runs a gateway, how far it follows the routes, and which adapters it uses.

Nothing is unloaded before every live gateway has applied the route without it and has neither a
call nor an open session on it; this is how the one who unloads knows. Each gateway writes its own
row, a few times a second. The time is the database's, so that clocks of hosts need not agree. Not
folded from the log and not rebuilt: a row that is lost comes back with the next report. The row of
a gateway that was killed is taken out by the role `work`.

Not covered: a clock of the database that is set forward. Until the next reports, a second later,
no gateway seems to be live.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, delete, select
from sqlalchemy.dialects import postgresql, sqlite

from consumers.database import clock
from consumers.tables import METADATA
from events.canonical import exact_json


@dataclass(frozen=True, slots=True)
class Report:
    """What a gateway says of itself."""

    gateway: str
    """Id of the process: a restart is another gateway."""
    host: str
    position: int
    """Position in `learning` of the route table that the gateway applied."""
    in_flight: Mapping[str, int]
    """Adapter -> calls that are being answered."""
    open_sessions: Mapping[str, int]
    """Adapter -> sessions that would stay with it."""

    def uses(self, adapter: str) -> bool:
        """Whether a call or an open session holds the adapter."""
        return bool(self.in_flight.get(adapter) or self.open_sessions.get(adapter))


@dataclass(frozen=True, slots=True)
class GatewayState:
    """A gateway's last report, and how old it is."""

    report: Report
    age_seconds: float
    running_seconds: float
    """Since its first report."""


_GATEWAYS = METADATA.tables["gateways"]


def report(connection: Connection, status: Report) -> None:
    """Write the row of one gateway, within `database.write_transaction`."""
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    now = clock(connection)
    row = {
        "host": status.host,
        "seen": now,
        "position": status.position,
        "in_flight": exact_json(dict(status.in_flight)),
        "open_sessions": exact_json(dict(status.open_sessions)),
    }
    connection.execute(
        dialect.insert(_GATEWAYS)
        .values(gateway=status.gateway, started=now, **row)
        .on_conflict_do_update(index_elements=["gateway"], set_=row)
    )


def leave(connection: Connection, gateway: str) -> None:
    """Take out the row of a gateway that has stopped."""
    connection.execute(delete(_GATEWAYS).where(_GATEWAYS.c.gateway == gateway))


def silent(connection: Connection, for_seconds: float) -> list[str]:
    """The gateways that were not heard of for so long, by id."""
    since = _GATEWAYS.c.seen < clock(connection) - for_seconds
    query = select(_GATEWAYS.c.gateway).where(since).order_by(_GATEWAYS.c.gateway)
    return list(connection.execute(query).scalars())


def forget(connection: Connection, for_seconds: float) -> None:
    """Take out the rows of those, within `database.write_transaction`."""
    connection.execute(delete(_GATEWAYS).where(_GATEWAYS.c.seen < clock(connection) - for_seconds))


def read_live_gateways(connection: Connection, within_seconds: float) -> list[GatewayState]:
    """The gateways that were heard of within so many seconds, by id: those that are live."""
    now = clock(connection)
    live = _GATEWAYS.c.seen >= now - within_seconds
    return [
        GatewayState(
            Report(
                row.gateway, row.host, row.position, json.loads(row.in_flight),
                json.loads(row.open_sessions),
            ),
            now - row.seen,
            now - row.started,
        )
        for row in connection.execute(select(_GATEWAYS).where(live).order_by(_GATEWAYS.c.gateway))
    ]  # fmt: skip
