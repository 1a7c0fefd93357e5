"""A home tells the database how far its own log reaches, where that is shipped.

    with telling(app):
        ...                     # the roles gateway and ship, while they run

So whoever looks at the database sees that events are missing whose owner never came back
(consumers/spools.py). Guarantee: neither recording nor shipping waits for the database; while it
is away nothing is told, and the next report says all. Not covered: what another role of the home
appends after its shipper's last word; the next shipper of that home brings it.
"""

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from events.errors import KintsugiError
from events.streams import STREAMS

if TYPE_CHECKING:
    from consumers.spools import Report
    from daemon.app import App
    from events.sqlite import SqliteLog

TELL_SECONDS: Final = 5.0

SILENT_SECONDS: Final = 60.0
"""After which an owner that was not heard of is not only slow."""

_LAST_SECONDS: Final = 2.0
"""So long an end waits for a report that is being written."""

log = logging.getLogger(__name__)


@contextmanager
def telling(app: "App") -> Iterator[None]:
    """Tell until the end of the block, and once more then; nothing where nothing is shipped."""
    if not app.on_kafka:
        yield
        return
    over = threading.Event()
    assert app.spool.source, "opened before a second thread asks for it"

    def repeat() -> None:
        well = True
        while not over.is_set():
            well = _told(app, was_well=well)
            over.wait(TELL_SECONDS)

    thread = threading.Thread(target=repeat, name="spool", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(_LAST_SECONDS)
        _told(app, was_well=True, ends=True)


def tell(app: "App", spool: "SqliteLog", *, ends: bool = False) -> None:
    """Say how far a spool reaches; of who `ends`, and has shipped all, nothing is missed.

    Raises LogError, DatabaseUnavailable.
    """
    from consumers import database, spools
    from daemon.app import explained

    shipped = all(spool.shipped(stream) == spool.end(stream) for stream in STREAMS)
    said = report_of(spool)
    engine = app.engine
    with explained(engine), database.writing(engine) as connection:
        if ends and shipped:
            spools.forget(connection, said.source)
        else:
            spools.report(connection, said)


def report_of(spool: "SqliteLog") -> "Report":
    """What is said of a spool."""
    from consumers.spools import Report

    ends = {
        stream: [end - spool.copied(stream, p) for p, end in enumerate(spool.end(stream))]
        for stream in STREAMS
    }
    return Report(spool.source, socket.gethostname(), str(spool.path), ends)


def _told(app: "App", was_well: bool, ends: bool = False) -> bool:
    """Whether it could be told; said when that changes."""
    from sqlalchemy.exc import DBAPIError

    try:
        tell(app, app.spool, ends=ends)
    except (KintsugiError, DBAPIError) as error:
        if was_well:
            log.warning("the database is not told of this home's own log: %s", error)
        return False
    return True
