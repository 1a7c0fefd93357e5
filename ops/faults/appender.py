"""A plain process that appends events until it is killed, and the audit of what it left behind.

After `append` returns, the process writes the batch's ids into a file of acknowledgements in one
write. So the file holds what a caller was told. The audit compares it with the log.

    python -m ops.faults.appender LOG ACKNOWLEDGED [--seed N] [--batches N]
"""

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any, get_args

from events.codec import encode
from events.envelope import Envelope, new_id
from events.log import Entry, now_ms, read_stream
from events.rollouts import CallEnded
from events.sqlite import file as sqlite_file
from events.sqlite.file import Durability
from events.sqlite.log import SqliteLog
from events.streams import STREAMS
from ops.command_line import build_parser

_BATCH = "x-batch"
"""Header with the batch's id and number of events."""


@dataclass(frozen=True)
class Audit:
    """Result of comparing acknowledgements with the log. All counts but the first two must be 0."""

    acknowledged: int
    stored: int
    lost: int
    duplicates: int
    torn_batches: int
    problems: int
    """Sentences of `SqliteLog.check`: damage, gaps between offsets, wrong checksums."""

    @property
    def sound(self) -> bool:
        return not (self.lost or self.duplicates or self.torn_batches or self.problems)

    def report(self) -> dict[str, Any]:
        return asdict(self)


def batch(source: random.Random) -> list[Entry]:
    """Return a batch of one to five events; a header of each names the batch."""
    size = source.randint(1, 5)
    name = new_id()
    return [_entry(source, f"{name}/{size}".encode()) for _ in range(size)]


def _entry(source: random.Random, name: bytes) -> Entry:
    session = f"session-{source.randrange(100)}"
    event = CallEnded(
        call=new_id(), session=session, outcome="completed", error=source.randbytes(5000).hex()
    )
    envelope = Envelope(
        new_id(), event.TYPE, event.VERSION, session, extra={_BATCH: name}
    )  # fmt: skip
    return encode(envelope, event, now_ms()).entry


def ids_of(entries: Iterable[Entry]) -> list[str]:
    """Return the ids of events, in order."""
    return [dict(entry.headers)["ce_id"].decode() for entry in entries]


def start(
    log: Path, acknowledged: Path, *options: str, env: dict[str, str] | None = None
) -> "subprocess.Popen[bytes]":
    """Start the appender process."""
    return subprocess.Popen(
        [sys.executable, "-m", "ops.faults.appender", str(log), str(acknowledged), *options],
        env={**os.environ, **(env or {})},
    )


def read_ack_ids(files: Iterable[Path]) -> set[str]:
    """Return the ids in files of acknowledgements; an incomplete last line is left out."""
    ids: set[str] = set()
    for file in files:
        ids.update(file.read_text().rpartition("\n")[0].split())
    return ids


def audit(log: SqliteLog, acknowledged: set[str]) -> Audit:
    """Read the whole log and compare it with the ids of acknowledged events."""
    ids: Counter[str] = Counter()
    batches: Counter[bytes] = Counter()
    for record in chain.from_iterable(read_stream(log, stream) for stream in STREAMS):
        headers = dict(record.headers)
        ids[headers["ce_id"].decode()] += 1
        batches[headers[_BATCH]] += 1
    return Audit(
        acknowledged=len(acknowledged),
        stored=ids.total(),
        lost=len(acknowledged - ids.keys()),
        duplicates=ids.total() - len(ids),
        torn_batches=sum(count != int(name.split(b"/")[1]) for name, count in batches.items()),
        problems=len(log.check()),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = build_parser(__doc__)
    parser.add_argument("log", type=Path)
    parser.add_argument("acknowledged", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batches", type=int, help="then exit without closing the log")
    parser.add_argument("--durability", choices=get_args(Durability), default="power")
    parser.add_argument("--wal-bytes", type=int, help="start the write-ahead log again so often")
    options = parser.parse_args(arguments)
    if options.wal_bytes is not None:
        sqlite_file.WAL_BYTES = options.wal_bytes
    source = random.Random(options.seed)
    log = SqliteLog(options.log, durability=options.durability)
    ack_file = os.open(options.acknowledged, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    done = 0
    while options.batches is None or done < options.batches:
        entries = batch(source)
        log.append(entries)
        os.write(ack_file, "".join(f"{event_id}\n" for event_id in ids_of(entries)).encode())
        done += 1
    os._exit(0)  # closing would write what a power cut leaves unwritten


if __name__ == "__main__":
    main()
