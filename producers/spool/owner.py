"""Locks a home's spool: shared by the processes that append to it, or exclusive for one that ships
it from another home. It is a kernel lock on a file beside the log, which ends with the process. Not
covered: a copy of a spool whose owner runs elsewhere. Shipping it is incomplete but harmless,
because folds accept each sequence once."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from events import private
from events.archive.export import copy_blobs
from events.blobs import BlobStore
from events.errors import LogError, LogReadOnly, LogUnavailable
from events.log import read_all
from events.sqlite.log import SqliteLog
from events.streams import ROLLOUTS

FILE = "log.db"


class SpoolInUse(LogError):
    """A process has the spool open for appending."""


def own(path: Path) -> IO[str]:
    """Take the shared lock, held until the returned file is closed. Raises LogUnavailable while
    another process drains the spool."""
    lock = _open_lock(path)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise LogUnavailable(
            f"{path} is being drained from another home; wait until kintsugi spool drain --spool "
            "has ended there"
        ) from error
    return lock


@contextmanager
def open_idle_spool(path: Path) -> Iterator[SqliteLog]:
    """Open an unused spool; `path` is a home or its log. Raises SpoolInUse, LogError."""
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        raise LogError(f"{path} holds no {FILE}; name the home whose spool is to be shipped")
    with _open_lock(file) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise SpoolInUse(
                f"{file} is open in a process that appends to it; that home ships it itself, or "
                "stop the process first"
            ) from error
        spool = SqliteLog(file)
        try:
            yield spool
        finally:
            spool.close()


def bring_bodies(spool: SqliteLog, blobs: BlobStore, again: bool = False) -> int:
    """Copy missing blobs of unshipped (`again`: all) records to `blobs`; return the count."""
    theirs = BlobStore(spool.path.parent / "blobs")
    ends = spool.end(ROLLOUTS.name)
    begin = spool.start(ROLLOUTS.name) if again else spool.read_ship_offsets(ROLLOUTS.name)
    return sum(
        copy_blobs(page, theirs, blobs)
        for partition, offset in enumerate(begin)
        for page in read_all(spool, ROLLOUTS.name, partition, offset, ends[partition])
    )


def _open_lock(path: Path) -> IO[str]:
    lock = path.with_name(f"{path.name}.owner")
    try:
        return private.open_lock(lock)
    except OSError as error:
        raise LogReadOnly(
            f"{lock} cannot be written: {error.strerror}; make it writable"
        ) from error
