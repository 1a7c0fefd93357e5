"""Clients that misbehave: slow readers, hang-ups, half-closed connections, half a request.

    python -m ops.faults.gateway_clients --count 100

Everything over bare sockets. `count` clients of each kind, a hundred at a time:

    slow       begin to read a long stream and stop; then half of them read on, half go away
    hang_up    close the connection, or reset it, at a random moment of a stream or a whole answer
    half       say that they will send no more, and wait for the answer
    vanish     send a part of a request and go away

Passes when the gateway's memory stayed bounded while clients did not read, and clients that read on
got all of it. The engine must be told of every answer that no client waits for any more. Every call
that reached it must have ended once, with a beginning of what it said. Requests that were sent in
part must be no events, and nothing may be left in flight.
"""

import json
import random
import socket
import struct
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from events.rollouts import CallEnded
from ops.command_line import run_command
from ops.faults.gateway_audit import Book, read
from ops.faults.gateway_engine import answer_to
from ops.faults.gateway_scene import Scene, scene
from ops.waits import until

AT_ONCE: Final = 100
SLOW_AT_ONCE: Final = 20
LONG: Final = {"words": 500, "bytes": 32_000}
"""Script of an answer of 16 MB, more than all buffers between engine and client hold."""
BOUND_BYTES: Final = 8 << 20
"""Limit on memory per client that does not read; without a bound it would be twice 16 MB."""
PATIENCE_SECONDS: Final = 120.0


@dataclass
class ClientResults:
    """Counts and errors of the misbehaving clients."""

    asked: int = 0
    finished: int = 0
    growth_bytes: int = 0
    wrong: list[str] = field(default_factory=list)


def run(count: int, folder: Path, seed: int = 0) -> dict[str, Any]:
    """Run `count` clients of each kind."""
    chance = random.Random(seed)
    results = ClientResults()
    with scene(folder) as stage:
        for first in range(0, count, SLOW_AT_ONCE):
            _slow(stage, range(first, min(count, first + SLOW_AT_ONCE)), results)
        for kind in (_hang_up, _half, _vanish):
            _each(stage, kind, count, chance, results)
        until(
            lambda: stage.gateway.metric("kintsugi_gateway_calls_in_flight") == 0,
            "no call is in flight",
        )
        with stage.client() as client:
            message = {"role": "user", "content": "last"}
            seen = client.ask([message], {"mark": "last", "words": 3}, stream=True)
        if not seen.has_ack:
            results.wrong.append(f"a client that behaves is not served: {seen.error}")
        audit = stage.stop_and_audit()
    if not audit.sound:
        results.wrong.append(str(audit.first))
    figures = _compare_accounts(stage, read(stage.gateway.home), results)
    if not (figures["completed"] and figures["aborted"] and figures["cancelled"]):
        results.wrong.append("nobody got an answer, or nobody hung up: nothing was tried")
    if results.growth_bytes > BOUND_BYTES:
        results.wrong.append(f"{results.growth_bytes} bytes for each client that does not read")
    return {
        "fault": "clients", "clients": 4 * count, "seeds": [seed], "asked": results.asked,
        "finished": results.finished, "growth_bytes": results.growth_bytes, **figures,
        "wrong": results.wrong[:20], "passed": not results.wrong,
    }  # fmt: skip


def _each(
    stage: Scene,
    kind: Callable[[Scene, str, random.Random, ClientResults], None],
    count: int,
    chance: random.Random,
    results: ClientResults,
) -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        name = kind.__name__.strip("_")
        sources = [random.Random(chance.random()) for _ in range(count)]
        jobs = [
            pool.submit(kind, stage, f"{name}.{number}", own, results)
            for number, own in enumerate(sources)
        ]
    for job in jobs:
        job.result()


def _slow(stage: Scene, numbers: range, results: ClientResults) -> None:
    before = stage.gateway.resident_bytes()
    readers = [_connect(stage, small=True) for _ in numbers]
    for number, reader in zip(numbers, readers, strict=True):
        reader.sendall(_request(f"slow.{number}", stream=True, **LONG))
        results.asked += 1
        reader.recv(1)
    _wait_for_memory(stage)
    growth = (stage.gateway.resident_bytes() - before) // len(readers)
    results.growth_bytes = max(results.growth_bytes, growth)
    for number, reader in zip(numbers, readers, strict=True):
        if number % 2 == 0:
            _read_on(f"slow.{number}", reader, results)
        reader.close()


def _wait_for_memory(stage: Scene) -> None:
    last, since = 0, time.monotonic()
    while time.monotonic() - since < 2:
        now = stage.gateway.resident_bytes()
        if now > last + (256 << 10):
            last, since = now, time.monotonic()
        time.sleep(0.1)


def _read_on(mark: str, reader: socket.socket, results: ClientResults) -> None:
    read = bytearray()
    while not read.endswith(b"0\r\n\r\n"):
        if not (piece := reader.recv(1 << 20)):
            results.wrong.append(f"{mark} was cut off")
            return
        read += piece
    results.finished += 1
    if b"data: [DONE]\n\n" not in read[-100:] or read.count(b'"content":') <= LONG["words"]:
        results.wrong.append(f"{mark} did not get all of its answer")


def _hang_up(stage: Scene, mark: str, chance: random.Random, results: ClientResults) -> None:
    with _connect(stage) as connection:
        stream = chance.random() < 0.7
        connection.sendall(_request(mark, stream=stream, words=40, pace_ms=20))
        results.asked += 1
        time.sleep(chance.uniform(0, 0.9))
        if chance.random() < 0.5:
            # Reset the connection on close.
            linger = struct.pack("ii", 1, 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)


def _half(stage: Scene, mark: str, chance: random.Random, results: ClientResults) -> None:
    with _connect(stage) as connection:
        connection.sendall(_request(mark, stream=chance.random() < 0.5, words=5, pace_ms=5))
        connection.shutdown(socket.SHUT_WR)
        results.asked += 1
        while connection.recv(1 << 16):
            pass


def _vanish(stage: Scene, mark: str, chance: random.Random, results: ClientResults) -> None:
    request = _request(mark, stream=True, words=5)
    with _connect(stage) as connection:
        connection.sendall(request[: chance.randrange(len(request) - 1)])
        time.sleep(chance.uniform(0, 0.2))


def _request(mark: str, *, stream: bool, **script: Any) -> bytes:
    message = {"role": "user", "content": mark}
    fields = {"model": "scripted", "messages": [message], "stream": stream}
    body = json.dumps({**fields, "script": {"mark": mark, **script}}).encode()
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n"
        b"content-type: application/json\r\ncontent-length: %d\r\n\r\n"
    )
    return head % len(body) + body


def _connect(stage: Scene, small: bool = False) -> socket.socket:
    connection = socket.socket()
    if small:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(PATIENCE_SECONDS)
    connection.connect(("127.0.0.1", stage.gateway.port))
    return connection


def _compare_accounts(stage: Scene, book: Book, results: ClientResults) -> dict[str, int]:
    figures = dict.fromkeys(("completed", "aborted", "cancelled"), 0)
    heard = stage.engine.heard
    calls = {book.question(call): call for call in book.started}
    for mark in heard.asked.keys() - calls.keys():
        results.wrong.append(f"{mark} reached the engine and has no start")
    for mark in heard.asked - heard.finished - heard.cancelled:
        results.wrong.append(f"{mark} is still being answered by the engine, and nobody waits")
    for mark, call in calls.items():
        ended = book.ended.get(call, [])
        if len(ended) != 1:
            results.wrong.append(f"{mark} has {len(ended)} ends")
            continue
        figures[ended[0].outcome] = figures.get(ended[0].outcome, 0) + 1
        figures["cancelled"] += heard.cancelled[mark]
        _check(mark, ended[0], heard.cancelled[mark], results)
    return figures


def _check(mark: str, ended: CallEnded, cancelled: int, results: ClientResults) -> None:
    if mark.startswith("vanish"):
        results.wrong.append(f"{mark} was sent in part and is a call")
    if ended.outcome not in ("completed", "aborted"):
        results.wrong.append(f"{mark} is {ended.outcome}: {ended.error}")
    if cancelled and ended.outcome == "completed":
        results.wrong.append(f"{mark} is completed and its engine was cancelled")
    if mark.startswith("slow") or ended.content is None:
        return
    answer = answer_to([{"role": "user", "content": mark}], 0, 40 if "hang_up" in mark else 5)
    if mark != "last" and not answer.startswith(ended.content.messages[0].text):
        results.wrong.append(f"{mark}: {ended.content.messages[0].text!r} was not said")


if __name__ == "__main__":
    run_command(__doc__, run, count=100)
