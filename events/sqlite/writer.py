"""Group commit: one thread writes all waiting jobs in one transaction. Jobs that arrive during a
commit go into the next, so they share an fsync. A second thread moves the write-ahead log into the
database on its own connection, so that appends do not wait for it."""

import logging
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from events.errors import KintsugiError, LogError
from events.sqlite import file
from events.sqlite.file import Durability, translate_error, writable

T = TypeVar("T")

Job = Callable[[sqlite3.Connection], Any]
"""Writes in a shared transaction. If it raises KintsugiError before it writes, the rest commits."""

GROUP_BYTES: Final = 8 << 20
"""Most bytes in a group of more than one job. It bounds how long the last job waits."""

_GATHER_SECONDS: Final = 0.0005
"""Seconds that a group waits for the callers that were just answered. Without it 32 busy writers
form two groups in turn: twice the fsyncs, 30 % fewer appends of 1.3 KB."""

CHECKPOINT_BYTES: Final = 4 << 20
"""Approximate bytes written between two checkpoints: SQLite's default of 1,000 pages."""

_PAGE_BYTES: Final = 4096

_FRAME_BYTES: Final = _PAGE_BYTES + 24

_CHECKPOINT_BUSY_SECONDS: Final = 1.0
"""Most seconds to wait for readers when the write-ahead log is emptied, as appends wait too."""

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _PendingJob:
    job: Job
    size: int
    done: Future[Any] = field(default_factory=Future)

    def fail(self, error: Exception, path: Path) -> None:
        """Fail one caller with its own exception object, because each thread raises it."""
        if not isinstance(error, sqlite3.Error):
            self.done.set_exception(error)
            return
        failure = translate_error(error, path)
        failure.__cause__ = error
        self.done.set_exception(failure)


class GroupWriter:
    """The one writer of a process."""

    def __init__(
        self, path: Path, durability: Durability, after_commit: Callable[[], None]
    ) -> None:
        self._path = path
        self._after_commit = after_commit
        self._connection = writable(path, durability)
        self._checkpointer = Checkpointer(path, durability)
        self._arrived = threading.Condition()
        self._waiting: deque[_PendingJob] = deque()
        self._taken = 0
        self.commits = 0
        """Transactions that were committed; each is one fsync with durability "power"."""
        self._callers = 1
        """Estimated number of concurrent callers. A single caller never waits for others."""
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"append {path}", daemon=True)
        self._thread.start()

    @property
    def pending(self) -> int:
        """Return the number of jobs that were accepted and are not finished."""
        with self._arrived:
            return len(self._waiting) + self._taken

    def submit(self, job: Callable[[sqlite3.Connection], T], size: int = 0) -> T:
        """Run `job`, wait for its commit and return its result. `size`: bytes that it writes."""
        return self.begin(job, size).result()

    def begin(self, job: Callable[[sqlite3.Connection], T], size: int = 0) -> "Future[T]":
        """Submit as `submit`, without waiting."""
        item = _PendingJob(job, size)
        # A caller cannot cancel the job, because the writer may have begun it.
        item.done.set_running_or_notify_cancel()
        with self._arrived:
            if self._closed:
                raise LogError(f"{self._path} was closed; open it again to append")
            self._waiting.append(item)
            self._arrived.notify()
        return item.done

    def close(self) -> None:
        """Finish what was submitted, then release the file."""
        with self._arrived:
            self._closed = True
            self._arrived.notify()
        self._thread.join()
        self._checkpointer.close()
        self._connection.close()

    def _run(self) -> None:
        while group := self._next_group():
            self._commit(group)
            pages = len(group) + 1  # about one index page per job, and the table of partitions
            self._checkpointer.wrote(sum(item.size for item in group) + pages * _PAGE_BYTES)

    def _next_group(self) -> list[_PendingJob]:
        with self._arrived:
            self._arrived.wait_for(lambda: self._waiting or self._closed)
            self._arrived.wait_for(self._is_group_full, _GATHER_SECONDS)
            group: list[_PendingJob] = []
            size = 0
            while self._waiting and (not group or size + self._waiting[0].size <= GROUP_BYTES):
                item = self._waiting.popleft()
                size += item.size
                group.append(item)
            self._taken = len(group)
            self._callers = max(len(group), self._callers * 9 // 10)
            return group

    def _is_group_full(self) -> bool:
        return self._closed or len(self._waiting) >= self._callers

    def _commit(self, group: list[_PendingJob]) -> None:
        try:
            results = self._transaction(group)
        except Exception as error:  # raised again, in each waiting caller
            self._taken = 0
            for item in group:
                item.fail(error, self._path)
            return
        self._taken = 0
        self.commits += 1
        self._after_commit()
        for item, result in zip(group, results, strict=True):
            if isinstance(result, KintsugiError):
                item.done.set_exception(result)
            else:
                item.done.set_result(result)

    def _transaction(self, group: list[_PendingJob]) -> list[Any]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            results = [self._result(item.job) for item in group]
            self._connection.execute("COMMIT")
        finally:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        return results

    def _result(self, job: Job) -> Any:
        try:
            return job(self._connection)
        except KintsugiError as error:
            return error


class Checkpointer:
    """Moves committed pages from the write-ahead log into the database, beside the appends."""

    def __init__(self, path: Path, durability: Durability) -> None:
        self._path = path
        self._connection = writable(path, durability, _CHECKPOINT_BUSY_SECONDS)
        self._one_at_a_time = threading.Lock()
        self._since_checkpoint = 0
        self._since_restart = 0
        """Estimated size of the write-ahead log: last measured size plus bytes written since."""
        self._due = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"checkpoint {path}", daemon=True)
        self._thread.start()

    def wrote(self, size: int) -> None:
        """Count committed bytes. Block the writer if the write-ahead log grew too large."""
        self._since_checkpoint += size
        self._since_restart += size
        if self._since_restart >= file.WAL_BYTES:
            restarted = self._checkpoint("RESTART")
            # A reader or another process prevented it: try again a little later.
            self._since_restart = 0 if restarted else file.WAL_BYTES - CHECKPOINT_BYTES
        elif self._since_checkpoint >= CHECKPOINT_BYTES:
            self._since_checkpoint = 0
            self._due.set()

    def close(self) -> None:
        """Finish the running checkpoint."""
        self._closed = True
        self._due.set()
        self._thread.join()
        self._connection.close()

    def _run(self) -> None:
        while self._due.wait() and not self._closed:
            self._due.clear()
            self._checkpoint("PASSIVE")

    def _checkpoint(self, kind: Literal["PASSIVE", "RESTART"]) -> bool:
        with self._one_at_a_time:
            try:
                pragma = f"PRAGMA wal_checkpoint({kind})"
                busy, frames, _ = self._connection.execute(pragma).fetchone()
            except sqlite3.Error as error:
                # Nothing is lost: every page is still in the write-ahead log, and the next
                # checkpoint starts where this one stopped.
                _logger.warning(
                    "%s", translate_error(error, self._path), extra={"action": "checkpoint_failed"}
                )
                return False
            if kind == "PASSIVE":
                # Use the measured size, because other processes write to the file, too.
                self._since_restart = max(0, frames) * _FRAME_BYTES
            return not busy
