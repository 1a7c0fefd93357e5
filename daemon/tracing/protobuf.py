"""Encode OTLP messages as protobuf. It needs opentelemetry-proto, so only senders import it."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib.metadata import version
from typing import Any, Final

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as service
from opentelemetry.proto.common.v1.common_pb2 import (
    AnyValue,
    ArrayValue,
    InstrumentationScope,
    KeyValue,
)
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1 import trace_pb2 as trace

from daemon.tracing.spans import Attributes, Span

_SERVICE: Final = "kintsugi"
_CLIENT: Final = trace.Span.SpanKind.SPAN_KIND_CLIENT
_INTERNAL: Final = trace.Span.SpanKind.SPAN_KIND_INTERNAL
_ERROR: Final = trace.Status.StatusCode.STATUS_CODE_ERROR
_INTEGERS: Final = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True)
class Rejection:
    """Spans that a receiver rejected in a request that it took."""

    count: int
    why: str


def body_of(spans: Iterable[Span]) -> bytes:
    """Return an ExportTraceServiceRequest with these spans."""
    about = {"service.name": _SERVICE, "service.version": _version()}
    request = service.ExportTraceServiceRequest(
        resource_spans=[
            trace.ResourceSpans(
                resource=Resource(attributes=_pairs(about)),
                scope_spans=[
                    trace.ScopeSpans(
                        scope=InstrumentationScope(name=_SERVICE, version=_version()),
                        spans=[_message(span) for span in spans],
                    )
                ],
            )
        ]
    )
    return bytes(request.SerializeToString())


def parse_rejection(answer: bytes) -> Rejection | None:
    """Return the rejection in an answer; None if the answer is not OTLP's."""
    try:
        partial = service.ExportTraceServiceResponse.FromString(answer).partial_success
    except DecodeError:
        return None
    return Rejection(partial.rejected_spans, partial.error_message)


def nanoseconds(text: str) -> int:
    """Return nanoseconds since 1970. It is exact: a float would lose the last digits."""
    moment = datetime.fromisoformat(text)
    whole = moment.replace(microsecond=0)
    return (int(whole.timestamp()) * 1_000_000 + moment.microsecond) * 1000


def _message(span: Span) -> trace.Span:
    began = nanoseconds(span.began)
    message = trace.Span(
        name=span.name,
        trace_id=bytes.fromhex(span.context.trace),
        span_id=bytes.fromhex(span.context.span),
        parent_span_id=bytes.fromhex(span.parent or ""),
        kind=_CLIENT if span.kind == "client" else _INTERNAL,
        start_time_unix_nano=began,
        # Clocks may be set back.
        end_time_unix_nano=max(began, nanoseconds(span.ended)),
        attributes=_pairs(span.attributes),
    )
    # Fields that most spans leave empty.
    if span.error:
        message.status.CopyFrom(trace.Status(code=_ERROR, message=span.error))
    for event in span.happened:
        message.events.add(
            name=event.name,
            time_unix_nano=nanoseconds(event.time),
            attributes=_pairs(event.attributes),
        )
    for link in span.links:
        message.links.add(trace_id=bytes.fromhex(link.trace), span_id=bytes.fromhex(link.span))
    return message


def _pairs(attributes: Attributes) -> list[KeyValue]:
    return [
        KeyValue(key=name, value=_value(value))
        for name, value in attributes.items()
        if value is not None
    ]


def _value(value: Any) -> AnyValue:
    # By exact type, the most frequent first; truth values are numbers to isinstance.
    kind = type(value)
    if kind is str:
        return AnyValue(string_value=value)
    if kind is bool:
        return AnyValue(bool_value=value)
    if kind is int and value in _INTEGERS:
        return AnyValue(int_value=value)
    if kind is float and math.isfinite(value):
        return AnyValue(double_value=value)
    if kind is list:
        return AnyValue(array_value=ArrayValue(values=[_value(item) for item in value]))
    return AnyValue(string_value=str(value))


@cache
def _version() -> str:
    return version("kintsugi")
