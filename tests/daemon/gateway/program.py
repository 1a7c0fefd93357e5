"""`kintsugi gateway` as a process of its own, as whoever attacks or stops it meets it."""

import re
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from events.codec import decode
from events.rollouts import EventData
from events.sqlite.log import SqliteLog
from events.streams import ROLLOUTS
from tests.daemon.commands import start


@dataclass(frozen=True)
class Program:
    """A running gateway."""

    process: "subprocess.Popen[str]"
    home: Path
    port: int
    said: list[str] = field(default_factory=list)
    """Lines of stderr so far."""

    @property
    def url(self) -> str:
        """Without `/v1`."""
        return f"http://127.0.0.1:{self.port}"

    def connect(self) -> socket.socket:
        """A connection, for bytes that no client library would send."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def stored(self) -> bytes:
        """Every byte below its home."""
        return b"".join(path.read_bytes() for path in self.home.rglob("*") if path.is_file())


def read_log(home: Path) -> list[EventData]:
    """What the log of a home holds, whether its gateway runs or not."""
    with closing(SqliteLog(home / "log.db", read_only=True)) as log:
        return [
            decode(record).data
            for partition, end in enumerate(log.end(ROLLOUTS.name))
            for offset in range(0, end, 500)
            for record in log.read(ROLLOUTS.name, partition, offset)
        ]


@contextmanager
def running(
    home: Path,
    upstreams: Sequence[str] = (),
    toml: str = "",
    variables: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
) -> Iterator[Program]:
    """A gateway over a home, until the end of the block; `upstreams` end in `/v1`."""
    home.mkdir(parents=True, exist_ok=True)
    if toml:
        (home / "kintsugi.toml").write_text(toml)
    named = [word for url in upstreams for word in ("--upstream", url)]
    process = start(
        ["gateway", "--port", "0", *named, *arguments],
        {"KINTSUGI_HOME": str(home), **(variables or {})},
        stderr=subprocess.PIPE,
    )
    said: list[str] = []
    reader = threading.Thread(target=_read, args=(process, said))
    try:
        port = _port(process, said)
        reader.start()
        yield Program(process, home, port, said)
    finally:
        process.kill()
        process.wait()
        if reader.ident is not None:
            reader.join()
        if process.stderr is not None:
            process.stderr.close()


def _port(process: "subprocess.Popen[str]", said: list[str]) -> int:
    assert process.stderr is not None
    for line in process.stderr:
        said.append(line)
        if found := re.search(r"http://\S+:(\d+)/v1", line):
            return int(found[1])
    raise AssertionError("".join(said))


def _read(process: "subprocess.Popen[str]", said: list[str]) -> None:
    assert process.stderr is not None
    said.extend(process.stderr)
