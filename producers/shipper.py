"""The shipper copies a process's own log (its spool) to Kafka, go-back-N. Acknowledgements are read
in the order of sending, so the stored cursor only passes acknowledged records. After an error,
shipping restarts at the cursor with a new producer. The pause before it doubles up to
`MAX_PAUSE_SECONDS`. Records keep source, sequence and recorded time, so folds drop repetitions.

Guarantees: per partition, a fold accepts exactly the spool's sequences from Kafka; the window
bounds memory, even without a broker; one shipper per spool (a lock file beside it). Not covered:
trimming the spool, and the loss of its disk.
"""

import fcntl
import logging
import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from events import private
from events.errors import KintsugiError, LogError, LogFull, LogUnavailable
from events.kafka.sender import OutboundRecord, Pending, Sender
from events.sqlite.log import SqliteLog
from events.streams import STREAMS

MIN_PAUSE_SECONDS: Final = 0.1
MAX_PAUSE_SECONDS: Final = 10.0
MARK_SECONDS: Final = 0.2
"""Seconds between stores of the cursor, each an fsync. After a crash, this much is sent again."""
LOOK_SECONDS: Final = 0.1
"""Longest wait, in seconds, before `stop` is checked."""

At = tuple[str, int]

Ends = dict[str, tuple[int, ...]]
"""Stream -> per partition, the offset after the last record."""

_TRANSIENT: Final = (LogUnavailable, LogFull)
"""Errors after which shipping is tried again. On a full disk the cursor cannot be stored."""

log = logging.getLogger(__name__)


@dataclass
class ShipperCounters:
    """Counters of one shipper, for its metrics."""

    records: int = 0
    """Acknowledged records, including duplicates after going back."""
    go_backs: Counter[str] = field(default_factory=Counter)
    """Error class -> number of restarts at the cursor after it."""
    in_flight_bytes: int = 0
    looked: float = 0.0
    """Time of the last look for records, in seconds since 1970; 0 before the first."""


class Shipper:
    """Copies one spool to Kafka; `new_sender` makes a producer, as `KafkaLog.sender` does."""

    def __init__(self, spool: SqliteLog, new_sender: Callable[[], Sender]) -> None:
        self._spool = spool
        self._new_sender = new_sender
        self.counters = ShipperCounters()

    def run(self, stop: threading.Event) -> None:
        """Ship until `stop` is set; wait while the broker is down. Raises errors that waiting
        cannot repair: no permission, an oversized record, a damaged spool. Raises LogError (caused
        by BlockingIOError) if another process ships this spool."""
        with self._alone():
            pause = MIN_PAUSE_SECONDS
            while not stop.is_set():
                before = self.counters.records
                try:
                    self._session(stop, goal=None)
                except _TRANSIENT as error:
                    pause = MIN_PAUSE_SECONDS if self.counters.records > before else pause
                    self._went_back(error, pause)
                    # Random, because many shippers lose the same broker at the same time.
                    stop.wait(pause * random.uniform(0.5, 1.0))
                    pause = min(pause * 2, MAX_PAUSE_SECONDS)

    def ship_once(self, timeout_seconds: float = 60.0) -> int:
        """Ship the records that exist now and return their number. Raises LogUnavailable after the
        time-out, and the errors of `run`."""
        before = self.counters.records
        goal = {stream: self._spool.end(stream) for stream in STREAMS}
        deadline = time.monotonic() + timeout_seconds
        with self._alone():
            pause = MIN_PAUSE_SECONDS
            while True:
                try:
                    self._session(_Deadline(deadline), goal)
                    return self.counters.records - before
                except _TRANSIENT as error:
                    self._went_back(error, pause)
                    if time.monotonic() + pause >= deadline:
                        raise
                    time.sleep(pause)
                    pause = min(pause * 2, MAX_PAUSE_SECONDS)

    def begin_again(self) -> None:
        """Reset the cursor to the spool's start, in one transaction, after a broker lost records.
        Raises LogError (caused by BlockingIOError) if another process ships this spool."""
        with self._alone():
            self._spool.reset_ship_offsets()

    def _session(self, stop: "threading.Event | _Deadline", goal: Ends | None) -> None:
        """Ship with one producer until `stop`, or until all before `goal` is acknowledged."""
        if goal is not None and not count_backlog(self._spool, goal):
            return
        session = _Session(self._spool, self._new_sender(), self.counters, goal)
        try:
            while not stop.is_set():
                self.counters.looked = time.time()
                behind = session.send()
                session.settle()
                if behind or session.in_flight:
                    continue
                session.mark()
                if goal is not None:
                    return
                self._spool.wait(session.cursor, LOOK_SECONDS)
        finally:
            session.close()
            self.counters.in_flight_bytes = 0
        if goal is not None:
            raise LogUnavailable(
                f"{count_backlog(self._spool, goal):,} events of {self._spool.path} were not "
                "acknowledged in time; run it again, it goes on where it stopped"
            )

    def _went_back(self, error: KintsugiError, pause: float) -> None:
        cause = error.__cause__ or error
        self.counters.go_backs[type(cause).__name__] += 1
        log.warning("going back, again in %.1f s: %s", pause, error)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the spool's lock; the kernel releases it when the process ends."""
        path = self._spool.path.with_name(self._spool.path.name + ".shipper")
        with private.open_lock(path) as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise LogError(
                    f"another shipper works on {self._spool.path}; run one per spool, and stop "
                    "it before all is shipped again"
                ) from error
            yield


class _Session:
    """Ships with one producer: sends records and reads their acknowledgements in order."""

    def __init__(
        self, spool: SqliteLog, sender: Sender, counters: ShipperCounters, goal: Ends | None
    ) -> None:
        self._spool = spool
        self._goal = goal
        self._sender = sender
        self._counters = counters
        self.in_flight: deque[tuple[At, int, Pending]] = deque()
        self.cursor: dict[At, int] = {
            (stream, partition): offset
            for stream in STREAMS
            for partition, offset in enumerate(spool.read_ship_offsets(stream))
        }
        """Offset of the next record to send."""
        self._acknowledged: dict[At, int] = {}
        """Offset after the last acknowledged record, if it is not stored yet."""
        self._marked = time.monotonic()
        self._turn = 0

    def send(self) -> bool:
        """Fill the window from the partitions in turn. Return False if no record is to be sent."""
        ends = self._goal or {stream: self._spool.end(stream) for stream in STREAMS}
        behind = [at for at, offset in self.cursor.items() if offset < ends[at[0]][at[1]]]
        for number in range(len(behind)):
            at = behind[(self._turn + number) % len(behind)]
            room_records, room_bytes = self._sender.room
            if room_records <= 0 or room_bytes <= 0:
                break
            room_records = min(room_records, ends[at[0]][at[1]] - self.cursor[at])
            for record in self._spool.read(*at, self.cursor[at], room_records, room_bytes):
                pending = self._sender.send(OutboundRecord.of(record))
                self.cursor[at] = record.offset + 1
                self.in_flight.append((at, record.offset + 1, pending))
        self._turn += 1
        self._counters.in_flight_bytes = self._sender.in_flight_bytes
        return bool(behind)

    def settle(self) -> None:
        """Wait briefly for the oldest record; then remove all acknowledged records in order."""
        deadline = time.monotonic() + LOOK_SECONDS
        while self.in_flight:
            at, following, pending = self.in_flight[0]
            if not pending.wait(deadline - time.monotonic()):
                break
            pending.offset()
            self.in_flight.popleft()
            self._acknowledged[at] = following
            self._counters.records += 1
            deadline = min(deadline, time.monotonic())
        self._counters.in_flight_bytes = self._sender.in_flight_bytes
        if time.monotonic() - self._marked >= MARK_SECONDS:
            self.mark()

    def close(self) -> None:
        """Close the producer, and store the cursor for records acknowledged before an error."""
        self._sender.close()
        self.mark()

    def mark(self) -> None:
        """Store each partition's cursor: the offset after records acknowledged without a gap."""
        for (stream, partition), following in self._acknowledged.items():
            self._spool.store_ship_offset(stream, partition, following)
        self._acknowledged.clear()
        self._marked = time.monotonic()


def count_backlog(spool: SqliteLog, goal: Ends) -> int:
    """Return the number of records before `goal` that were not acknowledged."""
    return sum(
        max(0, end - shipped)
        for stream, ends in goal.items()
        for end, shipped in zip(ends, spool.read_ship_offsets(stream), strict=True)
    )


class _Deadline:
    def __init__(self, at: float) -> None:
        self._at = at

    def is_set(self) -> bool:
        return time.monotonic() >= self._at
