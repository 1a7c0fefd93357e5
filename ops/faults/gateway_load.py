"""Clients of a gateway under faults, and a ledger of their answers. All calls go through OpenAI's
client. `_Tap` keeps the raw bytes, because that client hides the end of a stream and its comments.
A call is acknowledged when its whole body, or `[DONE]`, was read and nothing said
`x-kintsugi-recorded: no`.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import httpx2
import openai
from openai.types.chat import ChatCompletionChunk, ChatCompletionMessage

from ops.waits import Worker

Json = dict[str, Any]

TOOL: Final[Json] = {
    "type": "function",
    "function": {"name": "look_up", "parameters": {"type": "object"}},
}
NOT_RECORDED: Final = b": x-kintsugi-recorded: no"
DONE: Final = b"data: [DONE]\n\n"

_TURNS: Final = 4
_RETRY_SECONDS: Final = 0.1
_READ_SECONDS: Final = 60.0


@dataclass(slots=True)
class Answer:
    """The part of a choice that the client has read."""

    text: str = ""
    calls: dict[int, Json] = field(default_factory=dict)
    """Index -> tool call: `id`, `name` and `arguments` (JSON text)."""


@dataclass(slots=True)
class CallAttempt:
    """One attempt at a call, as the client saw it."""

    messages: list[Json]
    mark: str
    """Name of the call, equal for its retries."""
    stream: bool
    key: str | None = None
    call: str | None = None
    status: int | None = None
    recorded: str | None = None
    replayed: bool = False
    whole: bool = False
    """Whether the body was read to its end, a stream to `[DONE]`."""
    taken_back: bool = False
    """Whether a comment in the stream said later that the call is not recorded."""
    finished: bool = False
    error: str | None = None
    answers: dict[int, Answer] = field(default_factory=dict)

    @property
    def has_ack(self) -> bool:
        """Return whether the client was told that the call is recorded."""
        return self.whole and self.recorded == "yes" and not self.taken_back

    @property
    def has_answer(self) -> bool:
        """Return whether the client has a whole answer."""
        return self.whole and self.status == 200 and self.error is None


@dataclass(slots=True)
class Ledger:
    """The attempts of all clients; several threads may append to it."""

    seen: list[CallAttempt] = field(default_factory=list)
    feedback: list[str] = field(default_factory=list)

    def list_acks(self) -> list[CallAttempt]:
        """Return the acknowledged attempts, which must be in the log."""
        return [attempt for attempt in self.seen if attempt.has_ack]

    def cut_off(self) -> list[CallAttempt]:
        """Return the streams that began but did not end."""
        return [
            attempt
            for attempt in self.seen
            if attempt.stream and attempt.status == 200 and not attempt.whole
        ]

    def silent(self) -> list[CallAttempt]:
        """Return the streams that were cut off without an error at the client."""
        return [attempt for attempt in self.cut_off() if attempt.error is None]

    def of(self, mark: str) -> list[CallAttempt]:
        """Return the attempts at one call."""
        return [attempt for attempt in self.seen if attempt.mark == mark]


class _Tap(httpx2.BaseTransport):
    """Keeps the bytes of the last response."""

    def __init__(self) -> None:
        self._inner = httpx2.HTTPTransport()
        self.read = bytearray()
        self.ended = False

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        self.read = bytearray()
        self.ended = False
        response = self._inner.handle_request(request)
        stream = response.stream
        assert isinstance(stream, httpx2.SyncByteStream), "asked synchronously"
        tapped = _TapStream(stream, self)
        return httpx2.Response(
            response.status_code, headers=response.headers, stream=tapped, request=request
        )

    def close(self) -> None:
        self._inner.close()


class _TapStream(httpx2.SyncByteStream):
    def __init__(self, inner: httpx2.SyncByteStream, tap: _Tap) -> None:
        self._inner = inner
        self._tap = tap

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._inner:
            self._tap.read += piece
            yield piece
        self._tap.ended = True

    def close(self) -> None:
        self._inner.close()


class Client:
    """A client. Not thread-safe."""

    def __init__(
        self,
        url: str,
        ledger: Ledger,
        timeout_seconds: float = _READ_SECONDS,
        *,
        key: str = "none",
        model: str = "scripted",
    ) -> None:
        self._tap = _Tap()
        self._ledger = ledger
        self._model = model
        http = httpx2.Client(transport=self._tap, timeout=timeout_seconds)
        self._openai = openai.OpenAI(
            base_url=url, api_key=key, max_retries=0, http_client=http, timeout=timeout_seconds
        )

    def close(self) -> None:
        """Close its connections."""
        self._openai.close()

    def ask(
        self,
        messages: list[Json],
        script: Json,
        *,
        stream: bool,
        headers: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> CallAttempt:
        """Make an attempt, and enter it in the ledger at once. `extra_body` replaces the script."""
        headers = dict(headers or {})
        body = fields.pop("extra_body", None) or {"script": script}
        seen = CallAttempt(messages, str(script["mark"]), stream, headers.get("idempotency-key"))
        self._ledger.seen.append(seen)
        self._tap.read = bytearray()
        self._tap.ended = False
        create = self._openai.chat.completions.with_streaming_response.create
        try:
            with create(
                model=self._model,
                messages=messages,  # type: ignore[arg-type]
                stream=stream,
                extra_body=body,
                extra_headers=headers,
                **fields,
            ) as raw:
                _take_headers(seen, raw.headers, raw.status_code)
                parsed: Any = raw.parse()
                if stream:
                    for chunk in parsed:
                        _take_chunk(seen, chunk)
                else:
                    for choice in parsed.choices:
                        _take_message(seen, choice.index, choice.message)
                    seen.finished = True
        except openai.APIStatusError as error:
            _take_headers(seen, error.response.headers, error.status_code)
            seen.error = str(error)
        except (openai.OpenAIError, httpx2.HTTPError) as error:
            seen.error = f"{type(error).__name__}: {error}"
        except ValueError as error:
            seen.error = f"no JSON: {error}"
        self._close_book(seen)
        return seen

    def _close_book(self, seen: CallAttempt) -> None:
        read = bytes(self._tap.read)
        streamed = seen.stream and seen.status == 200
        seen.whole = read.endswith(DONE) if streamed else self._tap.ended
        seen.taken_back = streamed and NOT_RECORDED in read

    def praise(self, call: str, key: str) -> bool:
        """Post feedback about a call; return whether it was acknowledged."""
        body = {"call": call, "score": 1.0, "idempotency_key": key}
        try:
            reply: Any = self._openai.post("/feedback", body=body, cast_to=object)
        except openai.OpenAIError:
            return False
        self._ledger.feedback.append(reply["feedback"])
        return True


class Talker(Worker):
    """A client that makes all kinds of calls at random until it is stopped. Half of them have an
    idempotency key, with which a failed call is repeated until it is answered."""

    def __init__(
        self,
        url: str,
        ledger: Ledger,
        seed: int,
        stop: threading.Event,
        words: int = 20,
        pace_ms: float = 2,
        timeout_seconds: float = _READ_SECONDS,
        per_second: float | None = None,
        extra_body: Json | None = None,
        headers: Mapping[str, str] | None = None,
        **client: str,
    ) -> None:
        """`per_second` limits calls, `extra_body` replaces scripts, `client` goes to Client."""
        super().__init__(f"talker-{seed}", stop)
        self._client = Client(url, ledger, timeout_seconds, **client)
        self._random = random.Random(seed)
        self._name = f"{seed}"
        self._words = words
        self._pace_ms = pace_ms
        self._per_second = per_second
        self._extra_body = extra_body
        self._headers = dict(headers or {})
        self._asked = 0
        self._began = 0.0

    def work(self) -> None:
        """Talk until the stop."""
        self._began = time.monotonic()
        try:
            while not self.stop_asked.is_set():
                self._converse()
        finally:
            self._client.close()

    def _converse(self) -> None:
        headers = dict(self._headers)
        if self._random.random() < 1 / 3:
            headers["x-kintsugi-session"] = f"session-{self._name}-{self._asked}"
        if self._random.random() < 1 / 4:
            headers["x-kintsugi-user"] = f"user-{self._name}"
        messages: list[Json] = [{"role": "system", "content": "Be brief."}]
        for _ in range(_TURNS):
            if self.stop_asked.is_set():
                return
            messages.append({"role": "user", "content": f"Question {self._name}.{self._asked}"})
            seen = self._turn(messages, headers)
            if not seen.has_answer:
                # Give the conversation up, as an agent would.
                self.stop_asked.wait(_RETRY_SECONDS)
                return
            messages += _build_history(seen)

    def _turn(self, messages: list[Json], headers: Mapping[str, str]) -> CallAttempt:
        self._asked += 1
        if self._per_second is not None:
            due = self._began + self._asked / self._per_second
            self.stop_asked.wait(max(0.0, due - time.monotonic()))
        mark = f"{self._name}.{self._asked}"
        script: Json = {"mark": mark, "words": self._random.randint(1, self._words)}
        script["pace_ms"] = self._pace_ms
        fields: Json = {"extra_body": self._extra_body}
        if self._random.random() < 0.3:
            fields["tools"] = [TOOL]
            script["tool"] = self._random.random() < 0.7
        if self._random.random() < 0.2:
            fields["n"] = 2
        keyed = self._random.random() < 0.5
        headers = {**headers, **({"idempotency-key": mark} if keyed else {})}
        stream = self._random.random() < 0.6

        def ask() -> CallAttempt:
            history = list(messages)
            return self._client.ask(history, script, stream=stream, headers=headers, **fields)

        seen = ask_until_answer(ask, self.stop_asked) if keyed else ask()
        if seen.has_ack and seen.call is not None and self._random.random() < 0.3:
            self._praise(seen.call)
        return seen

    def _praise(self, call: str) -> None:
        while not self._client.praise(call, f"k-{call}") and not self.stop_asked.is_set():
            self.stop_asked.wait(_RETRY_SECONDS)


def ask_until_answer(
    ask: Callable[[], CallAttempt], stop: threading.Event, patience: float = 60
) -> CallAttempt:
    """Repeat `ask` until a whole answer, for up to `patience` seconds; return the last attempt."""
    deadline = time.monotonic() + patience
    while not (seen := ask()).has_answer and not stop.is_set() and time.monotonic() < deadline:
        stop.wait(_RETRY_SECONDS)
    return seen


def _build_history(seen: CallAttempt) -> list[Json]:
    answer = seen.answers[0]
    calls = [
        {
            "id": call["id"],
            "type": "function",
            "function": {"name": call["name"], "arguments": call["arguments"]},
        }
        for call in answer.calls.values()
    ]
    message: Json = {"role": "assistant", "content": answer.text or None}
    if calls:
        message["tool_calls"] = calls
    tool_messages = [{"role": "tool", "tool_call_id": c["id"], "content": "found"} for c in calls]
    return [message, *tool_messages]


def _take_headers(seen: CallAttempt, headers: Mapping[str, str], status: int) -> None:
    seen.status = status
    seen.call = headers.get("x-kintsugi-call")
    seen.recorded = headers.get("x-kintsugi-recorded")
    seen.replayed = headers.get("x-kintsugi-replayed") == "yes"


def _take_chunk(seen: CallAttempt, chunk: ChatCompletionChunk) -> None:
    for choice in chunk.choices:
        answer = seen.answers.setdefault(choice.index, Answer())
        answer.text += choice.delta.content or ""
        for call in choice.delta.tool_calls or ():
            known = answer.calls.setdefault(call.index, {"id": None, "name": "", "arguments": ""})
            known["id"] = call.id or known["id"]
            if call.function is not None:
                known["name"] += call.function.name or ""
                known["arguments"] += call.function.arguments or ""
        if choice.finish_reason is not None:
            seen.finished = True


def _take_message(seen: CallAttempt, index: int, message: ChatCompletionMessage) -> None:
    answer = seen.answers.setdefault(index, Answer(message.content or ""))
    for place, call in enumerate(message.tool_calls or ()):
        if call.type == "function":
            answer.calls[place] = {
                "id": call.id,
                "name": call.function.name,
                "arguments": call.function.arguments,
            }
