"""The runner: reads the log, folds it, and moves the positions in the same transaction.

    read        a batch of one partition
    prepare     decode it and make its labels, with no transaction open (preparation.py)
    write       rows and position, in one transaction
    one by one  if the database refuses the rows of a batch for good: each event in its own
                savepoint, and the refused one becomes a dead letter

Guarantees. Rows and positions are committed together, and a position only moves from where this
runner believed it to be (compare-and-set). So two runners on the same partitions, even if killed at
any time, make the same tables as one. Only the next sequence of a source is accepted: a repetition
changes nothing, and an event that comes too early is ignored until the shipper sends it again.

Stops. An event of a newer version halts the fold until it is upgraded. A trimmed or wiped log halts
it with LogTruncated or AheadOfLog, one restored from an earlier copy with LogDiverged: after a
pause, the fold checks that the log holds the record folded last. An event under the source and
sequence of another becomes a dead letter, as do malformed bytes, broken invariants and values that
no table can hold; the partition goes on. A database that is down, full, locked or in a deadlock is
waited for, never a dead letter.

Folds have no effects: they change tables, nothing else.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from consumers import database
from consumers.batch import Batch, upsert
from consumers.clock import monotonic_seconds
from consumers.folds.rollouts import fold_decision
from consumers.position import (
    FoldPosition,
    SourcePosition,
    Unread,
    advance,
    check_log,
    covers,
    next_offset,
    read_fold_position,
    read_fold_version,
    read_source_positions,
    recover_last_record,
    store_last_record,
    store_source_positions,
)
from consumers.preparation import Preparation, dead_letter, halts, is_unknown_type, prepare
from consumers.storage import sanitize_record
from consumers.tables import FOLD_VERSION, PROJECTION, DeadLetter, Projection
from events.codec import decode_value
from events.envelope import from_headers
from events.errors import BadRecord, KintsugiError, LogUnavailable, SchemaAhead
from events.learning import PatternsDiagnosed
from events.log import Cursor, EventLog, Record
from events.registry import REGISTRY, Registry
from events.streams import LEARNING, ROLLOUTS, STREAMS

BATCH_EVENTS: Final = 500
"""Most events in a transaction; more do not increase throughput."""

BATCH_CHARACTERS: Final = 16 << 20
"""Most characters of texts in a transaction; the event that exceeds the limit is its last."""

IDLE_SECONDS: Final = 0.5

SURE_SECONDS: Final = 30.0
"""After a pause of more seconds between two reads, the process checks that the log is the same."""

APPLY_SECONDS: Final = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0)
"""Bounds of the histogram of a transaction's seconds."""

ORDER: Final = tuple(
    (stream.name, partition)
    for stream in (ROLLOUTS, LEARNING)
    for partition in range(stream.partitions)
)
"""Partitions in the order of reading: rollouts first, so that a round rarely waits for them."""


REFUSED: Final = "the database refuses what it says, at every try; the log of the fold says why"
"""Reason in the dead letter of an event that a database refused; the same for both databases."""

_Kind = TypeVar("_Kind")

_logger = logging.getLogger(__name__)


class PositionConflict(KintsugiError):
    """Another runner moved the position first, so this runner's rows were rolled back."""


class FoldVersionMismatch(KintsugiError):
    """The tables were folded by another version of the folds."""


class AnotherEvent(BadRecord):
    """An event has the source and sequence of a different event that was folded before."""


class PositionGap(KintsugiError):
    """A round's position names rollouts that this log does not hold, or not yet."""


@dataclass
class Counters:
    """Counters of a runner since its creation."""

    folded: int = 0
    duplicates: int = 0
    gaps: int = 0
    skipped: int = 0
    """Events of a type that this projection does not know."""
    outdated: int = 0
    """Ignored events of `learning`, because their writer does not lead."""
    dead_letters: dict[str, int] = field(default_factory=dict)
    """Number of dead letters, by the class of the error."""
    fenced: int = 0
    retries: int = 0
    committed: dict[float, int] = field(default_factory=dict)
    """First of APPLY_SECONDS that a transaction did not exceed (or inf) -> transactions."""
    seconds: float = 0.0
    """Total seconds of the committed transactions."""
    looked: float = 0.0
    """Time when `run` last looked for events, in seconds since 1970; 0 before that."""
    newest_ms: int = 0
    """Time when the newest folded event was recorded, in Unix milliseconds."""


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
        self._positions: dict[tuple[str, int], FoldPosition] = {}
        self._sources: dict[tuple[str, int], dict[str, SourcePosition]] = {}
        self._sure: dict[tuple[str, int], float] = {}
        """Partition -> time of the last read at its folded position, by `monotonic_seconds`."""

    def catch_up(self, until: Cursor | None = None) -> None:
        """Fold up to the log's present end, or up to the offsets of `until`. Raise AheadOfLog if
        the log ends before the position, LogDiverged if it is another log, PositionGap if a round
        waits for rollouts that the log does not hold."""
        self._check_version()
        self._sure.clear()
        self._see_same_log()
        goal = dict(until) if until is not None else self.ends()
        for stream, partition in ORDER:
            if until is None and self._offset(stream, partition) > goal[stream, partition]:
                self.log.read(stream, partition, self._offset(stream, partition))  # AheadOfLog
            self._catch_up(stream, partition, goal.get((stream, partition), 0))

    def run(self, stop: threading.Event) -> None:
        """Fold new events until `stop` is set; wait as long as the database is down."""
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
                self._sure.clear()  # another log may come back in its place
                self._pause(IDLE_SECONDS)

    def ends(self) -> dict[tuple[str, int], int]:
        """Return the log's end offsets."""
        return {
            (stream.name, partition): offset
            for stream in STREAMS.values()
            for partition, offset in enumerate(self.log.end(stream.name))
        }

    def step(self, stream: str, partition: int, limit: int | None = None) -> int:
        """Fold at most one batch of one partition. Return the number of passed records."""
        return database.retry_transient(
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
            # Do not fold beyond the goal: the log grows, and a rebuild compares tables at one
            # position.
            folded = self.step(stream, partition, min(missing, self._batch_events))
            if folded == 0 and self._offset(stream, partition) < goal:
                if stream == LEARNING.name:
                    raise PositionGap(
                        f"a round at {stream}/{partition}@{self._offset(stream, partition)} names "
                        "rollouts that this log does not hold; ship the spools that recorded them"
                    )
                return  # a broker's end counts records that it does not hand out

    def _see_same_log(self) -> None:
        """Check for every partition, before any further fold, that the log still holds the record
        folded last. Raise LogDiverged, and errors as EventLog.read."""
        for at in ORDER:
            self._see_same(*at)

    def _see_same(self, stream: str, partition: int) -> None:
        at = (stream, partition)
        if at in self._sure and monotonic_seconds() - self._sure[at] < SURE_SECONDS:
            return
        stands = self._position(*at)
        check_log(self.log, *at, stands)
        position = recover_last_record(self.log, *at, stands)
        if position is not None:
            self._store_last_record(at, position)
        self._sure[at] = monotonic_seconds()

    def _store_last_record(self, at: tuple[str, int], position: FoldPosition) -> None:
        def write() -> None:
            with database.write_transaction(self.engine) as connection:
                store_last_record(connection, *at, position)

        database.retry_transient(write, self.engine, self._patience_seconds, self._pause)
        self._positions[at] = position

    def _cursor(self) -> dict[tuple[str, int], int]:
        return {at: self._offset(*at) for at in ORDER}

    def _offset(self, stream: str, partition: int) -> int:
        return self._position(stream, partition).next_offset

    def _position(self, stream: str, partition: int) -> FoldPosition:
        at = (stream, partition)
        if at not in self._positions:
            self._positions[at] = database.retry_transient(
                lambda: self._read_position(stream, partition),
                self.engine,
                self._patience_seconds,
                self._pause,
            )
        return self._positions[at]

    def _read_position(self, stream: str, partition: int) -> FoldPosition:
        with database.read_transaction(self.engine) as connection:
            return read_fold_position(connection, stream, partition)

    def _step(self, stream: str, partition: int, limit: int) -> int:
        at = (stream, partition)
        self._see_same(stream, partition)
        stands = self._position(stream, partition)
        records = self.log.read(stream, partition, stands.next_offset, limit)
        self._sure[at] = monotonic_seconds()
        if not records:
            return 0
        if stream == LEARNING.name:
            records = self._ready(records)
            if not records:
                return 0
        try:
            prepared = self._prepare(records, at)
            began = time.monotonic()
            done = self._write(records, prepared, stands)
        except PositionConflict:
            self.counters.fenced += 1
            self._forget(at)
            return len(records)
        except SQLAlchemyError:
            self._forget(at)
            raise
        self._positions[at] = done.standing
        self._sources[at] = done.unread.positions
        self._count_transaction(records[: done.passed], done, time.monotonic() - began)
        if self._on_progress is not None:
            self._on_progress(done.passed)
        if done.halted is not None:
            raise done.halted
        return done.passed

    def _forget(self, at: tuple[str, int]) -> None:
        """Forget a partition's cached positions; after an error, only the database knows them."""
        self._positions.pop(at, None)
        self._sources.pop(at, None)
        self._sure.pop(at, None)

    def _prepare(self, records: Sequence[Record], at: tuple[str, int]) -> list[Preparation]:
        """Prepare records before the transaction. Stop early when their texts become too long.
        Records that are repeated or come too early are not decoded."""
        if at not in self._sources:
            with database.read_transaction(self.engine) as connection:
                self._sources[at] = read_source_positions(connection, *at)
        unread = Unread(self._sources[at])
        prepared: list[Preparation] = []
        characters = 0
        for record in records:
            named = sanitize_record(record)
            new = unread.accepts(named, record)
            item = prepare(named, self._registry) if new else Preparation(named)
            prepared.append(item)
            characters += item.characters
            if halts(item) or characters > BATCH_CHARACTERS:
                break
        return prepared

    def _write(
        self, records: Sequence[Record], prepared: Sequence[Preparation], stands: FoldPosition
    ) -> "_TransactionResult":
        """Fold in one transaction. If the database refuses the batch, fold again event by event."""
        try:
            with database.write_transaction(self.engine) as connection:
                return self._fold(connection, records, prepared, stands)
        except (SQLAlchemyError, OverflowError, UnicodeEncodeError) as error:
            if not database.is_permanent(error):
                raise
            _logger.warning(
                "%s/%s@%s: the database refuses a batch (%s); it is folded event by event",
                records[0].stream, records[0].partition, stands.next_offset, _first_line(error),
            )  # fmt: skip
        with database.write_transaction(self.engine) as connection:
            return self._fold(connection, records, prepared, stands, alone=True)

    def _count_transaction(
        self, records: Sequence[Record], done: "_TransactionResult", seconds: float
    ) -> None:
        counters = self.counters
        within = (bound for bound in APPLY_SECONDS if seconds <= bound)
        _add(counters.committed, next(within, math.inf))
        counters.seconds += seconds
        counters.newest_ms = max([counters.newest_ms, *(record.recorded_ms for record in records)])
        unread = done.unread
        counters.duplicates += unread.duplicates
        counters.gaps += unread.gaps
        counters.folded += done.passed - unread.duplicates - unread.gaps
        counters.skipped += done.skipped
        counters.outdated += done.outdated
        for kind in done.dead_letters:
            _add(counters.dead_letters, kind)

    def _ready(self, records: list[Record]) -> list[Record]:
        """Return the first events of `learning` that can be folded now: all before a round, or one
        round alone. Before returning a round, fold the rollouts up to its position."""
        for place, record in enumerate(records):
            if dict(record.headers).get("ce_type") == PatternsDiagnosed.TYPE.encode():
                if place:
                    return records[:place]
                return records[:1] if self._advance_to(record) else []
        return records

    def _advance_to(self, record: Record) -> bool:
        """Fold the rollouts that a round names; return whether all of them are folded."""
        try:
            record = sanitize_record(record)
            data = decode_value(record, from_headers(record.headers), self._registry).data
        except (BadRecord, SchemaAhead):
            return True  # the fold itself reports the error
        if not isinstance(data, PatternsDiagnosed):
            return True
        while True:
            with database.read_transaction(self.engine) as connection:
                if covers(connection, data.position, ROLLOUTS.name):
                    return True
            moved = [self.step(ROLLOUTS.name, p) for p in range(ROLLOUTS.partitions)]
            if not any(moved):
                return False

    def _fold(
        self,
        connection: Connection,
        records: Sequence[Record],
        prepared: Sequence[Preparation],
        stands: FoldPosition,
        alone: bool = False,
    ) -> "_TransactionResult":
        stream, partition, offset = records[0].stream, records[0].partition, stands.next_offset
        if next_offset(connection, stream, partition, lock=True) != offset:
            raise PositionConflict(
                f"{stream}/{partition} was moved from offset {offset} by another runner"
            )
        batch = Batch(connection)
        done = _TransactionResult(
            Unread(read_source_positions(connection, stream, partition)), stands
        )
        for early, raw in zip(prepared, records, strict=False):
            if done.unread.accepts(early.record, raw):
                item = self._complete(early)
                if halts(item):
                    done.unread.refuse(item.record)
                    assert isinstance(item.error, SchemaAhead), "that is what halting is"
                    done.halted = item.error
                    break
                self._fold_one(batch, item, done)
                if alone:
                    _flush_alone(batch, item, done)
            done.passed += 1
        for record in done.unread.others:
            _pass_over(batch, Preparation(record), _another_event(record), done)
        if done.passed:
            done.standing = stands.after(records[done.passed - 1])
        if not advance(connection, stream, partition, offset, done.standing):
            raise PositionConflict(
                f"{stream}/{partition} was moved from offset {offset} by another runner"
            )
        batch.flush()
        store_source_positions(connection, stream, partition, done.unread.position_changes)
        return done

    def _complete(self, item: Preparation) -> Preparation:
        """Return the preparation. Make it now if the record was skipped as a repetition."""
        if item.folding is None and not item.rows and item.error is None:
            return prepare(item.record, self._registry)
        return item

    def _fold_one(self, batch: Batch, item: Preparation, done: "_TransactionResult") -> None:
        if is_unknown_type(item):
            done.skipped += 1
        elif item.error is not None:
            _pass_over(batch, item, item.error, done)
        elif item.folding is not None:
            self._decide(batch, item, done)
        else:
            batch.add(item.rows)

    def _decide(self, batch: Batch, item: Preparation, done: "_TransactionResult") -> None:
        assert item.folding is not None, "a decision was decoded"
        batch.flush()
        try:
            # A round writes while it reads. If it fails, all its writes must be undone.
            with batch.connection.begin_nested():
                counted = fold_decision(item.folding, batch)
                batch.keep()
                batch.flush()
            done.outdated += not counted
        except (SchemaAhead, MemoryError):
            raise
        except SQLAlchemyError as error:
            if not database.is_permanent(error):
                raise
            _record_refusal(batch, item, error, done)
        except Exception as error:  # a fold is deterministic: every replay raises the same error
            _pass_over(batch, item, error, done)

    def _check_version(self) -> None:
        database.retry_transient(
            lambda: ensure_version(self.engine),
            self.engine,
            self._patience_seconds,
            self._pause,
        )


def _add(counts: dict[_Kind, int], kind: _Kind) -> None:
    counts[kind] = counts.get(kind, 0) + 1


@dataclass
class _TransactionResult:
    unread: Unread
    standing: FoldPosition
    passed: int = 0
    skipped: int = 0
    outdated: int = 0
    dead_letters: list[str] = field(default_factory=list)
    """Error classes of the events that became dead letters."""
    halted: SchemaAhead | None = None


def _flush_alone(batch: Batch, item: Preparation, done: _TransactionResult) -> None:
    """Write the rows of one event. If the database refuses them, write its dead letter instead."""
    try:
        with batch.connection.begin_nested():
            batch.flush()
    except (SQLAlchemyError, OverflowError, UnicodeEncodeError) as error:
        if not database.is_permanent(error):
            raise
        batch.discard()
        _record_refusal(batch, item, error, done)
        batch.flush()


def _record_refusal(
    batch: Batch, item: Preparation, error: Exception, done: _TransactionResult
) -> None:
    record = item.record
    _logger.warning(
        "%s/%s@%s: the database refuses the event for good, it becomes a dead letter: %s",
        record.stream, record.partition, record.offset, _first_line(error),
    )  # fmt: skip
    _pass_over(batch, item, BadRecord(REFUSED), done)


def _pass_over(batch: Batch, item: Preparation, error: Exception, done: _TransactionResult) -> None:
    """Drop the event's rows and keep only a dead letter for it."""
    batch.drop()
    if item.folding is not None:
        batch.discard()  # a decision is alone in its batch
    batch.stage(DeadLetter, dead_letter(item, error))
    batch.keep()
    done.dead_letters.append(type(error).__name__)


def _another_event(record: Record) -> AnotherEvent:
    """Return the error for a reused sequence, as from a spool that was restored from a copy."""
    return AnotherEvent(
        f"source {record.source} has recorded another event under sequence {record.sequence} "
        "before: its spool was restored from before; see kintsugi spool renew"
    )


def _first_line(error: BaseException) -> str:
    """Return the first line of a driver's error, without the statement and values."""
    return (str(getattr(error, "orig", None) or error).strip().splitlines() or [""])[0][:300]


def ensure_version(engine: Engine) -> None:
    """Store the fold version in new tables. Raise FoldVersionMismatch if they have another."""
    with database.write_transaction(engine) as connection:
        stored = read_fold_version(connection)
        if stored is None:
            upsert(connection, Projection, [{"name": PROJECTION, "fold_version": FOLD_VERSION}])
        elif stored != FOLD_VERSION:
            raise FoldVersionMismatch(
                f"the tables were folded by version {stored} of the folds, this is version "
                f"{FOLD_VERSION}; run kintsugi rebuild"
            )
