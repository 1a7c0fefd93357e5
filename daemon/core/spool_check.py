"""Check that a spool still holds its folded events; a spool restored from a backup may not."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from events.errors import LogError, LogTruncated
from events.log import record_sha256

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from consumers.reads.spools import Last
    from events.sqlite.log import SqliteLog


class SpoolBehindTables(LogError):
    """The tables hold events of this home's own log that are missing in the log."""


def check_spool(
    reading: "Callable[[], AbstractContextManager[Connection]]", spool: "SqliteLog"
) -> None:
    """Check the spool by the tables. Raises SpoolBehindTables, LogError, DatabaseUnavailable."""
    from consumers.reads import spools

    with reading() as connection:
        lasts = spools.lasts(connection, spool.source)
    for last in lasts:
        if not _holds(spool, last):
            raise SpoolBehindTables(
                f"{spool.path} does not hold event {last.sequence} of {last.stream}/"
                f"{last.partition}, which it has shipped: it was restored from before, and what "
                "it records now would be taken for what it had recorded; stop every process of "
                "the home and run kintsugi spool renew there"
            )


def _holds(spool: "SqliteLog", last: "Last") -> bool:
    offset = spool.copy_end(last.stream, last.partition) + last.sequence
    if offset >= spool.end(last.stream)[last.partition]:
        return False
    try:
        (record,) = spool.read(last.stream, last.partition, offset, limit=1)
    except LogTruncated:
        return True
    return last.sha256 is None or record_sha256(record) == last.sha256
