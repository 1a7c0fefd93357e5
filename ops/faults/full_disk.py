"""Row 13: the disk of the log and of the blobs is full, and then it is not.

    python -m ops.faults.full_disk --count 100

Each round fills the rest of a file system of 12 MB with appends of four threads and with blobs.
Passes when every refusal is a LogFull, all acknowledged events are stored and no refused ones, the
same open log and store continue once space is freed, and the file is undamaged.
"""

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from events.blobs import BlobStore
from events.errors import LogFull
from events.sqlite.log import SqliteLog
from ops.command_line import run_command
from ops.faults.appender import audit, batch, ids_of
from ops.faults.small_disk import BALLAST, small_disk

DISK_BYTES: Final = 12 << 20
BALLAST_BYTES: Final = 8 << 20
"""Reserved space: twice what the log can fill, because moving its write-ahead log needs a copy."""

THREADS: Final = 4


def run(count: int, folder: Path, seed: int = 0) -> dict[str, Any]:
    """Fill and free `count` small disks; count acknowledged, refused and lost events."""
    source = random.Random(seed)
    total = dict.fromkeys(("acknowledged", "refused", "refused_but_stored", "lost", "unsound"), 0)
    blobs = dict.fromkeys(("blobs_stored", "blobs_refused", "blob_remains"), 0)
    for _ in range(count):
        with small_disk(folder / "disk", DISK_BYTES, BALLAST_BYTES) as disk:
            for name, value in _fill_log(disk, source).items():
                total[name] += value
        with small_disk(folder / "disk", DISK_BYTES, BALLAST_BYTES) as disk:
            for name, value in _fill_blobs(disk, source).items():
                blobs[name] += value
    bad = ("refused_but_stored", "lost", "unsound")
    passed = not any(total[name] for name in bad) and not blobs["blob_remains"]
    refused = total["refused"] >= count * THREADS and blobs["blobs_refused"] == count
    return {"fault": "disk full", "disks": count, **total, **blobs, "passed": passed and refused}


def _fill_log(disk: Path, source: random.Random) -> dict[str, int]:
    log = SqliteLog(disk / "log.db")
    with ThreadPoolExecutor(THREADS) as pool:
        sources = [random.Random(source.random()) for _ in range(THREADS)]
        outcomes = list(pool.map(lambda own: _until_full(log, own), sources))
    acknowledged = {name for ids, _ in outcomes for name in ids}
    refused = {name for _, ids in outcomes for name in ids}
    (disk / BALLAST).unlink()
    for _ in range(10):
        entries = batch(source)
        log.append(entries)
        acknowledged.update(ids_of(entries))
    overall = audit(log, acknowledged | refused)
    known = audit(log, acknowledged)
    log.close()
    reopened = SqliteLog(disk / "log.db")
    whole = reopened.check() == []
    reopened.close()
    return {
        "acknowledged": len(acknowledged),
        "refused": len(refused),
        "refused_but_stored": len(refused) - overall.lost,
        "lost": known.lost,
        "unsound": int(not known.sound) + int(not whole),
    }


def _until_full(log: SqliteLog, source: random.Random) -> tuple[list[str], list[str]]:
    """Append until the disk is full; return the acknowledged ids and the refused batch's."""
    acknowledged: list[str] = []
    while True:
        entries = batch(source)
        try:
            log.append(entries)
        except LogFull:
            return acknowledged, ids_of(entries)
        acknowledged += ids_of(entries)


def _fill_blobs(disk: Path, source: random.Random) -> dict[str, int]:
    store = BlobStore(disk / "blobs")
    stored: dict[str, bytes] = {}
    refused = 0
    while not refused:
        body = source.randbytes(300_000)
        try:
            stored[store.put(body)] = body
        except LogFull:
            refused = 1
    left_over = len(_files(store)) - len(stored)
    (disk / BALLAST).unlink()
    stored[store.put(body)] = body
    unequal = sum(store.get(digest) != content for digest, content in stored.items())
    left_over += len(_files(store)) - len(stored)
    return {
        "blobs_stored": len(stored),
        "blobs_refused": refused,
        "blob_remains": left_over + unequal,
    }


def _files(store: BlobStore) -> list[Path]:
    return [path for path in store.folder.rglob("*") if path.is_file()]


if __name__ == "__main__":
    run_command(__doc__, run, count=100)
