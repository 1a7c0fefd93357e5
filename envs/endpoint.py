"""A client of any OpenAI-compatible endpoint: messages in, one classified outcome out.

    async with Endpoint("http://127.0.0.1:8000/v1", "small", concurrency=64) as endpoint:
        completion = await endpoint.complete(messages, tools=tools, seed=7)

    Completion           an answer, each choice in our form
    AnswerFailure        the episode ends, with a termination and a reason that quotes the answer:
                           infrastructure_error     no connection, 429 or 5xx, after retries
                           timeout                  no whole answer in time; asked once
                           context_window_exceeded  the conversation no longer fits
                           agent_error              no message: no JSON, no choices, wrong types,
                                                    empty, too large
    EndpointRefusal      wrong key, model, URL or parameters; the run is over
    EndpointUnavailable  the endpoint cannot be reached; only `check` raises it

Wrong tool calls (malformed JSON, unknown tools, wrong types) are answers. An answer is read up to a
limit. The API key is in no message, error or log. Exact tokens (`return_token_ids`, `logprobs`)
come whole or not at all. Reasoning is sent back in the fields in which it came. Not covered:
streaming, and reasoning in parts of the content, which is not sent back.
"""

import asyncio
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, NoReturn, Self

import httpx2
import stamina
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from envs.answers.reader import UNREAD_PART, BadAnswer, MessageReader, read_count, refuse
from envs.episode import Termination
from events.errors import KintsugiError
from events.json_text.guard import parse_json
from events.messages import Message, ToolCall
from events.registry import first_problem

MAX_ANSWER_BYTES: Final = 4 << 20
"""Largest size of an answer. A megabyte of arguments fits, and the tools then refuse it."""

_MAX_ERROR_BYTES: Final = 16_384
"""Number of bytes that are read of an error's body."""

_QUOTED: Final = 200
"""Number of characters of a bad answer that a reason quotes."""

_CONNECT_SECONDS: Final = 10.0
_MAX_RETRY_AFTER_SECONDS: Final = 120.0
_LAST_PORT: Final = 65_535
_CORRECT_URL: Final = "correct the base URL: it mostly ends in /v1"

_REASONING_FIELDS: Final[tuple[str, ...]] = ("reasoning", "reasoning_content")
"""Fields of a message that hold its reasoning: vLLM's first, then other endpoints'."""

_CONTEXT: Final = re.compile(
    r"context[_ ](length|window|size)|maximum model length|prompt is too long|too many tokens",
    re.IGNORECASE,
)
"""Texts of errors by which endpoints say that a conversation no longer fits."""


class EndpointUnavailable(KintsugiError):
    """The endpoint cannot be reached at present."""


class EndpointRefusal(KintsugiError):
    """The endpoint refuses to serve. Waiting does not help; the command must be corrected."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens that a model read and wrote, as the endpoint reported them."""

    prompt: tuple[int, ...]
    completion: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Log probability of each completion id, in nats."""


class AnswerFailure(KintsugiError):
    """There is no answer with which the episode could go on."""

    def __init__(self, termination: Termination, reason: str, tokens: Tokens | None = None) -> None:
        super().__init__(reason)
        self.termination = termination
        self.reason = reason
        self.tokens = tokens
        """Tokens of the unusable answer, if the endpoint reported them."""


class _Again(Exception):
    def __init__(self, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters. The endpoint decides about each one that is None."""

    temperature: float | None = None
    max_tokens: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further fields for the request's body, sent unchanged."""

    def fields(self) -> dict[str, Any]:
        """Return the sampling fields of the request's body."""
        values = {"temperature": self.temperature, "max_tokens": self.max_tokens, **self.extra}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Usage:
    """The cost of answers: requests, and tokens as the endpoint counts them."""

    requests: int = 0
    prompt_tokens: int | None = 0
    """None if at least one answer did not report it."""
    completion_tokens: int | None = 0
    """Reasoning included. None if at least one answer did not report it."""

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.requests + other.requests,
            _sum(self.prompt_tokens, other.prompt_tokens),
            _sum(self.completion_tokens, other.completion_tokens),
        )


@dataclass(frozen=True, slots=True)
class Completion:
    """An answer of the endpoint: at least one choice that is a usable message."""

    messages: tuple[Message, ...]
    finish_reason: str | None
    """Finish reason of the first choice."""
    usage: Usage
    tokens: Tokens | None = None
    """Tokens of the first choice. None if the endpoint did not report all of them."""
    content: str = ""
    """Content of the first choice as the model wrote it, asides included."""
    reasoning_fields: tuple[str, ...] = ()
    """Fields of the first choice that hold its reasoning."""
    finish_reasons: tuple[str | None, ...] = (None,)

    @property
    def message(self) -> Message:
        """The message of the first choice."""
        return self.messages[0]


class Endpoint:
    """A client of one model at one URL: an async context manager over a pool of connections."""

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        concurrency: int = 16,
        timeout: float = 300.0,
        attempts: int = 6,
        wait_seconds: float = 0.5,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
    ) -> None:
        """`base_url` is the part before `/chat/completions`. `timeout` bounds one whole answer in
        seconds; `attempts` includes the first one. `wait_seconds` is the first pause, doubled each
        time up to 20. Raise EndpointRefusal for a bad URL, or for a key that no header can hold."""
        self.base_url = _check_url(base_url)
        self.model = model
        self.timeout = timeout
        self.attempts = attempts
        self.wait_seconds = wait_seconds
        self.max_answer_bytes = max_answer_bytes
        self.answered = False
        """Whether it ever gave an answer; before that, a refusal is the configuration's fault."""
        self._reasoning_fields = _REASONING_FIELDS[:1]
        """Fields that held the reasoning of the last answer. Some endpoints refuse other ones."""
        headers = {"authorization": f"Bearer {_check_key(api_key)}"} if api_key else {}
        self._client = httpx2.AsyncClient(
            headers={**headers, "accept-encoding": "identity"},
            limits=httpx2.Limits(
                max_connections=concurrency, max_keepalive_connections=concurrency
            ),
            timeout=httpx2.Timeout(None, connect=_CONNECT_SECONDS),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def check(self) -> None:
        """Check that the endpoint can be reached, by asking for its list of models. A missing or
        strange list is accepted. Raise EndpointUnavailable or EndpointRefusal."""
        await self._request_models()

    async def list_models(self) -> tuple[str, ...] | None:
        """Return the names of the endpoint's models, or None if it has no such list (404 and the
        like). Raise EndpointUnavailable or EndpointRefusal."""
        answer = await self._request_models()
        return None if answer is None else _read_models(f"{self.base_url}/models", answer)

    async def _request_models(self) -> bytes | None:
        """Return the body of the list of models, or None if the endpoint has no such list."""
        url = f"{self.base_url}/models"
        try:
            async with asyncio.timeout(self.timeout), self._client.stream("GET", url) as response:
                status = response.status_code
                answer = await self._read(response, 200 <= status < 300)
        except (httpx2.TransportError, TimeoutError) as error:
            raise EndpointUnavailable(
                f"{self.base_url} cannot be reached: {_describe_error(error)}; start the "
                "endpoint, or correct the base URL"
            ) from error
        except AnswerFailure as failure:
            raise EndpointRefusal(f"{url}: {failure.reason}; {_CORRECT_URL}") from failure
        if status in (401, 403):
            raise EndpointRefusal(self._refusal(status, "it lists no models without a key"))
        if status in (408, 429) or status >= 500:
            raise EndpointUnavailable(
                f"{url} answers HTTP {status}: {_read_error(answer)}; mend or restart the endpoint"
            )
        if 300 <= status < 400:
            target = _quoted(response.headers.get("location", "").encode())
            raise EndpointRefusal(
                f"{url} redirects to {target} (HTTP {status}), and redirects are not followed; "
                f"{_CORRECT_URL}"
            )
        return None if status >= 400 else answer

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        sampling: Sampling | None = None,
        seed: int | None = None,
        choices: int = 1,
    ) -> Completion:
        """Request the next message. The endpoint may give fewer than `choices`; unusable choices
        are left out. Raise AnswerFailure if no choice is usable. Raise EndpointRefusal."""
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [wire(message, self._reasoning_fields) for message in messages],
        }
        body |= {"tools": list(tools)} if tools else {}
        body |= (sampling or Sampling()).fields()
        body |= {} if seed is None else {"seed": seed}
        body |= {"n": choices} if choices > 1 else {}
        status, answer = await self._ask(body)
        if not 200 <= status < 300:
            self._raise_refusal(status, answer)
        completion = _completion(answer, len(messages))
        self.answered = True
        if completion.message.reasoning is not None:
            self._reasoning_fields = completion.reasoning_fields
        return completion

    async def ask(self, body: Mapping[str, Any]) -> Any:
        """Return the answer to a request as any JSON. Raise AnswerFailure or EndpointRefusal."""
        status, answer = await self._ask(body)
        if not 200 <= status < 300:
            self._raise_refusal(status, answer)
        try:
            return parse_json(answer.decode("utf-8", "replace"))
        except ValueError as error:
            raise _no_answer(f"it is no JSON ({error})", answer) from error

    async def _ask(self, body: Mapping[str, Any]) -> tuple[int, bytes]:
        """Send a request, retrying transient failures. Return the answer's status and body."""
        content = json.dumps(body, allow_nan=False).encode()
        try:
            async for attempt in stamina.retry_context(
                on=_pause,
                attempts=self.attempts,
                timeout=None,
                wait_initial=self.wait_seconds,
                wait_max=20.0,
                wait_jitter=self.wait_seconds,
            ):
                with attempt:
                    return await self._once(content)
        except _Again as error:
            raise AnswerFailure(
                Termination.INFRASTRUCTURE_ERROR, f"{error}; asked {self.attempts} times"
            ) from error
        raise AssertionError("the last attempt returns or raises")

    async def _once(self, content: bytes) -> tuple[int, bytes]:
        try:
            async with (
                asyncio.timeout(self.timeout),
                self._client.stream(
                    "POST",
                    f"{self.base_url}/chat/completions",
                    content=content,
                    headers={"content-type": "application/json"},
                ) as response,
            ):
                status = response.status_code
                good = 200 <= status < 300
                answer = await self._read(response, good)
                if status in (408, 429) or status >= 500:
                    raise _Again(f"HTTP {status}: {_read_error(answer)}", _retry_after(response))
                return status, answer
        except TimeoutError:
            raise AnswerFailure(
                Termination.TIMEOUT, f"no whole answer within {self.timeout:g} s"
            ) from None
        except httpx2.TransportError as error:
            raise _Again(f"no answer: {_describe_error(error)}") from error
        except httpx2.RequestError as error:
            raise AnswerFailure(
                Termination.AGENT_ERROR, f"the answer cannot be decoded: {_describe_error(error)}"
            ) from error

    async def _read(self, response: httpx2.Response, good: bool) -> bytes:
        """Return the body, cutting a long error. Raise AnswerFailure for too large an answer."""
        coding = response.headers.get("content-encoding", "identity").strip().lower()
        if coding not in ("", "identity"):
            # A few compressed bytes may become gigabytes, in spite of the limit on bytes read.
            raise AnswerFailure(
                Termination.AGENT_ERROR,
                f"the answer cannot be decoded: it is encoded as {coding[:40]!r}, and was asked "
                "for as it is",
            )
        read = bytearray()
        limit = self.max_answer_bytes if good else _MAX_ERROR_BYTES
        async for chunk in response.aiter_raw():
            read += chunk
            if len(read) > limit:
                if not good:
                    break
                raise AnswerFailure(
                    Termination.AGENT_ERROR,
                    f"the answer is larger than {limit:,} bytes; it begins {_quoted(read)}",
                )
        return bytes(read)

    def _raise_refusal(self, status: int, answer: bytes) -> NoReturn:
        text = _read_error(answer)
        if status in (400, 413, 422) and _CONTEXT.search(text):
            raise AnswerFailure(Termination.CONTEXT_OVERFLOW, f"HTTP {status}: {text}")
        if status in (401, 403, 404) or not self.answered:
            raise EndpointRefusal(self._refusal(status, text))
        raise AnswerFailure(
            Termination.AGENT_ERROR, f"the conversation was refused: HTTP {status}: {text}"
        )

    def _refusal(self, status: int, text: str) -> str:
        remedy = {
            401: "give the API key of this endpoint",
            403: "give an API key that may use this model",
            404: f"correct the base URL (it mostly ends in /v1) or the model {self.model!r}",
        }.get(status, "correct what it names: the model, the sampling, or how it was started")
        return f"{self.base_url} refuses to serve: HTTP {status}: {text}; {remedy}"


def read_key(url: str, variable: str | None) -> str | None:
    """Return an endpoint's API key from the environment variable `variable`; None if that is None.
    Raise EndpointRefusal if the variable is not set."""
    if variable is None:
        return None
    if variable not in os.environ:
        raise EndpointRefusal(
            f"the key of {url} is taken from {variable}, which is not set; set it in the "
            "environment of the process that asks"
        )
    return os.environ[variable]


def request_seed(*parts: object) -> int:
    """Return a seed of 31 bits that depends only on `parts`. Every endpoint accepts this size."""
    return Random("request " + " ".join(map(str, parts))).getrandbits(31)


def wire(
    message: Message, reasoning_fields: Sequence[str] = _REASONING_FIELDS[:1]
) -> dict[str, Any]:
    """Return a message in the endpoint's format, without asides, with reasoning in
    `reasoning_fields`. Malformed arguments are quoted in an object, as vLLM answers 400 to other
    forms."""
    sent: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        sent["tool_calls"] = [_wire_call(call) for call in message.tool_calls]
    if message.role == "assistant" and message.reasoning is not None:
        sent |= dict.fromkeys(reasoning_fields, message.reasoning)
    if message.role == "tool":
        sent["tool_call_id"] = message.tool_call_id
    return sent


def _wire_call(call: ToolCall) -> dict[str, Any]:
    arguments = call.arguments
    value = arguments if isinstance(arguments, dict) else {"malformed_arguments": arguments}
    function = {"name": call.name, "arguments": json.dumps(value, ensure_ascii=False)}
    return {"id": call.id, "type": "function", "function": function}


class _Wire(BaseModel):
    """Base of the parts of an answer: types are exact, and unknown fields are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class _Choice(_Wire):
    message: dict[str, Any]
    finish_reason: str | None = None


class _Answer(_Wire):
    choices: list[Any] = Field(min_length=1)
    usage: Any = None
    prompt_token_ids: Any = None


class _ModelName(_Wire):
    id: str


class _ModelList(_Wire):
    data: tuple[_ModelName, ...] = Field(strict=False)


class _Score(_Wire):
    logprob: float


class _Scores(_Wire):
    content: tuple[_Score, ...] = Field(strict=False)


class _ChoiceTokens(_Wire):
    token_ids: tuple[int, ...] = Field(strict=False)
    logprobs: _Scores


class _PromptTokens(_Wire):
    prompt_token_ids: tuple[int, ...] = Field(strict=False, min_length=1)


def _read_models(url: str, answer: bytes) -> tuple[str, ...]:
    try:
        value = parse_json(answer.decode("utf-8", "replace"))
        models = _ModelList.model_validate({"data": value} if isinstance(value, list) else value)
    except ValueError as error:
        raise EndpointRefusal(
            f"{url} answers with no list of models; it begins {_quoted(answer)}; {_CORRECT_URL}"
        ) from error
    return tuple(model.id for model in models.data)


def _completion(answer: bytes, turn: int) -> Completion:
    """Convert an answer to a Completion; `turn` makes missing ids. Raise AnswerFailure."""
    try:
        parsed = _Answer.model_validate(parse_json(answer.decode("utf-8", "replace")))
        choices, problems = _choices(parsed.choices, turn)
    except ValidationError as error:
        raise _no_answer(first_problem(error), answer) from error
    except ValueError as error:
        raise _no_answer(f"it is no JSON ({error})", answer) from error
    tokens = _tokens(parsed)
    if not choices:
        raise _no_answer(problems[0], answer, tokens)
    whole = len(choices) == len(parsed.choices)
    return Completion(
        messages=tuple(choice.message for choice in choices),
        finish_reason=choices[0].finish_reason,
        usage=_usage(parsed.usage),
        tokens=tokens if whole else None,
        content=choices[0].written,
        reasoning_fields=choices[0].reasoning_fields,
        finish_reasons=tuple(choice.finish_reason for choice in choices),
    )


def _tokens(answer: _Answer) -> Tokens | None:
    """Return the first choice's tokens; None if some are missing or contradict the usage."""
    try:
        prompt = _PromptTokens(prompt_token_ids=answer.prompt_token_ids).prompt_token_ids
        choices = [_ChoiceTokens.model_validate(choice) for choice in answer.choices]
    except ValidationError:
        return None
    first, usage = choices[0], _usage(answer.usage)
    logprobs = tuple(score.logprob for score in first.logprobs.content)
    written = sum(len(choice.token_ids) for choice in choices)
    if (
        len(logprobs) != len(first.token_ids)
        or usage.prompt_tokens not in (None, len(prompt))
        or usage.completion_tokens not in (None, written)
    ):
        return None
    return Tokens(prompt, first.token_ids, logprobs)


@dataclass(frozen=True, slots=True)
class _Usable:
    message: Message
    finish_reason: str | None
    written: str
    """Content as the model wrote it, asides included."""
    reasoning_fields: tuple[str, ...]


def _choices(raw: list[Any], turn: int) -> tuple[list[_Usable], list[str]]:
    """Return the usable choices, and a description of the fault of each other choice."""
    usable: list[_Usable] = []
    problems: list[str] = []
    for item in raw:
        words = MessageReader(_doubt)
        try:
            choice = _Choice.model_validate(item)
            words.take(choice.message, whole=True)
        except ValidationError as error:
            problems.append(f"choices: {first_problem(error)}")
            continue
        except BadAnswer as error:
            problems.append(f"choices: {error}")
            continue
        message = _with_ids(words.build_message(), turn)
        if message.text.strip() or message.tool_calls:
            fields = tuple(
                name for name in _REASONING_FIELDS if isinstance(choice.message.get(name), str)
            )
            usable.append(_Usable(message, choice.finish_reason, words.text, fields))
        else:
            problems.append(f"it is empty (finish_reason {choice.finish_reason!r})")
    return usable, problems


def _doubt(why: str, value: Any) -> None:
    """Raise BadAnswer for each doubt, except for parts that are neither text nor reasoning."""
    if why != UNREAD_PART:
        refuse(why, value)


def _with_ids(message: Message, turn: int) -> Message:
    calls = tuple(
        call if call.id else call.model_copy(update={"id": f"call_{turn}_{place}"})
        for place, call in enumerate(message.tool_calls)
    )
    return message.model_copy(update={"tool_calls": calls})


def _no_answer(problem: str, answer: bytes, tokens: Tokens | None = None) -> AnswerFailure:
    reason = f"the answer is no message: {problem}; it begins {_quoted(answer)}"
    return AnswerFailure(Termination.AGENT_ERROR, reason, tokens)


def _usage(raw: Any) -> Usage:
    counts = raw if isinstance(raw, dict) else {}
    return Usage(1, read_count(counts, "prompt_tokens"), read_count(counts, "completion_tokens"))


def _sum(count: int | None, other: int | None) -> int | None:
    return None if count is None or other is None else count + other


def _pause(error: Exception) -> bool | float:
    """Return whether to ask again, or the number of seconds to wait if the endpoint gave it."""
    if not isinstance(error, _Again):
        return False
    return True if error.wait is None else error.wait


def _retry_after(response: httpx2.Response) -> float | None:
    """Return the seconds of the header Retry-After, bounded; None for a date or nonsense."""
    text = response.headers.get("retry-after", "").strip()
    if not text.isascii() or not text.isdigit():
        return None
    return min(float(text), _MAX_RETRY_AFTER_SECONDS)


def _read_error(answer: bytes) -> str:
    """Return the message of an error in OpenAI's format, or else the beginning of the body."""
    try:
        value = parse_json(answer.decode("utf-8", "replace"))
    except ValueError:
        return _quoted(answer)
    part = value
    for name in ("error", "message"):
        part = part.get(name, part) if isinstance(part, dict) else part
    return _quoted((part if isinstance(part, str) else json.dumps(value)).encode())


def _quoted(raw: bytes | bytearray) -> str:
    text = " ".join(bytes(raw[: 4 * _QUOTED]).decode("utf-8", "replace").split())
    return f"{text[:_QUOTED]}..." if len(text) > _QUOTED else text or "(nothing)"


def _describe_error(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _check_key(api_key: str) -> str:
    """Return the key if an HTTP header can hold it (printable ASCII). Otherwise raise
    EndpointRefusal, whose text does not quote it."""
    if not (api_key.isascii() and api_key.isprintable()):
        raise EndpointRefusal(
            "the API key has a character that no HTTP header can hold; copy it again, without line "
            "breaks"
        )
    return api_key


def _check_url(base_url: str) -> str:
    try:
        url = httpx2.URL(base_url)
    except httpx2.InvalidURL as error:
        raise EndpointRefusal(f"base URL {base_url!r} is none: {error}; correct it") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise EndpointRefusal(
            f"base URL {base_url!r} must begin with http:// or https://, such as "
            "http://127.0.0.1:8000/v1"
        )
    if url.port is not None and not 0 < url.port <= _LAST_PORT:
        raise EndpointRefusal(
            f"base URL {base_url!r} has the port {url.port}, and ports are 1 to {_LAST_PORT}; "
            "correct it"
        )
    return base_url.rstrip("/")
