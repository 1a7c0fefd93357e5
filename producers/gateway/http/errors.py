"""Error responses in the protocol of the request's path: OpenAI's, Anthropic's, or OTLP's."""

import logging
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from producers.gateway.http.request_guard import TRACES
from producers.gateway.http.wire import Refused, encode_json
from producers.spans import otlp

_GONE: Final = 499

_OTLP_ANSWERS: Final[Mapping[str, otlp.Kind]] = {otlp.PROTOBUF: otlp.PROTOBUF}
"""Request's media type -> media type of the refusal; for all others it is JSON."""

_ANTHROPICS: Final = re.compile(r"/v1/messages(/count_tokens)?$")

_logger = logging.getLogger(__name__)


def handlers(rejected: Callable[[int], None]) -> Mapping[Any, Any]:
    """Return the handlers of an application's exceptions; `rejected` is called with each status."""

    def refuse(request: Request, error: Exception) -> Response:
        refused = _refusal(error)
        rejected(refused.status)
        return _format_refusal(refused, request)

    return {
        Refused: refuse,
        HTTPException: refuse,
        Exception: refuse,
        ClientDisconnect: lambda _request, _error: Response(status_code=_GONE),
    }


def unavailable(message: str, cause: Exception, retry_after: int) -> Refused:
    """Return a 503 refusal. `cause` is only logged, because it may name hosts and paths."""
    _logger.warning("%s: %s", message, cause, extra={"action": "unavailable"})
    return Refused(503, message, retry_after=retry_after)


def as_json(document: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a document as a response."""
    return Response(encode_json(document), status, headers, media_type="application/json")


def _refusal(error: Exception) -> Refused:
    if isinstance(error, Refused):
        return error
    if isinstance(error, HTTPException):
        return Refused(error.status_code, error.detail)
    _logger.error("a request failed", exc_info=error, extra={"action": "gateway_bug"})
    return Refused(500, f"the gateway failed: {type(error).__name__}; please report it")


def _format_refusal(refused: Refused, request: Request) -> Response:
    headers = {} if refused.retry_after is None else {"retry-after": str(refused.retry_after)}
    # Not request.url, which fails for an invalid Host header.
    path = request.scope["path"]
    if path.endswith(TRACES):
        kind = _OTLP_ANSWERS.get(request.headers.get("content-type", ""), otlp.JSON)
        body = otlp.encode_refusal(kind, str(refused))
        return Response(body, refused.status, headers, media_type=kind)
    anthropics = _ANTHROPICS.search(path) is not None
    return as_json(refused.body("messages" if anthropics else None), refused.status, headers)
