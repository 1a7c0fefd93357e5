"""An engine that keeps every byte it is sent: what reached it is what was forwarded."""

import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

_MODELS: Final = {"object": "list", "data": [{"id": "one", "object": "model", "owned_by": "x"}]}
_CHAT: Final = {
    "id": "1",
    "object": "chat.completion",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}
    ],
}
_CHUNK: Final = {
    "id": "1",
    "object": "chat.completion.chunk",
    "choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": "stop"}],
}


@dataclass
class RecordingUpstream:
    """What it was sent, and how it answers."""

    port: int = 0
    received: bytearray = field(default_factory=bytearray)
    lines: list[str] = field(default_factory=list)
    """The request lines, without the version."""
    redirect: str | None = None
    """Where calls are sent on to, by a 307."""
    until: threading.Event | None = None
    """An answer is not whole before this is set: a stream goes on till then."""
    padding: int = 0
    """Characters of a chunk."""

    @property
    def url(self) -> str:
        """As a setting names it."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def asked(self) -> set[str]:
        """The request lines beside those that ask what it serves."""
        return {line for line in self.lines if line != "GET /v1/models"}


@contextmanager
def recording_upstream(port: int = 0) -> Iterator[RecordingUpstream]:
    """An engine on a port, by default one of its own, until the end of the block."""
    found = RecordingUpstream()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while _answered(self, found):
                pass

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True

    with Server(("127.0.0.1", port), Handler) as server:
        found.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield found
        finally:
            server.shutdown()
            thread.join()


def _answered(connection: socketserver.StreamRequestHandler, found: RecordingUpstream) -> bool:
    """Read one request and answer it; False when there was none."""
    try:
        head = _head(connection)
    except OSError:
        return False
    found.received += head
    if not head.endswith(b"\r\n\r\n"):
        return False
    line, *fields = head.decode("latin-1").split("\r\n")
    found.lines.append(line.rpartition(" ")[0])
    named = {name.lower(): value.strip() for name, _, value in (f.partition(":") for f in fields)}
    body = connection.rfile.read(int(named.get("content-length", "0")))
    found.received += body
    try:
        for piece in _answer(line, body, found):
            connection.wfile.write(piece)
    except OSError:
        return False
    return True


def _head(connection: socketserver.StreamRequestHandler) -> bytes:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        line = connection.rfile.readline()
        if not line:
            break
        head += line
    return head


def _answer(line: str, body: bytes, found: RecordingUpstream) -> Iterator[bytes]:
    if line.startswith("GET /v1/models "):
        yield _whole(_MODELS)
    elif found.redirect is not None:
        head = f"HTTP/1.1 307 No\r\nlocation: {found.redirect}\r\ncontent-length: 0\r\n\r\n"
        yield head.encode()
    elif isinstance(asked := _parsed(body), dict) and asked.get("stream") is True:
        yield b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
        yield b"transfer-encoding: chunked\r\n\r\n"
        for event in _events(found):
            yield b"%x\r\n%s\r\n" % (len(event), event)
        yield b"0\r\n\r\n"
    else:
        if found.until is not None:
            found.until.wait()
        yield _whole(_CHAT)


def _events(found: RecordingUpstream) -> Iterator[bytes]:
    chunk = json.dumps(_CHUNK | {"padding": "x" * found.padding})
    yield f"data: {chunk}\n\n".encode()
    while found.until is not None and not found.until.wait(0.005):
        yield f"data: {chunk}\n\n".encode()
    yield b"data: [DONE]\n\n"


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return None


def _whole(document: Any) -> bytes:
    body = json.dumps(document).encode()
    head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
