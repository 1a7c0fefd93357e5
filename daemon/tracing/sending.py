"""Spans on their way to a receiver: OTLP over HTTP, as protobuf (spans -> POST).

    sender.send(spans)    Sent: how many were taken, and why the others were not
    sender.refusal()      why it would take none; None where it would

Raises Unreachable for what may be otherwise later: no connection, or 408, 429, 502, 503, 504 with
their Retry-After. What a receiver refuses for good is halved when it is too large (413), and else
dropped and counted: sent again it would be refused again.
"""

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

import httpx2

from daemon.settings import ConfigurationError
from daemon.tracing.spans import Attributes, Span
from events.errors import KintsugiError

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
    from opentelemetry.proto.trace.v1 import trace_pb2 as trace

_SERVICE: Final = "kintsugi"
_LATER: Final = frozenset((408, 429, 502, 503, 504))
_TOO_LARGE: Final = 413
_SECONDS: Final = 10.0
_LONGEST_WAIT: Final = 300.0
_SHOWN: Final = 300

log = logging.getLogger(__name__)


class Unreachable(KintsugiError):
    """The receiver does not take anything at the moment."""

    def __init__(self, message: str, wait_seconds: float | None = None) -> None:
        super().__init__(message)
        self.wait_seconds = wait_seconds
        """That it asked for."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of spans."""

    taken: int = 0
    rejected: int = 0
    """Of requests that were taken."""
    refused: int = 0
    """In requests that were not."""

    def __add__(self, other: "Sent") -> "Sent":
        return Sent(
            self.taken + other.taken,
            self.rejected + other.rejected,
            self.refused + other.refused,
        )


class Sender:
    """A receiver, and a connection to it; a context manager."""

    def __init__(self, endpoint: str, headers: Mapping[str, str]) -> None:
        """Raises ConfigurationError where the package is missing."""
        try:
            import opentelemetry.proto.trace.v1.trace_pb2  # noqa: F401
        except ImportError as error:
            raise ConfigurationError(
                "setting tracing.endpoint needs opentelemetry-proto, which is not installed; "
                "install kintsugi[otel]"
            ) from error
        self._endpoint = endpoint
        self._client = httpx2.Client(
            timeout=_SECONDS, headers={**headers, "content-type": "application/x-protobuf"}
        )

    def __enter__(self) -> "Sender":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def send(self, spans: Sequence[Span]) -> Sent:
        """Raises Unreachable; then some of them may have been taken."""
        if not spans:
            return Sent()
        answer = self._post(spans)
        if answer.status_code in _LATER:
            raise Unreachable(
                f"{self._endpoint} answers {answer.status_code}", _wait(answer.headers)
            )
        if answer.status_code == _TOO_LARGE and len(spans) > 1:
            half = len(spans) // 2
            return self.send(spans[:half]) + self.send(spans[half:])
        if not answer.is_success:
            log.warning(
                "%s refuses %s spans with %s: %s; correct tracing.endpoint or tracing.headers, and "
                "send them again with kintsugi trace --from-start",
                self._endpoint, len(spans), answer.status_code, answer.text[:_SHOWN],
            )  # fmt: skip
            return Sent(refused=len(spans))
        return self._partial(answer, len(spans))

    def refusal(self) -> str | None:
        """What a request without spans is answered, where that is no yes. Raises Unreachable where
        nobody answers."""
        answer = self._post(())
        if answer.is_success:
            return None
        return f"{self._endpoint} answers {answer.status_code}: {answer.text[:_SHOWN]}"

    def _post(self, spans: Sequence[Span]) -> httpx2.Response:
        try:
            return self._client.post(self._endpoint, content=body_of(spans))
        except httpx2.HTTPError as error:
            why = str(error) or type(error).__name__
            raise Unreachable(f"{self._endpoint} cannot be reached: {why}") from error

    def _partial(self, answer: httpx2.Response, count: int) -> Sent:
        from google.protobuf.message import DecodeError
        from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as service

        kind = answer.headers.get("content-type", "")
        if not kind.startswith("application/x-protobuf"):
            return Sent(taken=count)  # It says nothing that is understood; but it has taken them.
        try:
            said = service.ExportTraceServiceResponse.FromString(answer.content)
        except DecodeError:
            return Sent(taken=count)
        rejected = min(count, max(0, said.partial_success.rejected_spans))
        if rejected:
            why = said.partial_success.error_message[:_SHOWN]
            log.warning("%s rejects %s of %s spans: %s", self._endpoint, rejected, count, why)
        return Sent(taken=count - rejected, rejected=rejected)


def body_of(spans: Iterable[Span]) -> bytes:
    """An ExportTraceServiceRequest with these spans."""
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as service
    from opentelemetry.proto.common.v1 import common_pb2 as common
    from opentelemetry.proto.resource.v1 import resource_pb2 as resource
    from opentelemetry.proto.trace.v1 import trace_pb2 as trace

    about = {"service.name": _SERVICE, "service.version": _version()}
    request = service.ExportTraceServiceRequest(
        resource_spans=[
            trace.ResourceSpans(
                resource=resource.Resource(attributes=_pairs(about)),
                scope_spans=[
                    trace.ScopeSpans(
                        scope=common.InstrumentationScope(name=_SERVICE, version=_version()),
                        spans=[_message(one) for one in spans],
                    )
                ],
            )
        ]
    )
    return bytes(request.SerializeToString())


def _message(span: Span) -> "trace.Span":
    from opentelemetry.proto.trace.v1 import trace_pb2 as trace

    kinds = trace.Span.SpanKind
    began = nanoseconds(span.began)
    return trace.Span(
        name=span.name,
        trace_id=bytes.fromhex(span.context.trace),
        span_id=bytes.fromhex(span.context.span),
        parent_span_id=bytes.fromhex(span.parent or ""),
        kind=kinds.SPAN_KIND_CLIENT if span.kind == "client" else kinds.SPAN_KIND_INTERNAL,
        start_time_unix_nano=began,
        # Clocks are set back.
        end_time_unix_nano=max(began, nanoseconds(span.ended)),
        attributes=_pairs(span.attributes),
        events=[
            trace.Span.Event(
                name=one.name,
                time_unix_nano=nanoseconds(one.time),
                attributes=_pairs(one.attributes),
            )
            for one in span.happened
        ],
        links=[
            trace.Span.Link(trace_id=bytes.fromhex(one.trace), span_id=bytes.fromhex(one.span))
            for one in span.links
        ],
        status=trace.Status(
            code=trace.Status.StatusCode.STATUS_CODE_ERROR
            if span.error
            else trace.Status.StatusCode.STATUS_CODE_UNSET,
            message=span.error or "",
        ),
    )


def nanoseconds(text: str) -> int:
    """Since 1970. Exact: a float would lose the last digits."""
    moment = datetime.fromisoformat(text)
    whole = moment.replace(microsecond=0)
    return (int(whole.timestamp()) * 1_000_000 + moment.microsecond) * 1000


def _pairs(attributes: Attributes) -> "list[KeyValue]":
    from opentelemetry.proto.common.v1 import common_pb2 as common

    return [
        common.KeyValue(key=name, value=_value(value))
        for name, value in attributes.items()
        if value is not None
    ]


def _value(value: Any) -> "AnyValue":
    from opentelemetry.proto.common.v1 import common_pb2 as common

    match value:
        case bool():
            return common.AnyValue(bool_value=value)
        case int() if -(2**63) <= value < 2**63:
            return common.AnyValue(int_value=value)
        case float() if math.isfinite(value):
            return common.AnyValue(double_value=value)
        case list():
            values = [_value(one) for one in value]
            return common.AnyValue(array_value=common.ArrayValue(values=values))
        case _:
            return common.AnyValue(string_value=str(value))


def _wait(headers: httpx2.Headers) -> float | None:
    """Retry-After, where it is a number of seconds."""
    given = headers.get("retry-after", "")
    return min(float(given), _LONGEST_WAIT) if given.isdigit() else None


@cache
def _version() -> str:
    return version("kintsugi")
