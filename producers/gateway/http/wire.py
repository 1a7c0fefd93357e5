"""The clients' protocols: OpenAI's with two added fields, and Anthropic's. Pure. Only the fields
that the record needs are parsed; unknown fields go to the engine unchanged.
`ModelRequest.encode_for_engine` adds fields that ask for token ids and log-probabilities. It adds
none that the client set, or that could make an engine accept a wrong request."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NoReturn

from pydantic import ValidationError

from events.errors import KintsugiError
from events.json_text.pieces import encode_in_pieces
from events.json_text.size import MAX_JSON, JsonSize, find_excess
from events.messages import Message
from producers.conversation import parse_messages
from producers.gateway.http import anthropic, sse
from producers.gateway.http.request_limits import TooMany, check_counts
from producers.gateway.http.sampling_fields import Rule, find_rules, read_sampling
from producers.gateway.http.stream_usage import StreamUsage
from producers.gateway.large_work import LARGE_BYTES, measure_work
from producers.storable import Unusable, check_storable, readable

Json = dict[str, Any]
Endpoint = Literal["chat", "completions", "messages"]

PATHS: Final[Mapping[Endpoint, str]] = {
    "chat": "/chat/completions",
    "completions": "/completions",
    "messages": "/messages",
}
"""Path of each endpoint, relative to the `/v1` of an upstream."""

_FREE_OPTIONS: Final = ("include_obfuscation",)
"""Stream options that are independent of usage."""

_DOUBLE_DIGITS: Final = 309
"""Digits of the largest double. An integer with fewer digits fits into a double."""


class Refused(KintsugiError):
    """The gateway refuses a request with an HTTP status, without asking an engine."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.retry_after = retry_after
        """Seconds after which the client may retry."""

    def body(self, endpoint: Endpoint | None = None) -> Json:
        """Return the error body: in Anthropic's form for `messages`, else in OpenAI's."""
        if endpoint == "messages":
            return anthropic.error(self.status, str(self))
        kind = _KINDS.get(self.status, "server_error" if self.status >= 500 else "bad_request")
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": error}


_KINDS: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    409: "conflict_error",
    413: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable",
    504: "timeout",
}


def bad_request(message: str, param: str | None = None) -> Refused:
    """Return a refusal with status 400."""
    return Refused(400, message, param=param)


@dataclass(frozen=True, slots=True)
class Dialect:
    """How an engine writes fields that were not requested, so that answers can be restored."""

    name: str
    null_fields: bool
    """Whether fields that were not requested are null; else they are absent."""
    silent_text: bool
    """Whether a stream of /v1/completions sends chunks without text."""
    usage: StreamUsage = field(default_factory=StreamUsage)


EMBEDDED: Final = Dialect("kintsugi", null_fields=False, silent_text=False)
VLLM: Final = Dialect("vllm", null_fields=True, silent_text=True)

DIALECTS: Final[Mapping[str, Dialect]] = {"kintsugi": EMBEDDED, "vllm": VLLM}
"""`owned_by` in the engine's model list -> dialect. Other engines get no added fields."""


@dataclass(frozen=True, slots=True)
class ExtraFields:
    """Fields that the gateway asks for in addition to the client."""

    token_ids: bool = False
    logprobs: bool = False
    usage: StreamUsage | None = None
    """How streams change with usage if the gateway asks for it; else None."""


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A request for an answer of the model."""

    endpoint: Endpoint
    document: Json
    size: int = 0
    """Work for the body, as a number of text bytes that take as much time (large_work.py)."""

    @property
    def model(self) -> str | None:
        """Return the requested model; None means the engine's default."""
        model = self.document.get("model")
        return str(readable(model)) if isinstance(model, str) and model else None

    @property
    def stream(self) -> bool:
        """Return whether the client wants a stream."""
        return self.document.get("stream") is True

    @property
    def raw_messages(self) -> list[Any]:
        """Return the messages as sent, but Anthropic's in OpenAI's form; [] if not a list."""
        if self.endpoint == "messages":
            return anthropic.conversation(self.document)
        messages = self.document.get("messages")
        return messages if self.endpoint == "chat" and isinstance(messages, list) else []

    @property
    def tools(self) -> tuple[Json, ...]:
        """Return the offered tools in OpenAI's form."""
        tools = self.document.get("tools")
        if self.endpoint == "messages":
            tools = anthropic.tools(self.document)
        return tuple(t for t in tools if isinstance(t, dict)) if isinstance(tools, list) else ()

    @property
    def prompts(self) -> tuple[str | tuple[int, ...], ...]:
        """Return the prompts of /v1/completions; () for other endpoints."""
        return _read_prompts(self.document.get("prompt")) if self.endpoint == "completions" else ()

    @property
    def sampling(self) -> Json:
        """Return the sampling parameters, with the protocol's defaults."""
        return read_sampling(self.document, self.endpoint)

    def find_rules(self) -> list[Rule]:
        """Return the rules under which an answer to the request is untrainable, each once."""
        return find_rules(self.document, self.endpoint, self.raw_messages)

    def choose_extras(self, dialect: Dialect | None) -> ExtraFields:
        """Return the fields to add for an engine of this dialect; none if it is unknown."""
        # An engine refuses a request without `needed` and quotes it, so add nothing.
        needed = "messages" if self.endpoint == "chat" else "prompt"
        if dialect is None or self.endpoint == "messages" or needed not in self.document:
            return ExtraFields()
        ids = self.document.get("return_token_ids") in (None, False)
        usage = dialect.usage if dialect.usage.told_in and self._may_count() else None
        return ExtraFields(token_ids=ids, logprobs=self._may_score(), usage=usage)

    def _may_score(self) -> bool:
        """Return whether asking for log-probabilities keeps the request's meaning."""
        if self.endpoint == "completions":
            return self.document.get("logprobs") is None
        # An engine refuses these fields without `logprobs`, and must still refuse them.
        needing = (self.document.get(name) for name in ("top_logprobs", "logprob_token_ids"))
        return self.document.get("logprobs") in (None, False) and not any(needing)

    def _may_count(self) -> bool:
        """Return whether asking for usage keeps the request's meaning."""
        options = self.document.get("stream_options")
        if not self.stream or not (options is None or isinstance(options, dict)):
            return False
        # Other options may depend on usage unless they are off.
        return all(
            value is None or value is False
            for name, value in (options or {}).items()
            if name not in _FREE_OPTIONS
        )

    def encode_for_engine(self, extras: ExtraFields) -> bytes:
        """Return the body for the engine, with the added fields."""
        body = dict(self.document)
        if extras.token_ids:
            body["return_token_ids"] = True
        if extras.logprobs:
            body["logprobs"] = True if self.endpoint == "chat" else 0
        if extras.usage is not None:
            body["stream_options"] = {
                **(self.document.get("stream_options") or {}),
                "include_usage": True,
            }
        return (encode_large_json if self.size >= LARGE_BYTES else encode_json)(body)

    def with_model(self, model: str) -> "ModelRequest":
        """Return the same request for another model."""
        return replace(self, document={**self.document, "model": model})

    def encode_event(self, document: Json, large: bool = False) -> bytes:
        """Return an event of a streamed answer."""
        name = document.get("type") if self.endpoint == "messages" else None
        return sse.event((encode_large_json if large else encode_json)(document), name)

    def encode_error_event(self, error: Refused) -> bytes:
        """Return the event that ends a stream with an error of the gateway."""
        name = "error" if self.endpoint == "messages" else None
        return sse.event(encode_json(error.body(self.endpoint)), name)

    def messages(self) -> tuple[Message, ...] | None:
        """Return the messages in the log's form; None if the log cannot hold them."""
        return storable_messages(self.raw_messages)


def parse_request(endpoint: Endpoint, body: bytes) -> ModelRequest:
    """Parse a body. Raises Refused if it is no JSON object or exceeds a limit."""
    check_size(body)
    size = measure_work(body)
    try:
        document = json.loads(
            body,
            parse_constant=_reject_constant,
            parse_float=_parse_finite,
            object_hook=_keep_object if size >= LARGE_BYTES else None,
            parse_int=_parse_integer,
        )
    except (ValueError, RecursionError) as error:
        raise bad_request(f"the body is no JSON: {error}; send a JSON object") from error
    if not isinstance(document, dict):
        raise bad_request(
            f"the body is {type(document).__name__}, not a JSON object; send an object"
        )
    try:
        check_counts(document, len(body))
    except TooMany as error:
        raise bad_request(str(error), error.param) from error
    return ModelRequest(endpoint, document, size)


def check_size(body: bytes, most: JsonSize = MAX_JSON) -> None:
    """Raise Refused if a body's JSON exceeds the limits; it is not parsed for this."""
    excess = find_excess(body, most=most)
    if excess is not None:
        raise bad_request(f"the body holds {excess}, which is the most that is taken; send less")


def set_model(document: Json, model: str | None) -> Json:
    """Return an answer or chunk with its model's name replaced; None changes nothing."""
    if model is None:
        return document
    if isinstance(message := document.get("message"), dict) and "model" in message:
        return {**document, "message": {**message, "model": model}}
    return {**document, "model": model} if "model" in document else document


def storable_messages(raw: Sequence[Any]) -> tuple[Message, ...] | None:
    """Return messages in the log's form; None if the log cannot hold them."""
    try:
        messages = parse_messages(readable(list(raw)))
        for message in messages:
            values: list[Any] = [call.arguments for call in message.tool_calls]
            if isinstance(message.content, list):
                values.append(message.content)
            if values:
                check_storable(values, "a message")
    except (ValidationError, Unusable, RecursionError):
        return None
    return messages


def storable_tools(tools: Sequence[Json]) -> tuple[Json, ...] | None:
    """Return tools in the log's form; None if the log cannot hold them."""
    try:
        values = readable(list(tools))
        check_storable(values, "tools")
    except (Unusable, RecursionError):
        return None
    return tuple(values)


def encode_json(document: Any) -> bytes:
    """Return compact JSON; half a surrogate pair is written as an escape, as JSON allows."""
    return _write_json(document).encode()


def encode_large_json(document: Any) -> bytes:
    """Return compact JSON of a large document; other threads run meanwhile."""
    return encode_in_pieces(document, _write_json).encode()


_ENCODER: Final = json.JSONEncoder(separators=(",", ":"))


def _write_json(document: Any) -> str:
    return _ENCODER.encode(document)


def parse_large_json(body: bytes) -> Any:
    """Parse a large text; other threads run between objects and numbers. Raises as json.loads."""
    return json.loads(body, object_hook=_keep_object, parse_float=_read_float)


def _keep_object(fields: Json) -> Json:
    return fields


def _read_float(text: str) -> float:
    return float(text)


_NAME: Final = re.compile(r"[\x21-\x7e]{1,256}")


def identifier(value: str | None, what: str) -> str | None:
    """Return a client's name for a thing, or None if empty. Raises Refused for invalid names."""
    if value is None or value == "":
        return None
    if _NAME.fullmatch(value) is None:
        raise bad_request(
            f"{what} is {value[:40]!r}; use 1 to 256 printable ASCII characters without spaces"
        )
    return value


def _read_prompts(prompt: Any) -> tuple[str | tuple[int, ...], ...]:
    several = isinstance(prompt, list) and not _is_tokens(prompt)
    return tuple(
        str(readable(item)) if isinstance(item, str) else tuple(item)
        for item in (prompt if several else [prompt])
        if isinstance(item, str) or (_is_tokens(item) and min(item) >= 0 and max(item) < 2**31)
    )


def _is_tokens(prompt: Any) -> bool:
    return isinstance(prompt, list) and set(map(type, prompt)) == {int}


def _parse_finite(text: str) -> float:
    """Return a finite number. Raises ValueError for numbers such as 1e999."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is too large a number")
    return number


def _parse_integer(text: str) -> int:
    """Return an integer. Raises ValueError if no double can hold it, as engines need."""
    if len(text) >= _DOUBLE_DIGITS:
        _parse_finite(text)
    return int(text)


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
