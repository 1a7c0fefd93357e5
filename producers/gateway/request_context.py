"""Parses a model request once, into a RequestContext. Attribution, routing, recording, shadows and
retries use the RequestContext and never the HTTP request. Names by the client are redacted before
other code sees them. The order of checks, each of which may raise Refused, is: key, path, caller,
session name, body, idempotency key."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, get_args
from urllib.parse import unquote

from starlette.requests import Request

from envs.task import is_content_id
from events.envelope import derive_id
from events.rollouts import Purpose
from producers.gateway.capture.digests import Conversation
from producers.gateway.capture.idempotency import IdempotentRequest
from producers.gateway.capture.sessions import Scope as SessionScope
from producers.gateway.capture.sessions import SessionName
from producers.gateway.http.control_strings import ControlStrings, ControlText
from producers.gateway.http.wire import (
    Endpoint,
    ModelRequest,
    Refused,
    bad_request,
    identifier,
    parse_request,
)
from producers.gateway.large_work import measure_work, run_in_thread_if_large
from producers.gateway.privacy.keys import Client, ClientKeys
from producers.gateway.privacy.keys import Scope as KeyScope
from producers.gateway.privacy.redaction import RedactedRequest, Redaction

_PATH_NAMES: Final = ("session", "task", "user")


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request: client key, person and purpose."""

    client: str | None
    person: str | None = None
    task: str | None = None
    purpose: Purpose = "live"
    traceparent: str | None = None

    @property
    def scope(self) -> SessionScope:
        """Return the scope in which the session of an unnamed call is searched."""
        return self.client, self.person


@dataclass(frozen=True, slots=True)
class RequestContext:
    """A parsed and redacted model request."""

    request: ModelRequest
    redacted: RedactedRequest
    conversation: Conversation
    caller: Caller
    session: SessionName | None = None
    control_text: ControlText | None = None
    retry: IdempotentRequest | None = None


class RequestReader:
    """Reads the requests of one gateway."""

    def __init__(
        self,
        keyring: ClientKeys,
        redaction: Redaction,
        max_body_bytes: int,
        control_strings: ControlStrings,
    ) -> None:
        self.stopping = False
        self._keyring = keyring
        self._redaction = redaction
        self._max_body_bytes = max_body_bytes
        self._control_strings = control_strings

    def authenticate(self, request: Request, scope: KeyScope) -> Client:
        """Return the client of the request's key. Raises Refused if the key lacks the scope, or for
        calls while the gateway stops."""
        if self.stopping and scope == "call":
            raise Refused(
                503, "the gateway is stopping; ask it again when it is back", retry_after=5
            )
        client = self._keyring.client(_read_authorization(request))
        if client is None:
            raise Refused(
                401,
                "no key, or one that this gateway does not know; send Authorization: Bearer KEY",
                code="invalid_api_key",
            )
        if scope not in client.scopes:
            raise Refused(
                403, f"key {client.name!r} lacks the scope {scope!r}; use one that has it"
            )
        return client

    async def read_context(self, request: Request, endpoint: Endpoint) -> RequestContext:
        """Parse a call's request. Raises Refused."""
        redaction = self._redaction
        client = self.authenticate(request, "call")
        path_names = parse_path_names(request)
        caller = read_caller(request, client, path_names, redaction)
        session = _read_session_name(request, client, path_names, redaction)
        body = await read_body(request, self._max_body_bytes)
        size = measure_work(body)
        model_request = await run_in_thread_if_large(size, parse_request, endpoint, body)
        redacted = await run_in_thread_if_large(
            redaction.weigh(size), redaction.redact_request, model_request
        )
        return RequestContext(
            model_request,
            redacted,
            retry=await run_in_thread_if_large(
                size, _read_retry_key, request, caller, redacted, redaction
            ),
            conversation=await run_in_thread_if_large(size, _digest, model_request),
            control_text=await run_in_thread_if_large(
                size, self._control_strings.find, body, model_request
            ),
            caller=caller,
            session=session,
        )


def _digest(request: ModelRequest) -> Conversation:
    return Conversation.of(request.raw_messages, request.tools)


def parse_path_names(request: Request) -> Mapping[str, str]:
    """Return the names in a path: `/r/session/s1/user/u1/v1/...`. Raises Refused."""
    path = request.path_params.get("given")
    if path is None:
        return {}
    parts = [unquote(part) for part in path.split("/")]
    names = dict(zip(parts[::2], parts[1::2], strict=False))
    if len(parts) % 2 or len(names) * 2 != len(parts) or not names.keys() <= set(_PATH_NAMES):
        raise Refused(
            404,
            f"the path /r/{path[:80]} is not /r/NAME/VALUE/v1/... with the names session, task "
            "and user",
        )
    return names


def read_caller(
    request: Request, client: Client, path_names: Mapping[str, str], redaction: Redaction
) -> Caller:
    """Return the sender of a request and its purpose. Raises Refused."""
    person = read_header(request, "x-kintsugi-user") or identifier(
        path_names.get("user"), "the user"
    )
    task = read_header(request, "x-kintsugi-task") or identifier(path_names.get("task"), "the task")
    if task is not None and "trusted" not in client.scopes:
        raise Refused(
            403, "a task was named, and only a key with the scope 'trusted' may; leave it out"
        )
    return Caller(
        client=client.name,
        person=redaction.redact_name(person),
        task=_redact_task(task, redaction),
        purpose=_read_purpose(request),
        traceparent=read_traceparent(request, redaction),
    )


def _redact_task(task: str | None, redaction: Redaction) -> str | None:
    """Return a task's name, redacted. An id by content is kept: a hash reveals nothing of a person,
    and two of a thousand look like payment cards."""
    return task if task is None or is_content_id(task) else redaction.redact_name(task)


def read_header(request: Request, name: str) -> str | None:
    """Return the name in a header; None without the header. Raises Refused for a bad name."""
    return identifier(request.headers.get(name), name)


def read_traceparent(request: Request, redaction: Redaction) -> str | None:
    """Return the header `traceparent`; None if it is missing, malformed or matched by a rule."""
    value = request.headers.get("traceparent", "")
    proper = len(value) == 55 and value.isascii() and value.isprintable()
    return value if proper and redaction.redact_text(value) == value else None


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Return the whole body. Raises Refused if it is larger than `max_bytes`."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise Refused(413, f"the body is larger than {max_bytes:,} bytes; send less")
    return bytes(body)


def _read_session_name(
    request: Request, client: Client, path_names: Mapping[str, str], redaction: Redaction
) -> SessionName | None:
    """Return the session that the request names by a header, its key or the path."""
    if session := redaction.redact_name(read_header(request, "x-kintsugi-session")):
        return SessionName(session, "header")
    if session := redaction.redact_name(identifier(client.session, "the session in the key")):
        return SessionName(session, "key")
    in_path = identifier(path_names.get("session"), "the session in the path")
    if session := redaction.redact_name(in_path):
        return SessionName(session, "path")
    return None


def _read_retry_key(
    request: Request, caller: Caller, redacted: RedactedRequest, redaction: Redaction
) -> IdempotentRequest | None:
    key = redaction.redact_name(read_header(request, "idempotency-key"))
    if key is None:
        return None
    return IdempotentRequest.of(
        derive_id("call", caller.client or "", caller.person or "", key), redacted
    )


def _read_purpose(request: Request) -> Purpose:
    name = "x-kintsugi-purpose"
    value = request.headers.get(name, "live")
    for purpose in get_args(Purpose):
        if value == purpose:
            known: Purpose = purpose
            return known
    raise bad_request(f"{name} is {value[:40]!r}; use one of {', '.join(get_args(Purpose))}")


def _read_authorization(request: Request) -> str | None:
    """Return the Authorization header, or Anthropic's `x-api-key` in that form."""
    key = request.headers.get("x-api-key")
    authorization = request.headers.get("authorization")
    return authorization if authorization is not None or key is None else f"Bearer {key}"
