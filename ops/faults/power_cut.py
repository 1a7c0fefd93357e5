"""Row 15: cut the power at a random moment and open what the disk kept.

    python -m ops.faults.power_cut --count 100

An appending process runs with `recorder.c` preloaded, which records every write, truncation and
fsync of the log in one order, and every acknowledgement among them. A cut is a place in that
record. Each file then has the content of its last fsync; any part of later requests may have
reached the disk too, in any order, down to single sectors of 512 bytes. A file whose name was never
made durable by an fsync of its folder is gone. Passes when every event acknowledged before the cut
is in the log, no batch is there in part, and the file is undamaged.

Not covered: a disk that lies about fsync, and damage to bytes that were durable before.
"""

import random
import shutil
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from events.sqlite.file import Durability
from events.sqlite.log import SqliteLog
from ops.command_line import run_command
from ops.faults.appender import Audit, audit, read_ack_ids, start
from ops.processes import compile_library

BATCHES: Final = 400
"""Number of appended batches; they take about 12 MB in the database."""

WAL_BYTES: Final = 1 << 20
"""Limit of the write-ahead log: so small that it is checkpointed and restarted a dozen times."""

_SECTOR: Final = 512
_ENTRY: Final = struct.Struct("<cIQQ")
_ACKNOWLEDGED: Final = "acknowledged"


@dataclass(frozen=True, slots=True)
class Request:
    """A disk request of the process: `w` write, `t` truncate to offset, `s` sync."""

    kind: str
    path: Path
    offset: int
    data: bytes


@dataclass(slots=True)
class File:
    """The durable content of a file, and pending requests."""

    content: bytearray = field(default_factory=bytearray)
    pending: list[Request] = field(default_factory=list)
    named: bool = False
    """Whether its folder was synced after the file was created."""


def run(
    count: int, folder: Path, durability: Durability = "power", seed: int = 0
) -> dict[str, Any]:
    """Record one process, cut its record at `count` random places, and sum all audits."""
    source = random.Random(seed)
    requests = _record_requests(folder, durability, source.randrange(1 << 30))
    cuts = sorted(source.sample(range(len(requests)), min(count, len(requests))))
    audits = [_audit_cut(files, folder / "cut", source) for files in _at(requests, cuts, folder)]
    bad = {
        name: sum(getattr(result, name) for result in audits)
        for name in ("lost", "duplicates", "torn_batches", "problems")
    }
    syncs = sum(request.kind == "s" for request in requests)
    restarts = sum(
        request.kind == "w" and request.offset == 0 and request.path.name.endswith("-wal")
        for request in requests
    )
    return {
        "fault": "power cut", "durability": durability, "cuts": len(audits),
        "requests": len(requests), "syncs": syncs, "restarts": restarts,
        "acknowledged": max(result.acknowledged for result in audits), **bad,
        "passed": not any(bad.values()),
    }  # fmt: skip


def _record_requests(folder: Path, durability: Durability, seed: int) -> list[Request]:
    library = folder / "recorder.so"
    compile_library(Path(__file__).with_name("recorder.c"), library)
    disk = folder / "disk"
    disk.mkdir()
    SqliteLog(disk / "log.db").close()
    shutil.copy(disk / "log.db", folder / "first.db")
    preload = {
        "LD_PRELOAD": str(library),
        "RECORD_FOLDER": str(disk.resolve()),
        "RECORD_JOURNAL": str(folder / "journal"),
    }
    options = (
        f"--seed={seed}",
        f"--batches={BATCHES}",
        f"--durability={durability}",
        f"--wal-bytes={WAL_BYTES}",
    )
    process = start(disk / "log.db", disk / _ACKNOWLEDGED, *options, env=preload)
    if process.wait(300):
        raise RuntimeError(f"the recorded appender ended with {process.returncode}")
    return list(_requests((folder / "journal").read_bytes()))


def _requests(journal: bytes) -> Iterator[Request]:
    at = 0
    while at < len(journal):
        kind, name, offset, length = _ENTRY.unpack_from(journal, at)
        middle = at + _ENTRY.size + name
        path = Path(journal[at + _ENTRY.size : middle].decode())
        at = middle + length
        yield Request(kind.decode(), path, offset, journal[middle:at])


def _at(requests: list[Request], cuts: list[int], folder: Path) -> Iterator[dict[Path, File]]:
    """Yield the state of every file at each cut, in order."""
    first = (folder / "first.db").read_bytes()
    files = {(folder / "disk" / "log.db").resolve(): File(bytearray(first), named=True)}
    done = 0
    for cut in cuts:
        for request in requests[done:cut]:
            _follow(files, request)
        done = cut
        yield files


def _follow(files: dict[Path, File], request: Request) -> None:
    if request.kind != "s":
        files.setdefault(request.path, File()).pending.append(request)
    elif request.path in files:
        file = files[request.path]
        for pending in file.pending:
            _apply(file.content, pending.kind, pending.offset, pending.data)
        file.pending.clear()
    else:
        for path, file in files.items():
            file.named |= path.parent == request.path


def _apply(content: bytearray, kind: str, offset: int, data: bytes) -> None:
    if kind == "t" and offset < len(content):
        del content[offset:]
        return
    end = offset + len(data)
    if len(content) < end:
        content.extend(bytes(end - len(content)))
    content[offset:end] = data


def _draw_content(file: File, source: random.Random) -> bytes:
    """Return a random content of the file that is possible after the power cut."""
    content = bytearray(file.content)
    share = source.choice((0.0, 0.5, 0.95, 1.0))
    for request in file.pending:
        if request.kind == "t":
            if source.random() < share:
                _apply(content, "t", request.offset, b"")
            continue
        for start_at in range(0, len(request.data), _SECTOR):
            if source.random() < share:
                sector = request.data[start_at : start_at + _SECTOR]
                _apply(content, "w", request.offset + start_at, sector)
    return bytes(content)


def _audit_cut(files: dict[Path, File], cut: Path, source: random.Random) -> Audit:
    shutil.rmtree(cut, ignore_errors=True)
    cut.mkdir()
    for path, file in files.items():
        if path.name == _ACKNOWLEDGED:
            # Acknowledgements have left the machine, so a power cut does not undo them.
            acks = bytearray()
            for request in file.pending:
                _apply(acks, request.kind, request.offset, request.data)
            (cut / _ACKNOWLEDGED).write_bytes(acks)
        elif file.named:
            (cut / path.name).write_bytes(_draw_content(file, source))
    ack_file = cut / _ACKNOWLEDGED
    log = SqliteLog(cut / "log.db")
    result = audit(log, read_ack_ids([ack_file] if ack_file.exists() else []))
    log.close()
    return result


if __name__ == "__main__":
    run_command(__doc__, run, count=100)
