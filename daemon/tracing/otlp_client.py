"""Send spans to a receiver: OTLP over HTTP, as protobuf (spans -> POST). A request that is too
large is halved. Any other request that the receiver refuses for good is dropped and counted."""

import gzip
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import httpx2

from daemon.config.settings import ConfigurationError
from daemon.tracing.spans import Span
from events.errors import KintsugiError

_LATER: Final = frozenset((408, 429, 502, 503, 504))
_TOO_LARGE: Final = 413
_BAD: Final = 400
_TOO_LARGE_IN_GO: Final = b"request body too large"
"""Text of a Collector's 400 that means too large, from Go's library."""
_COMPRESSION_LEVEL: Final = 1
"""gzip level; spans repeat each other, so the quickest level saves most."""
_SECONDS: Final = 10.0
_LONGEST_WAIT: Final = 300.0
_SHOWN: Final = 300

log = logging.getLogger(__name__)


class Unreachable(KintsugiError):
    """The receiver takes nothing now: no connection, or 408, 429, 502, 503, 504."""

    def __init__(self, message: str, wait_seconds: float | None = None) -> None:
        super().__init__(message)
        self.wait_seconds = wait_seconds
        """Seconds to wait by the answer's Retry-After header, if it has one."""


@dataclass(frozen=True, slots=True)
class SendResult:
    """Number of spans taken, rejected and refused."""

    taken: int = 0
    rejected: int = 0
    """Spans that the receiver rejected in requests that it took."""
    refused: int = 0
    """Spans in requests that the receiver refused."""

    def __add__(self, other: "SendResult") -> "SendResult":
        return SendResult(
            self.taken + other.taken,
            self.rejected + other.rejected,
            self.refused + other.refused,
        )


class Sender:
    """An HTTP client of one receiver; a context manager."""

    def __init__(self, endpoint: str, headers: Mapping[str, str], compressed: bool = False) -> None:
        """Open the connection. Raise ConfigurationError if the package is missing."""
        try:
            from daemon.tracing import protobuf
        except ImportError as error:
            raise ConfigurationError(
                "setting tracing.endpoint needs opentelemetry-proto, which is not installed; "
                "install kintsugi[otel]"
            ) from error
        self._protobuf = protobuf
        self._endpoint = endpoint
        self._compressed = compressed
        ours = {"content-type": "application/x-protobuf"}
        if compressed:
            ours["content-encoding"] = "gzip"
        self._client = httpx2.Client(timeout=_SECONDS, headers={**headers, **ours})

    def __enter__(self) -> "Sender":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def send(self, spans: Sequence[Span]) -> SendResult:
        """Send spans; return their counts. Raise Unreachable, even after some were taken."""
        if not spans:
            return SendResult()
        answer = self._post(spans)
        if answer.status_code in _LATER:
            raise Unreachable(
                f"{self._endpoint} answers {answer.status_code}", _wait(answer.headers)
            )
        if _too_large(answer) and len(spans) > 1:
            half = len(spans) // 2
            return self.send(spans[:half]) + self.send(spans[half:])
        if not answer.is_success:
            log.warning(
                "%s refuses %s spans with %s: %s; correct tracing.endpoint or tracing.headers, and "
                "send them again with kintsugi trace --from-start",
                self._endpoint, len(spans), answer.status_code, answer.text[:_SHOWN],
            )  # fmt: skip
            return SendResult(refused=len(spans))
        return self._partial(answer, len(spans))

    def refusal(self) -> str | None:
        """Send no spans; return the receiver's refusal, None if it agrees. Raise Unreachable."""
        answer = self._post(())
        if answer.is_success:
            return None
        return f"{self._endpoint} answers {answer.status_code}: {answer.text[:_SHOWN]}"

    def _post(self, spans: Sequence[Span]) -> httpx2.Response:
        body = self._protobuf.body_of(spans)
        if self._compressed:
            body = gzip.compress(body, _COMPRESSION_LEVEL)
        try:
            return self._client.post(self._endpoint, content=body)
        except httpx2.HTTPError as error:
            why = str(error) or type(error).__name__
            raise Unreachable(f"{self._endpoint} cannot be reached: {why}") from error

    def _partial(self, answer: httpx2.Response, count: int) -> SendResult:
        kind = answer.headers.get("content-type", "")
        if not kind.startswith("application/x-protobuf"):
            return SendResult(taken=count)  # The answer is not OTLP's, but its status is a success.
        rejection = self._protobuf.parse_rejection(answer.content)
        if rejection is None:
            return SendResult(taken=count)
        rejected = min(count, max(0, rejection.count))
        if rejected:
            why = rejection.why[:_SHOWN]
            log.warning("%s rejects %s of %s spans: %s", self._endpoint, rejected, count, why)
        return SendResult(taken=count - rejected, rejected=rejected)


def _too_large(answer: httpx2.Response) -> bool:
    if answer.status_code == _BAD:
        return _TOO_LARGE_IN_GO in answer.content
    return answer.status_code == _TOO_LARGE


def _wait(headers: httpx2.Headers) -> float | None:
    value = headers.get("retry-after", "")
    return min(float(value), _LONGEST_WAIT) if value.isdigit() else None
