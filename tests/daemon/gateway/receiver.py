"""A receiver of OTLP that takes spans apart: it reads what any other would be sent."""

import gzip
import json
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass
class Receiver:
    """What it was sent, and how it answers."""

    url: str = ""
    bodies: list[bytes] = field(default_factory=list)
    """Of the requests that it took."""
    headers: list[dict[str, str]] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    """Said to the next requests, which are not taken; then 200."""
    most: int = 1 << 30
    """Bytes of a body."""
    too_large: int = 413
    """Answered to a larger one; with 400, in the words of a Collector."""
    rejects: int = 0
    """Spans of each request, by its word."""
    may_answer: threading.Event = field(default_factory=threading.Event)
    """Clear it, and what was taken is answered once it is set again."""

    def __post_init__(self) -> None:
        self.may_answer.set()

    @property
    def spans(self) -> dict[str, Span]:
        """By their ids; sent twice, a span is the same."""
        found: dict[str, Span] = {}
        for body in self.bodies:
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        earlier = found.setdefault(span.span_id.hex(), span)
                        assert earlier == span, "an id names two spans"
        return found

    def named(self, name: str) -> list[Span]:
        """Those of a name, as they began."""
        found = [span for span in self.spans.values() if span.name == name]
        return sorted(found, key=lambda span: span.start_time_unix_nano)

    def answer(self, body: bytes, headers: dict[str, str]) -> int:
        """The status of the answer to a request."""
        if self.statuses:
            return self.statuses.pop(0)
        if len(body) > self.most:
            return self.too_large
        packed = headers.get("content-encoding") == "gzip"
        self.bodies.append(gzip.decompress(body) if packed else body)
        self.headers.append(headers)
        return 200


def told(span: Span) -> dict[str, Any]:
    """The attributes of a span."""
    return {pair.key: _value(pair.value) for pair in span.attributes}


def _value(value: AnyValue) -> Any:
    if value.WhichOneof("value") == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, str(value.WhichOneof("value")))


def messages(span: Span, name: str) -> Any:
    """Messages that an attribute holds."""
    return json.loads(told(span)[name])


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver on a port of its own."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status = receiver.answer(body, headers)
            if not receiver.may_answer.wait(60) or self._left():
                return
            self.send_response(status)
            said = ExportTraceServiceResponse()
            said.partial_success.rejected_spans = receiver.rejects
            content = said.SerializeToString()
            if status == 400 and len(body) > receiver.most:
                content = b"http: request body too large"
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def _left(self) -> bool:
            """Whether who asked was killed meanwhile."""
            readable, _, _ = select.select([self.connection], [], [], 0)
            return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        receiver.url = f"http://127.0.0.1:{server.server_port}/v1/traces"
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
