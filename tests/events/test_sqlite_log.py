"""The embedded log beyond the contract: its file, its processes, its disk."""

import os
import sqlite3
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import pytest

from events.blobs import BlobStore
from events.errors import (
    AheadOfLog,
    LogCorrupt,
    LogError,
    LogFull,
    LogReadOnly,
    LogUnavailable,
)
from events.log import Entry, Place
from events.sqlite import file, writer
from events.sqlite.file import pack_headers, unpack_headers, writable
from events.sqlite.imported import LAYOUT as WITH_COPIES
from events.sqlite.log import SqliteLog
from ops.faults import kill_appender
from ops.faults.small_disk import BALLAST, remount_read_only, small_disk

SECONDS = 30.0

mounts = pytest.mark.skipif(
    os.geteuid() != 0 and os.environ.get("CI") != "true", reason="mounting a disk needs root"
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


@pytest.fixture
def log(path: Path) -> Iterator[SqliteLog]:
    with closing(SqliteLog(path)) as opened:
        yield opened


def entry(value: bytes = b"value", partition: int = 0) -> Entry:
    return Entry("rollouts", partition, "session", (("ce_id", b"1"),), value, 1)


def values(log: SqliteLog, partition: int = 0) -> list[bytes]:
    return [record.value for record in log.read("rollouts", partition, 0)]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another writer, in the middle of its transaction."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


def commits(path: Path) -> int:
    """Transactions in the write-ahead log: frames that say how large the database is after them.

    Each of them was one fsync; a checkpoint would start the count again.
    """
    wal = path.with_name(path.name + "-wal").read_bytes()
    page = struct.unpack_from(">I", wal, 8)[0]
    salt = wal[16:24]
    found = 0
    for at in range(32, len(wal) - 23, 24 + page):
        if wal[at + 8 : at + 16] == salt:
            found += struct.unpack_from(">I", wal, at + 4)[0] != 0
    return found


# What is kept


def test_a_log_keeps_its_id_and_its_records_when_it_is_opened_again(path: Path) -> None:
    with closing(SqliteLog(path)) as first:
        first.append([entry(b"kept")])
    with closing(SqliteLog(path)) as second:
        assert second.source == first.source
        assert values(second) == [b"kept"]
        assert second.append([entry(b"next")]) == [Place("rollouts", 0, 1)]


def test_two_logs_have_two_ids(tmp_path: Path) -> None:
    with closing(SqliteLog(tmp_path / "a.db")) as a, closing(SqliteLog(tmp_path / "b.db")) as b:
        assert a.source != b.source


def test_a_closed_log_is_one_file(path: Path) -> None:
    with closing(SqliteLog(path)) as log:
        log.append([entry()])
        log.read("rollouts", 0, 0)
    assert [found.name for found in path.parent.iterdir()] == ["log.db"]


def test_many_openings_of_a_new_log_at_once_make_one_log(path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        opened = list(pool.map(lambda _: SqliteLog(path), range(8)))
    for number, log in enumerate(opened):
        log.append([entry(b"%d" % number)])
    assert len({log.source for log in opened}) == 1
    assert values(opened[0]) == [b"%d" % number for number in range(8)]
    for log in opened:
        log.close()


def test_durability_process_keeps_the_contract_of_appending(path: Path) -> None:
    with closing(SqliteLog(path, durability="process")) as log:
        log.append([entry(b"kept")])
        assert values(log) == [b"kept"]


def test_headers_are_packed_without_loss() -> None:
    headers = (("", b""), ("ä", bytes(range(256))), ("ä", b"again"))
    assert unpack_headers(pack_headers(headers)) == headers


def test_stats_count_what_can_be_read(log: SqliteLog) -> None:
    log.append([entry(b"12345", partition=1), entry(b"123", partition=2), entry(b"1", partition=1)])
    assert log.stats() == {
        "rollouts": {"events": 3, "bytes": 9},
        "learning": {"events": 0, "bytes": 0},
    }
    log.trim("rollouts", 1, 1)
    assert log.stats()["rollouts"] == {"events": 2, "bytes": 4}
    assert log.check() == []


def test_trimming_more_than_one_portion_keeps_the_books_in_order(log: SqliteLog) -> None:
    log.append([entry(b"%d" % number) for number in range(1_300)])
    log.trim("rollouts", 0, 1_250)
    assert log.start("rollouts")[0] == 1_250
    assert log.stats()["rollouts"] == {"events": 50, "bytes": 200}
    assert log.check() == []


# Shipping


def test_the_shippers_cursor_moves_forward_only_and_survives(path: Path) -> None:
    with closing(SqliteLog(path)) as log:
        log.append([entry() for _ in range(5)])
        assert log.read_ship_offsets("rollouts") == (0,) * 8
        log.store_ship_offset("rollouts", 0, 4)
        log.store_ship_offset("rollouts", 0, 2)
    with closing(SqliteLog(path)) as log:
        assert log.read_ship_offsets("rollouts") == (4, 0, 0, 0, 0, 0, 0, 0)
        assert log.read_ship_offsets("learning") == (0,)


def test_what_was_shipped_is_forgotten_back_to_the_first_record_that_is_there(path: Path) -> None:
    with closing(SqliteLog(path)) as log:
        log.append([entry() for _ in range(5)])
        log.store_ship_offset("rollouts", 0, 4)
        log.trim("rollouts", 0, 3)
        log.reset_ship_offsets()
    with closing(SqliteLog(path)) as log:
        assert log.read_ship_offsets("rollouts") == (3, 0, 0, 0, 0, 0, 0, 0)
        assert log.read_ship_offsets("learning") == (0,)
        log.store_ship_offset("rollouts", 0, 5)
        assert log.read_ship_offsets("rollouts")[0] == 5


def test_what_was_never_appended_cannot_be_marked_as_shipped(log: SqliteLog) -> None:
    log.append([entry()])
    with pytest.raises(AheadOfLog, match="rollouts/0 ends at offset 1, so 2"):
        log.store_ship_offset("rollouts", 0, 2)


# Group commit


def run_while_locked(log: SqliteLog, calls: Sequence[Callable[[], object]]) -> list[Future[object]]:
    """Calls of as many threads, all of them accepted before the first one is committed."""
    with ThreadPoolExecutor(len(calls)) as pool:
        with locked(log.path):
            running = [pool.submit(call) for call in calls]
            wait_until(lambda: log.pending == len(calls))
        return running


def wait_until(condition: Callable[[], bool]) -> None:
    """For what another thread brings about and tells nobody."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "what was waited for did not happen"
        time.sleep(0.002)


def test_everything_that_waits_is_written_with_one_commit(log: SqliteLog) -> None:
    before = commits(log.path)
    calls = [partial(log.append, [entry(b"%d" % number)]) for number in range(32)]
    assert all(call.exception() is None for call in run_while_locked(log, calls))
    # The first of them was in a transaction of its own, waiting for the lock.
    assert commits(log.path) - before <= 2
    assert sorted(values(log)) == sorted(b"%d" % number for number in range(32))


def test_a_group_is_cut_at_its_limit_of_bytes(log: SqliteLog) -> None:
    before = commits(log.path)
    calls = [partial(log.append, [entry(b"x" * 900_000)])] * 20
    assert all(call.exception() is None for call in run_while_locked(log, calls))
    assert commits(log.path) - before >= 20 * 900_000 // writer.GROUP_BYTES + 1


def test_a_bad_batch_does_not_harm_the_others_of_its_group(log: SqliteLog) -> None:
    good = [partial(log.append, [entry(b"%d" % number)]) for number in range(8)]
    bad = partial(log.store_ship_offset, "rollouts", 1, 99)
    *kept, refused = run_while_locked(log, [*good, bad])
    assert all(call.exception() is None for call in kept)
    assert isinstance(refused.exception(), AheadOfLog)
    assert sorted(values(log)) == [b"%d" % number for number in range(8)]
    assert log.check() == []


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (Entry("nowhere", 0, "k", (), b"", 1), KeyError),
        (Entry("learning", 1, "k", (), b"", 1), ValueError),
        (Entry("rollouts", -1, "k", (), b"", 1), ValueError),
        (Entry("rollouts", 0, "k", (), b"", 2**63), ValueError),
        (Entry("rollouts", 0, "\ud800", (), b"", 1), ValueError),
    ],
    ids=["stream", "partition", "negative partition", "time", "key"],
)
def test_an_entry_that_fits_no_log_is_refused_before_it_is_queued(
    log: SqliteLog, bad: Entry, error: type[Exception]
) -> None:
    with pytest.raises(error):
        log.append([entry(), bad])
    assert values(log) == []


def test_the_write_ahead_log_is_moved_into_the_database_while_appending(log: SqliteLog) -> None:
    for _ in range(12):
        log.append([entry(b"x" * 900_000)])
    wait_until(lambda: log.path.stat().st_size > 4 << 20)
    assert len(values(log)) == 12


def test_the_write_ahead_log_does_not_grow_without_bound(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "WAL_BYTES", 4 << 20)
    with closing(SqliteLog(path, durability="process")) as log:
        for _ in range(120):
            log.append([entry(b"x" * 900_000)])
        assert path.with_name("log.db-wal").stat().st_size < 10 << 20
        assert log.check() == []


def test_the_write_ahead_log_of_several_writers_is_bounded_as_that_of_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of them writes as much as the bound: processes that share a log, or are killed early.
    Somebody always reads, or SQLite would begin anew by itself."""
    monkeypatch.setattr(file, "WAL_BYTES", 8 << 20)
    monkeypatch.setattr(writer, "CHECKPOINT_BYTES", 512 << 10)
    stop, writers = threading.Event(), [SqliteLog(path, durability="process") for _ in range(6)]

    def read() -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            while not stop.is_set():
                connection.execute("BEGIN")
                connection.execute("SELECT count(*) FROM partition").fetchone()
                time.sleep(0.01)
                connection.execute("COMMIT")

    with ThreadPoolExecutor(3) as pool:
        readers = [pool.submit(read) for _ in range(3)]
        for _ in range(96):
            for log in writers:
                log.append([entry(b"x" * 250_000)])
        largest = path.with_name("log.db-wal").stat().st_size
        stop.set()
        for reader in readers:
            reader.result(SECONDS)
    for log in writers:
        log.close()
    assert largest < 96 << 20, "all together wrote 144 MB; a loaded machine restarts it late"


# Processes


def test_processes_that_are_killed_while_they_append_lose_and_tear_nothing(tmp_path: Path) -> None:
    result = kill_appender.run(8, tmp_path, processes=4)
    assert result["passed"], result
    assert result["acknowledged"] > 8


def test_waiting_sees_the_append_of_another_process(log: SqliteLog) -> None:
    code = (
        "import sys; from pathlib import Path; from events.log import Entry;"
        "from events.sqlite.log import SqliteLog; log = SqliteLog(Path(sys.argv[1]));"
        "log.append([Entry('rollouts', 0, 'k', (), b'theirs', 1)]); log.close()"
    )
    with ThreadPoolExecutor(1) as pool:
        woken = pool.submit(log.wait, {("rollouts", 0): 0}, SECONDS)
        assert (
            os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", code, str(log.path)]) == 0
        )
        assert woken.result()
    assert values(log) == [b"theirs"]


def test_a_log_opened_before_a_fork_refuses_to_work_in_the_child(log: SqliteLog) -> None:
    child = os.fork()
    if child == 0:
        refused = 0
        for use in (lambda: log.append([entry()]), lambda: log.end("rollouts")):
            try:
                use()
            except LogError as error:
                refused += "opened before a fork" in str(error)
        log.close()
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    log.append([entry(b"parent")])
    assert values(log) == [b"parent"]


def test_a_lock_that_is_not_released_is_unavailable_and_passes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "writable", lambda at, how, *_: writable(at, how, 0.05))
    with closing(SqliteLog(path)) as log:
        with locked(path), pytest.raises(LogUnavailable, match="locked by another process"):
            log.append([entry(b"refused")])
        log.append([entry(b"accepted")])
        assert values(log) == [b"accepted"]


# Closing


def test_an_append_after_closing_is_refused_and_says_so(path: Path) -> None:
    log = SqliteLog(path)
    log.close()
    with pytest.raises(LogError, match="was closed; open it again"):
        log.append([entry()])
    with pytest.raises(LogError, match="was closed; open it again"):
        log.read("rollouts", 0, 0)


def test_closing_finishes_what_was_accepted(path: Path) -> None:
    log = SqliteLog(path)
    with ThreadPoolExecutor(2) as pool:
        with locked(path):
            append = pool.submit(log.append, [entry(b"accepted")])
            wait_until(lambda: log.pending == 1)
            closed = pool.submit(log.close)
        closed.result(SECONDS)
        assert append.result(SECONDS) == [Place("rollouts", 0, 0)]
    with closing(SqliteLog(path)) as again:
        assert values(again) == [b"accepted"]


# Files that are no log of ours


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(LogError, match=r"missing/log\.db cannot be created: its folder does not"):
        SqliteLog(tmp_path / "missing" / "log.db")


def test_reading_only_does_not_make_a_log(path: Path) -> None:
    with pytest.raises(LogError, match="does not exist"):
        SqliteLog(path, read_only=True)
    assert not path.exists()


def test_a_file_that_is_no_database_is_refused_and_untouched(path: Path) -> None:
    path.write_bytes(b"Dear diary, today" * 1000)
    with pytest.raises(LogCorrupt, match=r"log\.db is damaged or no database"):
        SqliteLog(path)
    assert path.read_bytes() == b"Dear diary, today" * 1000


def test_an_empty_file_and_a_foreign_database_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    with closing(sqlite3.connect(tmp_path / "foreign.db")) as connection:
        connection.execute("CREATE TABLE meta (a)")
    for name in ("empty.db", "foreign.db"):
        with pytest.raises(LogError, match=f"{name} is no log of kintsugi; move it away"):
            SqliteLog(tmp_path / name)


def test_a_log_of_a_later_layout_is_refused(path: Path) -> None:
    SqliteLog(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE meta SET layout = ?", (WITH_COPIES + 1,))
        connection.commit()
    for read_only in (True, False):
        with pytest.raises(LogError, match=r"layout 4, this kintsugi reads up to 3; upgrade"):
            SqliteLog(path, read_only=read_only)


# Damage


def test_an_altered_value_is_never_handed_out(path: Path) -> None:
    with closing(SqliteLog(path)) as log:
        log.append([entry(b"first"), entry(b"second" * 2000), entry(b"third")])
    content = path.read_bytes()
    path.write_bytes(content.replace(b"secondsecond", b"secOndsecond", 1))
    with closing(SqliteLog(path)) as log:
        assert [r.value for r in log.read("rollouts", 0, 0, limit=1)] == [b"first"]
        with pytest.raises(LogCorrupt, match="rollouts/0 offset 1"):
            log.read("rollouts", 0, 0)
        assert log.check() == ["rollouts/0 offset 1 does not match its checksum."]


def test_a_missing_record_is_found(path: Path) -> None:
    with closing(SqliteLog(path)) as log:
        log.append([entry() for _ in range(3)])
        with closing(sqlite3.connect(path)) as connection:
            connection.execute('DELETE FROM record WHERE "offset" = 1')
            connection.commit()
        (problem,) = log.check()
    assert problem.startswith("rollouts/0 should hold offsets 0 to 3 (exclusive) and 15 bytes")


def test_a_damaged_page_is_found(path: Path) -> None:
    with closing(SqliteLog(path)) as log:
        log.append([entry(b"x" * 900) for _ in range(200)])
    content = bytearray(path.read_bytes())
    content[10 * 4096 : 11 * 4096] = b"\xff" * 4096
    path.write_bytes(content)
    with closing(SqliteLog(path, read_only=True)) as log:
        assert log.check() != []


# Disks


def fill(log: SqliteLog) -> None:
    """Append pairs of 20 KB until the disk refuses."""
    for _ in range(1_000):
        log.append([entry(b"x" * 20_000)] * 2)


def test_a_log_opened_to_read_only_refuses_appends(path: Path) -> None:
    with closing(SqliteLog(path)) as writing, closing(SqliteLog(path, read_only=True)) as reading:
        writing.append([entry(b"seen")])
        assert values(reading) == [b"seen"]
        assert reading.source == writing.source
        with pytest.raises(LogReadOnly, match="opened to read only"):
            reading.append([entry()])
        with pytest.raises(LogReadOnly):
            reading.trim("rollouts", 0, 1)


@mounts
def test_a_log_on_a_read_only_disk_can_be_read_and_not_appended_to(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 8 << 20) as disk:
        with closing(SqliteLog(disk / "log.db")) as log:
            log.append([entry(b"kept")])
        with remount_read_only(disk):
            with pytest.raises(LogReadOnly, match=r"disk/log\.db"):
                SqliteLog(disk / "log.db")
            with pytest.raises(LogReadOnly, match=r"disk/new\.db"):
                SqliteLog(disk / "new.db")
            with closing(SqliteLog(disk / "log.db", read_only=True)) as log:
                assert values(log) == [b"kept"]
                assert log.check() == []
            with pytest.raises(LogReadOnly, match="mount it writable"):
                BlobStore(disk / "blobs").put(b"body")


@mounts
def test_a_full_disk_refuses_and_an_open_log_goes_on_when_there_is_space(tmp_path: Path) -> None:
    with (
        small_disk(tmp_path / "disk", 8 << 20, ballast=5 << 20) as disk,
        closing(SqliteLog(disk / "log.db")) as log,
    ):
        with pytest.raises(LogFull, match=r"log\.db cannot grow, its disk is full; free space"):
            fill(log)
        stored = log.end("rollouts")[0]
        assert 0 < stored == len(values(log))
        assert stored % 2 == 0
        with pytest.raises(LogFull):
            BlobStore(disk / "blobs").put(b"x" * 900_000)
        assert not [found for found in (disk / "blobs").rglob("*") if found.is_file()]
        (disk / BALLAST).unlink()
        log.append([entry(b"after")])
        BlobStore(disk / "blobs").put(b"x" * 300_000)
        assert len(values(log)) == stored + 1
        assert log.check() == []


@mounts
def test_a_log_cannot_be_made_on_a_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 64 << 10, ballast=60 << 10) as disk:
        with pytest.raises(LogFull, match="free space"):
            SqliteLog(disk / "log.db")
        assert [found.name for found in disk.iterdir()] == [BALLAST]
