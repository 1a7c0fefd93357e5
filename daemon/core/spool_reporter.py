"""Reports to the database how far a home's shipped log reaches. So the database shows missing
events of owners that never came back (consumers/reads/spools.py). Before a report it checks that
the log holds every folded event. Without one of them the log was restored from an earlier copy and
numbers anew, so its shipper has to stop. Guarantee: neither recording nor shipping waits for the
database; the report after an outage covers it. Not covered: events of the home's other roles after
its shipper's last report, until the next shipper."""

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from daemon.core.spool_check import SpoolBehindTables, check_spool
from events.errors import KintsugiError
from events.streams import STREAMS

if TYPE_CHECKING:
    from consumers.reads.spools import Report
    from daemon.core.app import App
    from events.sqlite.log import SqliteLog

TELL_SECONDS: Final = 5.0

SILENT_SECONDS: Final = 60.0
"""Seconds without a report after which an owner counts as silent, not only slow."""

_LAST_SECONDS: Final = 2.0
"""Seconds that the end of the block waits for a report in progress."""

log = logging.getLogger(__name__)


@contextmanager
def report_in_background(
    app: "App", restored: "Callable[[SpoolBehindTables], None] | None" = None
) -> Iterator[None]:
    """Inside the block, report if the log is shipped, and once more at the end. Call `restored`
    from another thread if the log was restored from an earlier copy."""
    if not app.on_kafka:
        yield
        return
    over = threading.Event()
    assert app.spool.source, "opened before a second thread asks for it"

    def repeat() -> None:
        well = True
        while not over.is_set():
            try:
                well = _try_tell(app, was_well=well)
            except SpoolBehindTables as error:
                if well:
                    log.warning("%s", error)
                if restored is not None:
                    restored(error)
                well = False
            over.wait(TELL_SECONDS)

    thread = threading.Thread(target=repeat, name="spool", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(_LAST_SECONDS)
        with suppress(SpoolBehindTables):  # it was said
            _try_tell(app, was_well=True, ends=True)


def tell(app: "App", spool: "SqliteLog", *, ends: bool = False) -> None:
    """Report a spool; with `ends`, forget a shipped one. Raises LogError, DatabaseUnavailable."""
    from consumers import database
    from consumers.reads import spools
    from daemon.core.app import explain_errors

    shipped = all(spool.read_ship_offsets(stream) == spool.end(stream) for stream in STREAMS)
    report = report_of(spool)
    engine = app.engine
    with explain_errors(engine), database.write_transaction(engine) as connection:
        if ends and shipped:
            spools.forget(connection, report.source)
        else:
            spools.report(connection, report)


def report_of(spool: "SqliteLog") -> "Report":
    """Return the report about a spool."""
    from consumers.reads.spools import Report

    ends = {
        stream: [end - spool.copy_end(stream, p) for p, end in enumerate(spool.end(stream))]
        for stream in STREAMS
    }
    return Report(spool.source, socket.gethostname(), str(spool.path), ends)


def _try_tell(app: "App", was_well: bool, ends: bool = False) -> bool:
    """Report; return whether that worked. Log the first failure only. Raises SpoolBehindTables."""
    from sqlalchemy.exc import DBAPIError

    try:
        check_spool(app.reading, app.spool)
        tell(app, app.spool, ends=ends)
    except SpoolBehindTables:
        raise
    except (KintsugiError, DBAPIError) as error:
        if was_well:
            log.warning("the database is not told of this home's own log: %s", error)
        return False
    return True
