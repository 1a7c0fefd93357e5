"""Report to the database how far the own log of a home reaches, where that log is shipped.

    with report_in_background(app):
        ...                     # the roles gateway and ship, while they run

Before, it asks how far the tables hold that log: where they hold an event that the log does not,
it was restored from an earlier copy and numbers anew from there, and its shipper has to stop.

So the database shows that events are missing whose owner never came back
(consumers/reads/spools.py). Guarantee: neither recording nor shipping waits for the database;
while it is away nothing is reported, and the next report says all. Not covered: what another role
of the home appends after its shipper's last report; the next shipper of that home brings it.
"""

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
"""Seconds without a report after which an owner counts as silent, and not as slow."""

_LAST_SECONDS: Final = 2.0
"""Seconds that the end of the block waits for a report that is being written."""

log = logging.getLogger(__name__)


@contextmanager
def report_in_background(
    app: "App", restored: "Callable[[SpoolBehindTables], None] | None" = None
) -> Iterator[None]:
    """Tell until the end of the block, and once more then; nothing where nothing is shipped.
    `restored` is called, from another thread, where the log was restored from before."""
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
    """Say how far a spool reaches; of who `ends`, and has shipped all, nothing is missed.

    Raises LogError, DatabaseUnavailable.
    """
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
    """What is said of a spool."""
    from consumers.reads.spools import Report

    ends = {
        stream: [end - spool.copy_end(stream, p) for p, end in enumerate(spool.end(stream))]
        for stream in STREAMS
    }
    return Report(spool.source, socket.gethostname(), str(spool.path), ends)


def _try_tell(app: "App", was_well: bool, ends: bool = False) -> bool:
    """Whether it could be told; said when that changes. Raises SpoolBehindTables."""
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
