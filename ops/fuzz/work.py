"""Ask a gateway for as much work as one call may cause, and check that it answers others meanwhile.

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

import json
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import cache
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final

from ops.command_line import add_folder, build_parser, open_folder
from ops.faults.gateway_scene import Gateway
from ops.fuzz.shapes import Shape, make_shapes, text_shape
from ops.processes import Program, find_ports
from ops.waits import repeat

SECONDS: Final = 0.25
RATIO: Final = 1.5

_GAP_SECONDS: Final = 0.005
_SETTLE_SECONDS: Final = 0.5
_PATIENCE_SECONDS: Final = 300.0
_RULES: Final = '["email", "card", "iban", "phone", "secret"]'
_LIVEZ: Final = ("GET", "/livez", None)
_ASK: Final = (
    "POST",
    "/v1/chat/completions",
    b'{"user":"short","messages":[{"role":"user","content":"Hello"}]}',
)


Json = dict[str, Any]


@dataclass(slots=True)
class Asker:
    """Repeats a request and keeps the longest time of an answer."""

    request: tuple[str, str, bytes | None]
    port: int
    slowest: float = 0.0

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Ask until the block ends."""
        connection = HTTPConnection("127.0.0.1", self.port)
        with closing(connection), repeat(lambda: self._ask(connection), _GAP_SECONDS):
            yield

    def _ask(self, connection: HTTPConnection) -> None:
        began = time.monotonic()
        connection.request(*self.request)
        connection.getresponse().read()
        self.slowest = max(self.slowest, time.monotonic() - began)


@dataclass(frozen=True, slots=True)
class Measurement:
    """Longest times and most memory of a gateway during one call."""

    status: int
    seconds: float
    livez_seconds: float
    call_seconds: float
    idle_seconds: float
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class Stage:
    """The settings for gateways under test, and an idle gateway to compare with."""

    folder: Path
    engine: str
    settings: dict[str, str]
    idle: Gateway
    clients: int

    def start(self, name: str) -> Gateway:
        """Start a gateway."""
        folder = self.folder / name.replace(" ", "-")
        folder.mkdir(parents=True)
        gateway = Gateway(folder, [self.engine], self.settings)
        gateway.start()
        return gateway


@contextmanager
def stage(folder: Path, settings: dict[str, str], clients: int) -> Iterator[Stage]:
    """Run an engine and an idle gateway until the block ends."""
    (port,) = find_ports(1)
    engine = Program(folder / "engine.log", "ops.fuzz.flood", str(port))
    idle = Gateway(folder, [f"http://127.0.0.1:{port}/v1"], settings)
    with ExitStack() as stack:
        stack.callback(engine.kill)
        engine.launch()
        stack.callback(idle.kill)
        idle.start()
        yield Stage(folder, f"http://127.0.0.1:{port}/v1", settings, idle, clients)


def measure(shape: Shape, at: Stage) -> Measurement:
    """Send a shape to a new gateway from all clients at once, and measure the gateway."""
    gateway = at.start(shape.name)
    try:
        livez = Asker(_LIVEZ, gateway.port)
        calls, idle = Asker(_ASK, gateway.port), Asker(_ASK, at.idle.port)
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
    """Send a shape in a new session; return the status of the answer."""
    headers = {
        "x-kintsugi-session": f"s{number}",
        "idempotency-key": f"k{number}",
        "content-type": "application/json",
    }
    if not shape.path.endswith("traces"):
        headers["x-kintsugi-user"] = "rosa"
    connection = HTTPConnection("127.0.0.1", port, timeout=_PATIENCE_SECONDS)
    with closing(connection):
        connection.request("POST", shape.path, shape.body, headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status


def run(shapes: list[Shape], settings: dict[str, str], folder: Path, clients: int) -> Json:
    """Return the effects of each shape, and the errors."""
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
    parser = build_parser(__doc__)
    parser.add_argument("--shapes", nargs="*", help="names of shapes; else all of them")
    parser.add_argument("--at-once", type=int, default=1, help="clients that send each shape")
    parser.add_argument("--rules", action="store_true", help="with rules of redaction")
    add_folder(parser)
    options = parser.parse_args()
    settings = {"KINTSUGI_REDACTION__RULES": _RULES} if options.rules else {}
    shapes = [s for s in make_shapes() if not options.shapes or s.name in options.shapes]
    with open_folder(options.folder) as folder:
        result = run(shapes, settings, folder, options.at_once)
    print(json.dumps(result))
    return 1 if result["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
