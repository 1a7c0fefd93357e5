"""Ask a gateway for as much work as one call may, and see whether it answers others meanwhile.

    python -m ops.fuzz.work [--shapes NAME ...] [--at-once N] [--rules] [--folder DIR]

Each shape (shapes.py) goes to a gateway of its own over an engine that answers at once (flood.py),
under a name of a session, of a person and of an idempotency key. Meanwhile `/livez` is asked every
few milliseconds, and a short call is made again and again, there and on an idle gateway over the
same engine and disk. Prints one line of JSON: the longest time that each took, and the most memory,
as a ratio to that of a gateway that was sent one text of the same size. With `--at-once`, N clients
send each shape at the same time. Exit code 1 where `/livez` took more than SECONDS, a call SECONDS
more than on the idle gateway, or the ratio is above RATIO. `--rules` has the built-in rules of
redaction read everything. Linux only.
"""

import argparse
import json
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from ops.faults.gateway_scene import Gateway, Program, free_port
from ops.fuzz.shapes import Shape, make_shapes, text_shape

SECONDS: Final = 0.25
"""Longest time in which others may be answered."""
RATIO: Final = 1.5
"""Most memory, as a multiple of that for one text of the same size."""

_GAP_SECONDS: Final = 0.005
_SETTLE_SECONDS: Final = 0.5
_PATIENCE_SECONDS: Final = 300.0
_RULES: Final = '["email", "card", "iban", "phone", "secret"]'
_LIVEZ: Final = b"GET /livez HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
_ASK: Final = b'{"user":"short","messages":[{"role":"user","content":"Hello"}]}'


Json = dict[str, Any]


@dataclass(slots=True)
class Asker:
    """Asks the same again and again; knows the longest time that an answer took."""

    request: bytes
    port: int
    slowest: float = 0.0
    """In seconds."""
    _over: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Ask until the end of the block."""
        thread = threading.Thread(target=self._ask)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()

    def _ask(self) -> None:
        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            while not self._over.is_set():
                began = time.monotonic()
                connection.sendall(self.request)
                read_answer(connection)
                self.slowest = max(self.slowest, time.monotonic() - began)
                time.sleep(_GAP_SECONDS)


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one call did to a gateway."""

    status: int
    seconds: float
    livez_seconds: float
    call_seconds: float
    idle_seconds: float
    """Longest time that such a call took on the idle gateway meanwhile."""
    peak_bytes: int


def read_answer(connection: socket.socket) -> int:
    """Read an answer to its end; returns its status."""
    data = bytearray()
    while b"\r\n\r\n" not in data:
        data += _receive(connection)
    head, _, rest = bytes(data).partition(b"\r\n\r\n")
    length = next(
        (
            int(line.split(b":")[1])
            for line in head.lower().split(b"\r\n")
            if b"content-length" in line
        ),
        None,
    )
    received, end = len(rest), rest[-5:]
    while received < length if length is not None else end != b"0\r\n\r\n":
        piece = _receive(connection)
        received, end = received + len(piece), (end + piece)[-5:]
    return int(head.split()[1])


def _receive(connection: socket.socket) -> bytes:
    if data := connection.recv(1 << 20):
        return data
    raise ConnectionError("the gateway closed the connection")


def _post(path: str, body: bytes, **headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: 127.0.0.1", f"content-length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


@dataclass(frozen=True, slots=True)
class Stage:
    """Where gateways are started, and an idle one beside them."""

    folder: Path
    engine: str
    settings: dict[str, str]
    idle: Gateway
    clients: int
    """Clients that send each shape at the same time."""

    def start(self, name: str) -> Gateway:
        """Start a gateway."""
        folder = self.folder / name.replace(" ", "-")
        folder.mkdir(parents=True)
        gateway = Gateway(folder, [self.engine], self.settings)
        gateway.start()
        return gateway


@contextmanager
def stage(folder: Path, settings: dict[str, str], clients: int) -> Iterator[Stage]:
    """An engine and an idle gateway, until the end of the block."""
    port = free_port()
    engine = Program(folder / "engine.log", "ops.fuzz.flood", str(port))
    idle = Gateway(folder, [f"http://127.0.0.1:{port}/v1"], settings)
    with ExitStack() as stack:
        stack.callback(engine.kill)
        engine.launch()
        stack.callback(idle.kill)
        idle.start()
        yield Stage(folder, f"http://127.0.0.1:{port}/v1", settings, idle, clients)


def measure(shape: Shape, at: Stage) -> Measurement:
    """Send a shape to a gateway that is started for it, from all clients at once."""
    gateway = at.start(shape.name)
    try:
        livez = Asker(_LIVEZ, gateway.port)
        call = _post("/v1/chat/completions", _ASK)
        calls, idle = Asker(call, gateway.port), Asker(call, at.idle.port)
        with livez.asking(), calls.asking(), idle.asking():
            time.sleep(_SETTLE_SECONDS)
            livez.slowest = calls.slowest = idle.slowest = 0.0
            began = time.monotonic()
            with ThreadPoolExecutor(at.clients) as pool:
                sends = [pool.submit(send, shape, gateway.port, n) for n in range(at.clients)]
            status = max(sent.result() for sent in sends)
            seconds = time.monotonic() - began
            time.sleep(_SETTLE_SECONDS)
        return Measurement(
            status, seconds, livez.slowest, calls.slowest, idle.slowest, gateway.peak_bytes()
        )
    finally:
        gateway.kill()


def send(shape: Shape, port: int, number: int) -> int:
    """Send a shape in a session of its own; return the status of the answer."""
    named = {"x_kintsugi_session": f"s{number}", "idempotency_key": f"k{number}"}
    if not shape.path.endswith("traces"):
        named["x_kintsugi_user"] = "rosa"
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.settimeout(_PATIENCE_SECONDS)
        connection.sendall(_post(shape.path, shape.body, content_type="application/json", **named))
        return read_answer(connection)


def run(shapes: list[Shape], settings: dict[str, str], folder: Path, clients: int) -> Json:
    """What each shape did, and what is wrong."""
    with stage(folder, settings, clients) as at:

        @cache
        def text_peak(size: int, answer: str) -> int:
            return measure(text_shape(size, answer), at).peak_bytes

        results: Json = {}
        for shape in shapes:
            results[shape.name] = _judge(shape, measure(shape, at), text_peak)
            print(shape.name, results[shape.name], file=sys.stderr, flush=True)
    return {"shapes": results, "wrong": [w for r in results.values() for w in r.pop("wrong")]}


def _judge(shape: Shape, measured: Measurement, text_peak: Callable[[int, str], int]) -> Json:
    streams = shape.answer.startswith("stream")
    alike = "short" if shape.answer == "short" else "stream_text" if streams else "text"
    ratio = measured.peak_bytes / text_peak(len(shape.body), alike)
    slowest = max(measured.livez_seconds, measured.call_seconds - measured.idle_seconds)
    wrong = []
    if slowest > SECONDS:
        wrong.append(f"{shape.name}: others waited {slowest:.3f} seconds")
    if ratio > RATIO:
        wrong.append(f"{shape.name}: {ratio:.2f} times the memory of one text")
    return {
        "bytes": len(shape.body),
        "status": measured.status,
        "seconds": round(measured.seconds, 3),
        "livez_seconds": round(measured.livez_seconds, 3),
        "call_seconds": round(measured.call_seconds, 3),
        "idle_seconds": round(measured.idle_seconds, 3),
        "peak_mb": measured.peak_bytes >> 20,
        "over_text": round(ratio, 2),
        "wrong": wrong,
    }


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", nargs="*", help="names of shapes; else all of them")
    parser.add_argument("--at-once", type=int, default=1, help="clients that send each shape")
    parser.add_argument("--rules", action="store_true", help="with rules of redaction")
    parser.add_argument("--folder", type=Path, help="where to work, kept; else a temporary one")
    options = parser.parse_args()
    settings = {"KINTSUGI_REDACTION__RULES": _RULES} if options.rules else {}
    shapes = [s for s in make_shapes() if not options.shapes or s.name in options.shapes]
    with tempfile.TemporaryDirectory(prefix="kintsugi-work-") as temporary:
        result = run(shapes, settings, options.folder or Path(temporary), options.at_once)
    print(json.dumps(result))
    return 1 if result["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
