"""Follows the routes in the tables for a gateway, and reports which of them it uses.

    follow   poll the tables' position; new routes are in force from the next call on
    report   the position in force, with the calls and open sessions per adapter, into `gateways`:
             at once when an adapter comes into or out of use, else as a sign of life

Each runs in a thread of its own, so a report that waits for the database's lock delays no route.

Guarantee: a report never names a later position than the one in force, and counts the calls that
earlier routes chose (routing.py). While the database is away, the last routes stay, and no call
fails or waits; `routes.json` in the home has them for a gateway that starts meanwhile. They also
stay while a restored database or a replica is behind them, until the fold has caught up with the
log. No host's clock matters. Not covered: another database with other routes at the same position,
until the routes are read again after ten seconds; a database of another log, for which the gateway
must be restarted.
"""

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import TypeAdapter, ValidationError

from events.envelope import new_id
from events.errors import KintsugiError
from events.files import replace_file
from events.lifecycle import SERVING, State
from producers.gateway.metrics.registry import Metrics
from producers.gateway.routing.routes import Adapter, GatewayRoute, GatewayRoutes
from producers.gateway.routing.routing import Routing, Usage

if TYPE_CHECKING:
    from consumers.reads.serving import RouteRow, RouteTable
    from daemon.core.app import App

_POLL_SECONDS: Final = 0.2
_ALIVE_SECONDS: Final = 1.0
"""Seconds between two reports with the same content."""
_AGAIN_SECONDS: Final = 10.0
"""Seconds until the routes are read again although the position is the same."""
_PAUSE_SECONDS: Final = 1.0
"""Seconds to wait after the database could not be used."""
_FIRST_SECONDS: Final = 2.0
"""Seconds a start waits for the first routes."""
_LAST_SECONDS: Final = 2.0
"""Seconds a stop waits for each thread that still reads or writes."""

_KEEPS: Final = SERVING | {State.DRAINING}

_FILE: Final = TypeAdapter(GatewayRoutes)

_logger = logging.getLogger(__name__)


class TablesBehind(KintsugiError):
    """The tables are at an earlier position of `learning` than the routes in force."""


@contextmanager
def follow_routes(app: "App", routing: Routing, metrics: Metrics) -> Iterator["Follower"]:
    """Follow the routes until the end of the block, beginning with the last known ones."""
    follower = Follower(app, routing, metrics)
    follower.start()
    try:
        yield follower
    finally:
        follower.stop()


class Follower:
    """Threads that keep one gateway's routes and its report up to date."""

    def __init__(self, app: "App", routing: Routing, metrics: Metrics) -> None:
        self.gateway = new_id()
        """Id of the gateway in its reports; a restarted gateway has another id."""
        self._app = app
        self._routing = routing
        self._metrics = metrics
        self._file = app.home / "routes.json"
        self._stop = threading.Event()
        self._first = threading.Event()
        self._seen: GatewayRoutes | None = None
        self._read_at = 0.0
        self._reported: Usage | None = None
        self._reported_at = 0.0
        self._threads = [
            threading.Thread(target=self._repeat, args=(step,), daemon=True)
            for step in (self._follow, self._report)
        ]

    def start(self) -> None:
        """Start following; returns when the routes are in force or `_FIRST_SECONDS` have passed."""
        kept = read(self._file)
        if kept is not None:
            self._routing.apply(kept)
        for thread in self._threads:
            thread.start()
        self._first.wait(_FIRST_SECONDS)

    def stop(self) -> None:
        """Stop, and remove the gateway's report so that no process waits for it."""
        self._stop.set()
        for thread in self._threads:
            thread.join(_LAST_SECONDS)
        if self._reported is not None:
            self._attempt(self._leave)

    def _repeat(self, step: Callable[[], None]) -> None:
        well = True
        while not self._stop.is_set():
            well = self._attempt(step, was_well=well)
            if step == self._follow:
                self._first.set()
            self._stop.wait(_POLL_SECONDS if well else _PAUSE_SECONDS)

    def _attempt(self, step: Callable[[], None], was_well: bool = True) -> bool:
        """Run a step; return whether the database could be used, and log when that changes."""
        from sqlalchemy.exc import DBAPIError

        from daemon.core.app import explain_errors

        try:
            with explain_errors(self._app.database):
                step()
        except (KintsugiError, DBAPIError) as error:
            if was_well:
                extra = {"action": "routes_not_followed"}
                _logger.warning("the last routes stay: %s", error, extra=extra)
            return False
        except Exception:  # a bug of ours: this thread goes on, or no later route would be followed
            _logger.exception("the last routes stay", extra={"action": "gateway_bug"})
            return False
        if not was_well:
            _logger.warning("the routes are followed again", extra={"action": "routes_followed"})
        return True

    def _follow(self) -> None:
        from consumers import database
        from consumers.reads import serving

        now = time.monotonic()
        with database.read_transaction(self._app.engine) as connection:
            position = serving.read_decision_offset(connection)
            self._check_ahead(position)
            known = self._seen is not None and self._seen.position == position
            if known and now < self._read_at + _AGAIN_SECONDS:
                self._metrics.confirm_routes(position)
                return
            routes = in_force(serving.route_table(connection))
        self._read_at = now
        self._apply(routes)

    def _check_ahead(self, position: int) -> None:
        """Raise TablesBehind if the tables are older than the routes in force."""
        if self._seen is not None and position < self._seen.position:
            raise TablesBehind(
                f"the tables are at position {position} of learning and the routes in force at "
                f"{self._seen.position}: the database was set back; run kintsugi consume, or start "
                "the gateway again if the log is another one"
            )

    def _apply(self, routes: GatewayRoutes) -> None:
        changed = self._seen is None or self._seen != routes
        self._seen = routes
        self._routing.apply(routes)
        self._metrics.confirm_routes(routes.position)
        if changed:
            write(self._file, routes)

    def _report(self) -> None:
        from consumers import database
        from consumers.reads import gateways

        usage, now = self._routing.usage(), time.monotonic()
        position = usage.position
        if position is None or self._seen is None:
            return  # the database has not confirmed the file's routes yet
        if self._says_the_same(usage) and now < self._reported_at + _ALIVE_SECONDS:
            return
        report = gateways.Report(
            self.gateway, socket.gethostname(), position, usage.in_flight, usage.open_sessions
        )
        with database.write_transaction(self._app.engine) as connection:
            gateways.report(connection, report)
        self._reported, self._reported_at = usage, now

    def _says_the_same(self, usage: Usage) -> bool:
        return self._reported is not None and _used(self._reported) == _used(usage)

    def _leave(self) -> None:
        from consumers import database
        from consumers.reads import gateways

        with database.write_transaction(self._app.engine) as connection:
            gateways.leave(connection, self.gateway)


def in_force(table: "RouteTable") -> GatewayRoutes:
    """Return the routes and adapters of the tables in the gateway's form."""
    return GatewayRoutes(
        table.position,
        {row.alias: _route(row) for row in table.routes},
        {
            row.adapter: Adapter(
                row.alias, row.base, row.state in _KEEPS, row.composition, row.role == "user"
            )
            for row in table.adapters
        },
    )


def read(path: Path) -> GatewayRoutes | None:
    """Return the routes that `write` stored in a file; None if it is missing or unreadable."""
    try:
        return _FILE.validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        extra = {"action": "routes_not_kept"}
        _logger.warning("%s is not read: %s", path, error, extra=extra)
        return None


def write(path: Path, table: GatewayRoutes) -> None:
    """Store the routes in a file for the gateway's next start."""
    try:
        replace_file(path, _FILE.dump_json(table, by_alias=True), is_private=True, is_shared=True)
    except OSError as error:
        # The routes are in force and in the database anyway.
        extra = {"action": "routes_not_kept"}
        _logger.warning("%s is not written: %s", path, error.strerror, extra=extra)


def _route(row: "RouteRow") -> GatewayRoute:
    standing = row.standing
    return GatewayRoute(
        standing.base,
        standing.shares,
        standing.shadow,
        taken_back=row.why == "rollback",
        holdout=standing.holdout,
    )


def _used(usage: Usage) -> tuple[int | None, frozenset[str]]:
    return usage.position, frozenset((*usage.in_flight, *usage.open_sessions))
