"""Reads of live gateways: the routes that they follow and the adapters that they use.

An adapter is unloaded only when every live gateway has applied a route without it and has no call
and no open session on it. Each gateway writes its row a few times a second. The time is by the
database's clock, so hosts need not agree on it. A lost row comes back with the next report. If that
clock is set forward, no gateway seems live until the next reports.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, delete, select
from sqlalchemy.dialects import postgresql, sqlite

from consumers.database import clock
from consumers.rows import make_row
from consumers.tables import METADATA
from events.canonical import exact_json


@dataclass(frozen=True, slots=True)
class Report:
    """A gateway's report on its applied routes and its use of adapters."""

    gateway: str
    """Id of the process; after a restart it is another gateway."""
    host: str
    position: int
    """Position in `learning` of the route table that the gateway applied."""
    in_flight: Mapping[str, int]
    """Adapter -> calls in flight."""
    open_sessions: Mapping[str, int]
    """Adapter -> open sessions that would stay with it."""

    def uses(self, adapter: str) -> bool:
        """Return whether a call or an open session holds the adapter."""
        return bool(self.in_flight.get(adapter) or self.open_sessions.get(adapter))


@dataclass(frozen=True, slots=True)
class GatewayState:
    """A gateway's last report, and its age."""

    report: Report
    age_seconds: float
    running_seconds: float
    """Seconds since its first report."""


_GATEWAYS = METADATA.tables["gateways"]


def report(connection: Connection, status: Report) -> None:
    """Store a gateway's report, within `database.write_transaction`."""
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
    """Delete the row of a stopped gateway."""
    connection.execute(delete(_GATEWAYS).where(_GATEWAYS.c.gateway == gateway))


def silent(connection: Connection, for_seconds: float) -> list[str]:
    """Return the ids of the gateways without a report for `for_seconds`."""
    since = _GATEWAYS.c.seen < clock(connection) - for_seconds
    query = select(_GATEWAYS.c.gateway).where(since).order_by(_GATEWAYS.c.gateway)
    return list(connection.execute(query).scalars())


def forget(connection: Connection, for_seconds: float) -> None:
    """Delete the rows of `silent` gateways, within `database.write_transaction`."""
    connection.execute(delete(_GATEWAYS).where(_GATEWAYS.c.seen < clock(connection) - for_seconds))


def read_live_gateways(connection: Connection, within_seconds: float) -> list[GatewayState]:
    """Return the gateways that reported in the last `within_seconds`, by id."""
    now = clock(connection)
    live = _GATEWAYS.c.seen >= now - within_seconds
    return [
        GatewayState(
            make_row(
                Report, row, in_flight=json.loads(row.in_flight),
                open_sessions=json.loads(row.open_sessions),
            ),
            now - row.seen,
            now - row.started,
        )
        for row in connection.execute(select(_GATEWAYS).where(live).order_by(_GATEWAYS.c.gateway))
    ]  # fmt: skip
