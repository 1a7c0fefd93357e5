"""Receipts: remembered with a record or not at all, for a day, also in files of earlier layouts."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from zlib import crc32

import pytest

from events.errors import LogReadOnly
from events.log import Entry, now_ms
from events.sqlite import receipts
from events.sqlite.file import LAYOUT, pack_headers, writable
from events.sqlite.log import SqliteLog
from events.sqlite.receipts import KEPT_MS, MAX_RECEIPT_BYTES, Receipt

FIRST_LAYOUT = """
CREATE TABLE meta (log TEXT NOT NULL, layout INTEGER NOT NULL);
CREATE TABLE partition (
    stream TEXT NOT NULL, partition INTEGER NOT NULL,
    start INTEGER NOT NULL DEFAULT 0, next INTEGER NOT NULL DEFAULT 0,
    bytes INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (stream, partition)
) WITHOUT ROWID;
CREATE TABLE record (
    place INTEGER PRIMARY KEY,
    stream TEXT NOT NULL, partition INTEGER NOT NULL, "offset" INTEGER NOT NULL,
    recorded_ms INTEGER NOT NULL, crc INTEGER NOT NULL,
    key TEXT NOT NULL, headers BLOB NOT NULL, value BLOB NOT NULL,
    UNIQUE (stream, partition, "offset")
);
CREATE TABLE shipped (
    stream TEXT NOT NULL, partition INTEGER NOT NULL, next_offset INTEGER NOT NULL,
    PRIMARY KEY (stream, partition)
) WITHOUT ROWID;
INSERT INTO meta VALUES ('the log', 1);
INSERT INTO partition (stream, partition, next, bytes) VALUES ('rollouts', 0, 1, 5);
"""
"""What the first layout was, as it was written."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


@pytest.fixture
def log(path: Path) -> Iterator[SqliteLog]:
    with closing(SqliteLog(path)) as opened:
        yield opened


def entry(partition: int = 0) -> Entry:
    return Entry("rollouts", partition, "session", (("ce_id", b"1"),), b"value", 1)


def remember(log: SqliteLog, key: str, value: bytes) -> None:
    log.begin_append([entry()], Receipt(key, value)).result()


def set_age(path: Path, key: str, age_ms: int) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "UPDATE receipt SET recorded_ms = ? WHERE key = ?", (now_ms() - age_ms, key)
        )


def kept(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return [key for (key,) in connection.execute("SELECT key FROM receipt ORDER BY place")]


def test_a_receipt_is_found_again_also_by_the_next_process(path: Path) -> None:
    with closing(SqliteLog(path)) as log:
        remember(log, "a", b"what was answered")
        assert log.receipt("a") == b"what was answered"
        assert log.receipt("b") is None
    with closing(SqliteLog(path)) as log:
        assert log.receipt("a") == b"what was answered"
        assert log.check() == []


def test_the_first_receipt_of_a_key_stays(log: SqliteLog) -> None:
    remember(log, "a", b"first")
    remember(log, "a", b"second")
    assert log.receipt("a") == b"first"
    assert log.end("rollouts")[0] == 2


def test_a_receipt_stands_where_its_record_does(log: SqliteLog, path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "CREATE TRIGGER refuse BEFORE INSERT ON receipt BEGIN SELECT raise(ABORT, 'no'); END"
        )
    with pytest.raises(Exception, match="no"):
        remember(log, "a", b"value")
    assert log.end("rollouts")[0] == 0, "the record went with its receipt"


def test_a_day_old_receipt_is_forgotten_and_its_key_free(log: SqliteLog, path: Path) -> None:
    remember(log, "a", b"first")
    set_age(path, "a", KEPT_MS + 1000)
    assert log.receipt("a") is None
    remember(log, "a", b"second")
    assert log.receipt("a") == b"second"


def test_old_receipts_are_dropped_when_new_ones_come(log: SqliteLog, path: Path) -> None:
    for key in "abc":
        remember(log, key, b"value")
    for key in "ab":
        set_age(path, key, KEPT_MS + 1000)
    remember(log, "d", b"value")
    assert kept(path) == ["c", "d"]


def test_of_too_many_receipts_the_oldest_go(
    log: SqliteLog, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receipts, "MAX_RECEIPTS", 3)
    for key in "abcdef":
        remember(log, key, b"value")
    assert kept(path) == ["d", "e", "f"]


def test_a_receipt_has_a_largest_size() -> None:
    with pytest.raises(ValueError, match="at most 1,048,576 are kept"):
        Receipt("a", bytes(MAX_RECEIPT_BYTES + 1))


def test_a_log_of_the_first_layout_opens_and_gets_receipts(path: Path) -> None:
    headers = pack_headers(entry().headers)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.executescript(FIRST_LAYOUT)
        crc = crc32(b"value", crc32(headers, crc32(b"session")))
        connection.execute(
            "INSERT INTO record VALUES (1, 'rollouts', 0, 0, 1, ?, 'session', ?, ?)",
            (crc, headers, b"value"),
        )
    with closing(SqliteLog(path, read_only=True)) as log:
        assert [record.value for record in log.read("rollouts", 0, 0)] == [b"value"]
        with pytest.raises(LogReadOnly):
            log.receipt("a")
    with closing(SqliteLog(path)) as log:
        assert log.source == "the log"
        assert [record.value for record in log.read("rollouts", 0, 0)] == [b"value"]
        remember(log, "a", b"remembered")
        assert log.receipt("a") == b"remembered"
        assert log.check() == []
    with closing(writable(path, "power")) as connection:
        assert connection.execute("SELECT layout FROM meta").fetchone() == (LAYOUT,)
