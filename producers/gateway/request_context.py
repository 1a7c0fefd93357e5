"""What a request says of who asks, and with what (headers, path, body -> Client, Caller, Named).

Nothing here looks at what is asked: that is producers/gateway/http/wire.py's. Names are redacted
before anybody else sees them. What is wrong with a request is raised as Refused.
"""

from collections.abc import Mapping
from typing import Final, get_args

from starlette.requests import Request

from events.envelope import derived_id
from events.rollouts import Purpose
from producers.gateway.capture.record import Caller
from producers.gateway.capture.sessions import Named
from producers.gateway.http.wire import Refused, bad_request, identifier
from producers.gateway.privacy.keys import Client, Keyring
from producers.gateway.privacy.keys import Scope as KeyScope
from producers.gateway.privacy.redaction import Redaction

_PATH_FIELDS: Final = ("session", "task", "user")


def client_of(request: Request, keyring: Keyring, scope: KeyScope) -> Client:
    """Whose key it has, if that may do this. Raises Refused."""
    client = keyring.client(_authorization(request))
    if client is None:
        raise Refused(
            401,
            "no key, or one that this gateway does not know; send Authorization: Bearer KEY",
            code="invalid_api_key",
        )
    if scope not in client.scopes:
        raise Refused(403, f"key {client.name!r} lacks the scope {scope!r}; use one that has it")
    return client


def path_fields(request: Request) -> Mapping[str, str]:
    """What the path names: `/r/session/s1/user/u1/v1/...`. Raises Refused."""
    given = request.path_params.get("given")
    if given is None:
        return {}
    parts = given.split("/")
    found = dict(zip(parts[::2], parts[1::2], strict=False))
    if len(parts) % 2 or len(found) * 2 != len(parts) or not found.keys() <= set(_PATH_FIELDS):
        raise Refused(
            404,
            f"the path /r/{given[:80]} is not /r/NAME/VALUE/v1/... with the names session, task "
            "and user",
        )
    return found


def named_session(
    request: Request, client: Client, given: Mapping[str, str], redaction: Redaction
) -> Named | None:
    """The session that it names, in a header, by its key or in the path. Raises Refused."""
    if session := redaction.name(header(request, "x-kintsugi-session")):
        return Named(session, "header")
    if session := redaction.name(identifier(client.session, "the session in the key")):
        return Named(session, "key")
    if session := redaction.name(identifier(given.get("session"), "the session in the path")):
        return Named(session, "path")
    return None


def caller_of(
    request: Request, client: Client, given: Mapping[str, str], redaction: Redaction
) -> Caller:
    """Who asks, and what for. Raises Refused."""
    person = header(request, "x-kintsugi-user") or identifier(given.get("user"), "the user")
    task = header(request, "x-kintsugi-task") or identifier(given.get("task"), "the task")
    if task is not None and "trusted" not in client.scopes:
        raise Refused(
            403, "a task was named, and only a key with the scope 'trusted' may; leave it out"
        )
    return Caller(
        client=client.name,
        person=redaction.name(person),
        task=redaction.name(task),
        purpose=_purpose(request),
        traceparent=traceparent_of(request, redaction),
    )


def _purpose(request: Request) -> Purpose:
    name = "x-kintsugi-purpose"
    given = request.headers.get(name, "live")
    for purpose in get_args(Purpose):
        if given == purpose:
            found: Purpose = purpose
            return found
    raise bad_request(f"{name} is {given[:40]!r}; use one of {', '.join(get_args(Purpose))}")


def retry_key(request: Request, caller: Caller, redaction: Redaction) -> str | None:
    """Of a call that may be sent again: the idempotency key, of this client and person."""
    key = redaction.name(header(request, "idempotency-key"))
    if key is None:
        return None
    return derived_id("call", caller.client or "", caller.person or "", key)


def _authorization(request: Request) -> str | None:
    """The client's key; Anthropic's clients send it in a header of their own."""
    key = request.headers.get("x-api-key")
    given = request.headers.get("authorization")
    return given if given is not None or key is None else f"Bearer {key}"


def header(request: Request, name: str) -> str | None:
    """What a header names; None without it. Raises Refused."""
    return identifier(request.headers.get(name), name)


def traceparent_of(request: Request, redaction: Redaction) -> str | None:
    """The trace that a call is part of; what a proxy malformed is left out."""
    value = request.headers.get("traceparent", "")
    proper = len(value) == 55 and value.isascii() and value.isprintable()
    return value if proper and redaction.text(value) == value else None


async def body_of(request: Request, most: int) -> bytes:
    """All of the body, of at most so many bytes. Raises Refused."""
    read = bytearray()
    async for chunk in request.stream():
        read += chunk
        if len(read) > most:
            raise Refused(413, f"the body is larger than {most:,} bytes; send less")
    return bytes(read)
