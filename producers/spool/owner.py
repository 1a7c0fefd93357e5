"""Ownership of a home's spool: by the processes that append to it, or one that ships it instead.
A kernel's lock beside the log's file, released with the process. Not covered: a copy of a spool
whose owner runs elsewhere; shipping it is harmless, as folds accept each sequence once, but
incomplete."""

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
    """The spool is open for appending."""


def own(path: Path) -> IO[str]:
    """Hold the spool until the file is closed. Raises LogUnavailable while it is drained."""
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
    """Open the spool at `path`, a home or its log. Raises SpoolInUse, or LogError if missing."""
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
    """Copy missing bodies of unshipped (`again`: all) records into `blobs`; return their number."""
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
