"""The runner: reads the log, folds it, and moves the positions in the same transaction.

Guarantees. Rows and positions are committed together, and a position only moves from where this
runner believed it to be (compare-and-set), so two runners on the same partitions, killed at any
instant, leave the same tables as one. Of each source only the next sequence is accepted: what is
repeated changes nothing, what comes too early is left for the shipper to bring again.

Stops. A version from the future halts the fold until it is upgraded; a log that was trimmed or
wiped halts it with LogTruncated or AheadOfLog, one restored from before with LogDiverged: before
the fold reads on from a place that it did not just come from, the log has to hold the record that
was folded last. An event under the source and sequence of another is a dead letter. Malformed bytes
and broken invariants become dead letters, and the partition goes on. A database that is down is
waited for, never a dead letter.

Not covered: effects. A fold changes tables, nothing else.
"""

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from sqlalchemy import Connection, Engine, select
from sqlalchemy.exc import SQLAlchemyError

from consumers import database
from consumers.batch import Batch, upsert
from consumers.folding import Folding
from consumers.folds import READS_CONTENT, fold_event
from consumers.position import (
    Standing,
    Unread,
    advance,
    check_log,
    covered,
    learn,
    learnt,
    next_offset,
    reached_sources,
    standing,
    store_reached,
)
from consumers.tables import FOLD_VERSION, PROJECTION, DeadLetter, Projection
from events.clock import elapsed
from events.codec import decode_value
from events.envelope import from_headers
from events.errors import BadRecord, KintsugiError, LogUnavailable, SchemaAhead
from events.learning import PatternsDiagnosed
from events.log import Cursor, EventLog, Record
from events.registry import REGISTRY, Registry, UnknownType
from events.streams import LEARNING, ROLLOUTS, STREAMS

BATCH_EVENTS: Final = 500
"""Events per transaction: beyond it throughput no longer grows."""

REASON_CHARACTERS: Final = 500

IDLE_SECONDS: Final = 0.5

SURE_SECONDS: Final = 30.0
"""So long after a reading nobody can have put another log in its place unnoticed: a process that
slept or was paused for longer looks whether it is the same."""

APPLY_SECONDS: Final = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0)
"""What the seconds of a transaction are sorted by."""

ORDER: Final = tuple(
    (stream.name, partition)
    for stream in (ROLLOUTS, LEARNING)
    for partition in range(stream.partitions)
)
"""Rollouts first: then a round rarely has to wait for them."""


_Kind = TypeVar("_Kind")


class Fenced(KintsugiError):
    """Another runner moved the position first; its rows stand, ours were rolled back."""


class FoldVersionChanged(KintsugiError):
    """The tables were folded by another version of the folds."""


class AnotherEvent(BadRecord):
    """An event under the source and the sequence of one that was folded before."""


class PositionMissing(KintsugiError):
    """A round's position names rollouts that this log does not hold (yet)."""


@dataclass
class Counters:
    """What a runner did since it was made."""

    folded: int = 0
    duplicates: int = 0
    gaps: int = 0
    skipped: int = 0
    """Events of a type that this projection does not know."""
    outdated: int = 0
    """Decisions of who does not lead any more, or not yet."""
    dead_letters: dict[str, int] = field(default_factory=dict)
    """By the class of the error."""
    fenced: int = 0
    retries: int = 0
    committed: dict[float, int] = field(default_factory=dict)
    """Transactions, by the first of APPLY_SECONDS that they did not exceed; inf beyond."""
    seconds: float = 0.0
    """That these took."""
    looked: float = 0.0
    """When `run` last looked for events, in seconds since 1970; 0 before."""
    newest_ms: int = 0
    """When the newest event that was passed had been recorded, Unix milliseconds."""


class Runner:
    """Folds a log into the tables of one database."""

    def __init__(
        self,
        log: EventLog,
        engine: Engine,
        *,
        registry: Registry = REGISTRY,
        batch_events: int = BATCH_EVENTS,
        patience_seconds: float = 30.0,
        on_progress: Callable[[int], None] | None = None,
    ) -> None:
        self.log = log
        self.engine = engine
        self.counters = Counters()
        self._registry = registry
        self._batch_events = batch_events
        self._patience_seconds = patience_seconds
        self._on_progress = on_progress
        self._stopped = threading.Event()
        self._standings: dict[tuple[str, int], Standing] = {}
        self._sure: dict[tuple[str, int], float] = {}
        """When a partition was last read from where it had been folded, in seconds of `elapsed`."""

    def catch_up(self, until: Cursor | None = None) -> None:
        """Fold up to the log's end as it is now (or up to the offsets of `until`).

        Raises AheadOfLog when the log is shorter than the position, LogDiverged when it is another
        one, PositionMissing when a round waits for rollouts that the log does not hold.
        """
        self._check_version()
        self._sure.clear()
        self._see_same_log()
        goal = dict(until) if until is not None else self.ends()
        for stream, partition in ORDER:
            if until is None and self._offset(stream, partition) > goal[stream, partition]:
                self.log.read(stream, partition, self._offset(stream, partition))  # AheadOfLog
            self._catch_up(stream, partition, goal.get((stream, partition), 0))

    def run(self, stop: threading.Event) -> None:
        """Fold whatever comes until `stop` is set; waits as long as the database is down."""
        self._stopped = stop
        self._patience_seconds = math.inf
        self._check_version()
        while not stop.is_set():
            self.counters.looked = time.time()
            try:
                self._see_same_log()
                folded = sum(self.step(stream, partition) for stream, partition in ORDER)
                if not folded:
                    self.log.wait(self._cursor(), IDLE_SECONDS)
            except LogUnavailable:
                self._sure.clear()  # it may be another one when it is back
                self._pause(IDLE_SECONDS)

    def ends(self) -> dict[tuple[str, int], int]:
        """The log's end offsets."""
        return {
            (stream.name, partition): offset
            for stream in STREAMS.values()
            for partition, offset in enumerate(self.log.end(stream.name))
        }

    def step(self, stream: str, partition: int, limit: int | None = None) -> int:
        """Fold at most one batch of one partition; returns how many records were passed."""
        return database.retrying(
            lambda: self._step(stream, partition, limit or self._batch_events),
            self.engine,
            self._patience_seconds,
            self._pause,
        )

    def _pause(self, seconds: float) -> None:
        self.counters.retries += 1
        self._stopped.wait(seconds)

    def _catch_up(self, stream: str, partition: int, goal: int) -> None:
        while (missing := goal - self._offset(stream, partition)) > 0:
            # Not beyond the goal: a rebuild compares what both have folded, and the log grows.
            folded = self.step(stream, partition, min(missing, self._batch_events))
            if folded == 0 and self._offset(stream, partition) < goal:
                if stream == LEARNING.name:
                    raise PositionMissing(
                        f"a round at {stream}/{partition}@{self._offset(stream, partition)} names "
                        "rollouts that this log does not hold; ship the spools that recorded them"
                    )
                return  # a broker's end counts records that it does not hand out

    def _see_same_log(self) -> None:
        """That it is the log that was folded, in every partition: before any is folded on."""
        for at in ORDER:
            self._see_same(*at)

    def _see_same(self, stream: str, partition: int) -> None:
        """Raises LogDiverged, and as EventLog.read."""
        at = (stream, partition)
        if at in self._sure and elapsed() - self._sure[at] < SURE_SECONDS:
            return
        stands = self._standing(*at)
        check_log(self.log, *at, stands)
        found = learnt(self.log, *at, stands)
        if found is not None:
            self._learn(at, found)
        self._sure[at] = elapsed()

    def _learn(self, at: tuple[str, int], found: Standing) -> None:
        def write() -> None:
            with database.writing(self.engine) as connection:
                learn(connection, *at, found)

        database.retrying(write, self.engine, self._patience_seconds, self._pause)
        self._standings[at] = found

    def _cursor(self) -> dict[tuple[str, int], int]:
        return {at: self._offset(*at) for at in ORDER}

    def _offset(self, stream: str, partition: int) -> int:
        return self._standing(stream, partition).next_offset

    def _standing(self, stream: str, partition: int) -> Standing:
        at = (stream, partition)
        if at not in self._standings:
            self._standings[at] = database.retrying(
                lambda: self._stored(stream, partition),
                self.engine,
                self._patience_seconds,
                self._pause,
            )
        return self._standings[at]

    def _stored(self, stream: str, partition: int) -> Standing:
        with database.reading(self.engine) as connection:
            return standing(connection, stream, partition)

    def _forget(self, stream: str, partition: int) -> None:
        """Where a partition stands, the database knows, and this object does not."""
        self._standings.pop((stream, partition), None)
        self._sure.pop((stream, partition), None)

    def _step(self, stream: str, partition: int, limit: int) -> int:
        self._see_same(stream, partition)
        stands = self._standing(stream, partition)
        records = self.log.read(stream, partition, stands.next_offset, limit)
        self._sure[stream, partition] = elapsed()
        if not records:
            return 0
        if stream == LEARNING.name:
            records = self._ready(records)
            if not records:
                return 0
        began = time.monotonic()
        try:
            with database.writing(self.engine) as connection:
                reached = self._fold(connection, records, stands)
        except Fenced:
            self.counters.fenced += 1
            self._forget(stream, partition)
            return len(records)
        except SQLAlchemyError:
            # Committed or not: the database knows, this object does not.
            self._forget(stream, partition)
            raise
        self._standings[stream, partition] = reached.standing
        self._committed(records[: reached.passed], time.monotonic() - began)
        if self._on_progress is not None:
            self._on_progress(reached.passed)
        if reached.halted is not None:
            raise reached.halted
        return reached.passed

    def _committed(self, records: Sequence[Record], seconds: float) -> None:
        counters = self.counters
        within = (bound for bound in APPLY_SECONDS if seconds <= bound)
        _add(counters.committed, next(within, math.inf))
        counters.seconds += seconds
        counters.newest_ms = max([counters.newest_ms, *(one.recorded_ms for one in records)])

    def _ready(self, records: list[Record]) -> list[Record]:
        """The leading decisions that can be folded now: up to a round, or one round alone.

        Before a round, rollouts are advanced at least to its position.
        """
        for place, record in enumerate(records):
            if dict(record.headers).get("ce_type") == PatternsDiagnosed.TYPE.encode():
                if place:
                    return records[:place]
                return records[:1] if self._advance_to(record) else []
        return records

    def _advance_to(self, record: Record) -> bool:
        """Whether the rollouts that a round names are folded, folding them if need be."""
        try:
            data = decode_value(record, from_headers(record.headers), self._registry).data
        except (BadRecord, SchemaAhead):
            return True  # the fold itself will say what is wrong with it
        if not isinstance(data, PatternsDiagnosed):
            return True
        while True:
            with database.reading(self.engine) as connection:
                if covered(connection, data.position, ROLLOUTS.name):
                    return True
            moved = [self.step(ROLLOUTS.name, p) for p in range(ROLLOUTS.partitions)]
            if not any(moved):
                return False

    def _fold(
        self, connection: Connection, records: Sequence[Record], stands: Standing
    ) -> "_Reached":
        stream, partition, offset = records[0].stream, records[0].partition, stands.next_offset
        if next_offset(connection, stream, partition, lock=True) != offset:
            raise Fenced(f"{stream}/{partition} was moved from offset {offset} by another runner")
        batch = Batch(connection)
        unread = Unread(reached_sources(connection, stream, partition))
        halted: SchemaAhead | None = None
        passed = 0
        for record in records:
            try:
                if unread.accepts(record):
                    self._fold_one(batch, record)
            except SchemaAhead as error:
                unread.refuse(record)
                halted = error
                break
            passed += 1
        for record in unread.others:
            self._refuse_other(batch, record)
        following = stands.after(records[passed - 1]) if passed else stands
        if not advance(connection, stream, partition, offset, following):
            raise Fenced(f"{stream}/{partition} was moved from offset {offset} by another runner")
        batch.flush()
        store_reached(connection, stream, partition, unread.changed)
        self._count(unread, passed)
        return _Reached(following, passed, halted)

    def _fold_one(self, batch: Batch, record: Record) -> None:
        type_name: str | None = None
        try:
            envelope = from_headers(record.headers)
            type_name = envelope.type
            content = envelope.type in READS_CONTENT
            event = decode_value(record, envelope, self._registry, content)
            if record.stream == LEARNING.name:
                # A round writes while it reads; if it breaks, nothing of it may stay.
                with batch.connection.begin_nested():
                    counted = fold_event(Folding(event, record), batch)
                    self.counters.outdated += not counted
                    batch.keep()
                    batch.flush()
            else:
                fold_event(Folding(event, record), batch)
                batch.keep()
        except UnknownType:
            self.counters.skipped += 1
        except (SQLAlchemyError, SchemaAhead, MemoryError):
            raise
        except Exception as error:  # a fold is deterministic: what it raises, every replay raises
            batch.drop()
            _add(self.counters.dead_letters, type(error).__name__)
            batch.stage(DeadLetter, _dead_letter(record, type_name, error))
            batch.keep()

    def _refuse_other(self, batch: Batch, record: Record) -> None:
        """A spool that was restored from before numbers once more from there."""
        error = AnotherEvent(
            f"source {record.source} has recorded another event under sequence {record.sequence} "
            "before: its spool was restored from before; see kintsugi spool renew"
        )
        _add(self.counters.dead_letters, type(error).__name__)
        batch.stage(DeadLetter, _dead_letter(record, None, error))
        batch.keep()

    def _count(self, unread: Unread, passed: int) -> None:
        self.counters.duplicates += unread.duplicates
        self.counters.gaps += unread.gaps
        self.counters.folded += passed - unread.duplicates - unread.gaps

    def _check_version(self) -> None:
        database.retrying(
            lambda: ensure_version(self.engine),
            self.engine,
            self._patience_seconds,
            self._pause,
        )


def _add(counts: dict[_Kind, int], kind: _Kind) -> None:
    counts[kind] = counts.get(kind, 0) + 1


@dataclass(frozen=True, slots=True)
class _Reached:
    standing: Standing
    passed: int
    halted: SchemaAhead | None


def ensure_version(engine: Engine) -> None:
    """Write down which fold version fills these tables, or refuse to mix two."""
    with database.writing(engine) as connection:
        columns = Projection.table().c
        stored = connection.execute(
            select(columns.fold_version).where(columns.name == PROJECTION)
        ).scalar()
        if stored is None:
            upsert(connection, Projection, [{"name": PROJECTION, "fold_version": FOLD_VERSION}])
        elif stored != FOLD_VERSION:
            raise FoldVersionChanged(
                f"the tables were folded by version {stored} of the folds, this is version "
                f"{FOLD_VERSION}; run kintsugi rebuild"
            )


def _dead_letter(record: Record, type_name: str | None, error: Exception) -> dict[str, object]:
    text = str(error) if isinstance(error, KintsugiError) else f"{type(error).__name__}: {error}"
    return {
        "stream": record.stream,
        "partition": record.partition,
        "event_source": record.source,
        "sequence": record.sequence,
        "type": type_name,
        "reason": text[:REASON_CHARACTERS],
        "offset": record.offset,
    }
