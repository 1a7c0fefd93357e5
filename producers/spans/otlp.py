"""OTLP over HTTP for a receiver (pure). It needs the messages of opentelemetry-proto, from the
extra `otel`. Without that package OtlpUnavailable is raised."""

import base64
import json
import secrets
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from events.errors import KintsugiError
from events.json_text.size import find_excess
from producers.spans.protobuf_size import TooMuch, check_size

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as service
    from opentelemetry.proto.common.v1 import common_pb2 as common
    from opentelemetry.proto.trace.v1 import trace_pb2 as trace

Kind = Literal["application/x-protobuf", "application/json"]

PROTOBUF: Final[Kind] = "application/x-protobuf"
JSON: Final[Kind] = "application/json"

_IDS: Final = ("traceId", "spanId", "parentSpanId")
MAX_SPANS: Final = 20_000
"""Most spans of one request; a collector sends 8,192 at once, an SDK 512."""

_ID_BYTES: Final = (16, 8)
_GZIP: Final = 16 + zlib.MAX_WBITS
_ERROR: Final = 2
"""STATUS_CODE_ERROR."""

_LONG_TEXT: Final = 1 << 14
"""Longest text, in characters, that is passed to protobuf's JSON parser."""
_BYTES_FIELDS: Final = ("bytesValue", "bytes_value")

Attributes = Mapping[str, Any]


class OtlpUnavailable(KintsugiError):
    """The package that reads OTLP is not installed."""


class BadTraces(KintsugiError):
    """A body is no valid OTLP request."""


@dataclass(frozen=True, slots=True)
class ClientSpan:
    """A span that a client sent."""

    trace: str
    """Trace id of 32 hex digits; `span` has 16."""
    span: str
    attributes: Attributes
    events: tuple[tuple[str, Attributes], ...]
    """(name, attributes) of the span's events."""
    seconds: float
    """Duration in seconds; 0 if the span's times are missing or wrong."""
    began: int
    """Start in nanoseconds since 1970, by which spans are ordered."""
    error: str | None
    """The error's message, or None."""

    @property
    def has_valid_ids(self) -> bool:
        """Return whether trace and span id have the right length and are not zero."""
        sizes = tuple(len(name) // 2 for name in (self.trace, self.span))
        return sizes == _ID_BYTES and bool(int(self.trace, 16) and int(self.span, 16))


def spans(body: bytes, kind: Kind) -> list[ClientSpan]:
    """Return a request's spans. Raises BadTraces, TooMuch, OtlpUnavailable."""
    request = _service().ExportTraceServiceRequest()
    texts: dict[str, str] = {}
    if kind == JSON:
        texts = _read_json(body, request)
    else:
        from google.protobuf.message import DecodeError

        check_size(body, request.DESCRIPTOR)
        try:
            request.ParseFromString(body)
        except DecodeError as error:
            raise BadTraces(
                f"the body of {len(body):,} bytes is no ExportTraceServiceRequest ({error}); send "
                "OTLP as protobuf, or as JSON with content-type application/json"
            ) from error
    scopes = [scope for resource in request.resource_spans for scope in resource.scope_spans]
    if (count := sum(len(scope.spans) for scope in scopes)) > MAX_SPANS:
        raise TooMuch(
            f"the body has {count:,} spans, and at most {MAX_SPANS:,} are taken; send smaller "
            "batches"
        )
    reader = _SpanReader(texts)
    return [reader.read(span) for scope in scopes for span in scope.spans]


def inflate(body: bytes, most: int) -> bytes:
    """Return a gzip body's content. Raises TooMuch above `most` bytes, BadTraces if damaged."""
    inflater = zlib.decompressobj(_GZIP)
    try:
        data = inflater.decompress(body, most + 1)
    except zlib.error as error:
        raise BadTraces(f"the body is no gzip ({error}), and its header says so") from error
    if len(data) > most:
        raise TooMuch(f"the body is larger than {most:,} bytes when it is inflated; send less")
    if not inflater.eof:
        raise BadTraces("the body's gzip is cut off; send the whole of it")
    return data


def encode_answer(kind: Kind, rejected: int, message: str) -> bytes:
    """Return the answer to an accepted request. `rejected`: number of spans not recorded."""
    response = _service().ExportTraceServiceResponse()
    if rejected or message:
        response.partial_success.rejected_spans = rejected
        response.partial_success.error_message = message
    return _serialize(kind, response)


def encode_refusal(kind: Kind, message: str) -> bytes:
    """Return the answer to a refused request."""
    try:
        from google.rpc import status_pb2
    except ImportError:
        # Without the package, the refusal is plain JSON.
        return json.dumps({"message": message}).encode()
    return _serialize(kind, status_pb2.Status(message=message))


def _service() -> Any:
    try:
        from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
    except ImportError as error:
        raise OtlpUnavailable(
            "traces are read by opentelemetry-proto, which is not installed; install "
            "kintsugi[otel] where the gateway runs"
        ) from error
    return trace_service_pb2


def _serialize(kind: Kind, message: "Message") -> bytes:
    if kind == PROTOBUF:
        return bytes(message.SerializeToString())
    from google.protobuf.json_format import MessageToJson

    return str(MessageToJson(message, indent=None)).encode()


def _read_json(body: bytes, request: "service.ExportTraceServiceRequest") -> dict[str, str]:
    """Parse JSON into `request`, with placeholders for long texts; return placeholder -> text."""
    from google.protobuf.json_format import ParseDict, ParseError

    if (excess := find_excess(body)) is not None:
        raise TooMuch(f"the body holds {excess}; send smaller batches")
    try:
        document = json.loads(body)
        for item in _spans_of(document):
            _ids_as_bytes(item)
        texts = _take_long_texts(document)
        ParseDict(document, request, ignore_unknown_fields=True)
    except (ValueError, TypeError, AttributeError, RecursionError, ParseError) as error:
        raise BadTraces(
            f"the body is no ExportTraceServiceRequest in JSON: {str(error)[:200]}; send OTLP"
        ) from error
    return texts


def _take_long_texts(document: Any) -> dict[str, str]:
    """Replace the long texts of a document by placeholders; return placeholder -> text. Protobuf's
    parser blocks all threads for 30 ms per megabyte. Raises UnicodeEncodeError for lone
    surrogates."""
    texts: dict[str, str] = {}
    name, waiting = secrets.token_hex(), [document]
    while waiting:
        container = waiting.pop()
        fields = container.items() if isinstance(container, dict) else enumerate(container)
        for key, value in fields:
            if isinstance(value, dict | list):
                waiting.append(value)
            elif isinstance(value, str) and len(value) > _LONG_TEXT and key not in _BYTES_FIELDS:
                value.encode()
                container[key] = f"{name}-{len(texts)}"
                texts[container[key]] = value
    return texts


def _spans_of(document: Any) -> Iterator[dict[str, Any]]:
    """Yield the spans of a request and their links, which all have ids."""
    for resource in document.get("resourceSpans", ()):
        for scope in resource.get("scopeSpans", ()):
            for span in scope.get("spans", ()):
                yield span
                yield from span.get("links", ())


def _ids_as_bytes(item: dict[str, Any]) -> None:
    """Convert hex ids to base64, as protobuf's JSON parser expects."""
    for name in _IDS:
        if name in item:
            item[name] = base64.b64encode(bytes.fromhex(item[name])).decode()


class _SpanReader:
    """Reads spans of a request in which placeholders replace long texts."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts
        """Placeholder -> the long text that it replaces."""

    def read(self, span: "trace.Span") -> ClientSpan:
        """Return a span as a client sent it."""
        took = span.end_time_unix_nano - span.start_time_unix_nano
        failed = span.status.code == _ERROR
        why = self._restore(span.status.message) or "the span says ERROR"
        return ClientSpan(
            trace=span.trace_id.hex(),
            span=span.span_id.hex(),
            attributes=self._read_attributes(span.attributes),
            events=tuple(
                (self._restore(event.name), self._read_attributes(event.attributes))
                for event in span.events
            ),
            seconds=max(0, took) / 1e9 if span.start_time_unix_nano else 0.0,
            began=span.start_time_unix_nano,
            error=why if failed else None,
        )

    def _read_attributes(self, pairs: "Iterable[common.KeyValue]") -> dict[str, Any]:
        return {self._restore(pair.key): self._read_value(pair.value) for pair in pairs}

    def _read_value(self, value: "common.AnyValue") -> Any:
        match value.WhichOneof("value"):
            case "array_value":
                return [self._read_value(item) for item in value.array_value.values]
            case "kvlist_value":
                return self._read_attributes(value.kvlist_value.values)
            case "bytes_value":
                return base64.b64encode(value.bytes_value).decode()
            case "string_value":
                return self._restore(value.string_value)
            case None:
                return None
            case name:
                return getattr(value, name)

    def _restore(self, text: str) -> str:
        return self._texts.get(text, text)
