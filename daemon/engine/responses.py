"""Write responses and chunks of a stream in OpenAI's format, with the fields of vLLM that we use.

A `Step` is the part of an answer that some tokens added; all steps joined are the answer. A format
writes steps as a stream or a whole response, with the same content. With `return_token_ids`, a
prompt's ids are on the response (chat; in a stream, on its first chunks) or on each choice
(completions; in a stream, on its first chunk). Each choice has the `token_ids` of all its tokens.
"""

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final
from uuid import uuid4

from daemon.engine.streaming import CallArguments, CallStart, Delta, Reason, Words
from daemon.engine.wire import ChatRequest, CompletionRequest, GenerationRequest, Json

_LOWEST: Final = -9999.0
"""Log-probability sent for minus infinity, which JSON cannot hold, as in vLLM."""


@dataclass(frozen=True, slots=True)
class TokenScore:
    """Text and log-probability of a token, and those of its alternatives."""

    token: str
    logprob: float
    """Log-probability in nats."""
    top: tuple[tuple[str, float], ...] = ()
    """Alternatives that the client wants: the likeliest, best first, or the named tokens."""


@dataclass(frozen=True, slots=True)
class Step:
    number: int
    """Index of the answer among the answers to all prompts of the request."""
    deltas: tuple[Delta, ...]
    tokens: tuple[int, ...]
    scores: tuple[TokenScore, ...]
    """Score of each token; empty if the client wants none."""
    finish: Reason | None
    stopped_by: str | int | None = None
    """The client's stop string or stop token that ended the answer; None if none did."""

    def __add__(self, later: "Step") -> "Step":
        return Step(
            self.number,
            self.deltas + later.deltas,
            self.tokens + later.tokens,
            self.scores + later.scores,
            later.finish,
            later.stopped_by,
        )

    @property
    def text(self) -> str:
        """Text of the step, without tool calls."""
        return "".join(delta.text for delta in self.deltas if isinstance(delta, Words))


class Format(ABC):
    """Writes the response to one request, whole or as chunks."""

    prefix: str
    whole: str
    """Value of the field `object` in a response; `part` is that in a chunk."""
    part: str

    def __init__(
        self, request: GenerationRequest, model: str, prompts: Sequence[tuple[int, ...]]
    ) -> None:
        self.prompts = prompts
        self._ids = bool(request.return_token_ids)
        self._id = f"{self.prefix}-{uuid4().hex}"
        self._model = model
        self._created = int(time.time())

    @abstractmethod
    def first_chunks(self) -> Iterable[Json]:
        """Return the chunks that a stream begins with, before any token."""

    @abstractmethod
    def chunks(self, step: Step) -> Iterable[Json]:
        """Return the chunks of a step; none if there is nothing to send yet."""

    @abstractmethod
    def response(self, answers: Sequence[Step]) -> Json:
        """Return the whole response. `answers` has each answer as one joined step, in order."""

    def cost(self, tokens: int) -> Json:
        """Return the stream's last chunk, with the usage for `tokens` written tokens."""
        return self.envelope(self.part, [], usage=usage(self.prompts, tokens))

    def envelope(self, kind: str, choices: list[Json], **fields: Any) -> Json:
        """Return a response or chunk with `choices`, and the `fields` that are not None."""
        extra = {name: value for name, value in fields.items() if value is not None}
        head = {"id": self._id, "object": kind, "created": self._created, "model": self._model}
        return {**head, "choices": choices, **extra}

    def end(self, step: Step) -> Json:
        """Return the fields on the end of a choice, and its token ids if they are wanted."""
        ids = {"token_ids": list(step.tokens)} if self._ids else {}
        return {"finish_reason": step.finish, "stop_reason": step.stopped_by, **ids}


class ChatFormat(Format):
    """Responses of /v1/chat/completions."""

    prefix = "chatcmpl"
    whole = "chat.completion"
    part = "chat.completion.chunk"

    def __init__(self, request: ChatRequest, model: str, prompt: tuple[int, ...]) -> None:
        super().__init__(request, model, [prompt])
        self._choices = request.choices
        self._scored = bool(request.logprobs)
        self._prompt_ids = list(prompt) if self._ids else None

    def first_chunks(self) -> Iterable[Json]:
        """Yield a chunk for each choice, with its role."""
        delta = {"role": "assistant", "content": ""}
        for number in range(self._choices):
            choice = {"index": number, "delta": delta, "logprobs": None, "finish_reason": None}
            yield self.envelope(self.part, [choice], prompt_token_ids=self._prompt_ids)

    def chunks(self, step: Step) -> Iterable[Json]:
        """Yield a chunk for each delta; the last one has the token ids and the finish."""
        deltas = [_chat_delta(delta) for delta in _merge_words(step.deltas)]
        if not (deltas or step.finish or self._ids or self._scored):
            return
        for delta in deltas[:-1]:
            choice = {"index": step.number, "delta": delta, "logprobs": None}
            yield self.envelope(self.part, [{**choice, "finish_reason": None}])
        last = {"index": step.number, "delta": deltas[-1] if deltas else {}}
        yield self.envelope(self.part, [{**last, **self._rest(step)}])

    def response(self, answers: Sequence[Step]) -> Json:
        """Return the response with all choices."""
        choices = [
            {"index": step.number, "message": _message(step), **self._rest(step)}
            for step in answers
        ]
        cost = usage(self.prompts, sum(len(step.tokens) for step in answers))
        ids = self._prompt_ids
        return self.envelope(self.whole, choices, usage=cost, prompt_token_ids=ids)

    def _rest(self, step: Step) -> Json:
        scores = _chat_scores(step.scores) if self._scored else None
        return {"logprobs": scores, **self.end(step)}


class TextFormat(Format):
    """Responses of /v1/completions."""

    prefix = "cmpl"
    whole = part = "text_completion"

    def __init__(
        self, request: CompletionRequest, model: str, prompts: Sequence[tuple[int, ...]]
    ) -> None:
        super().__init__(request, model, prompts)
        self._choices = request.choices
        self._scored = request.logprobs is not None
        self._offsets: dict[int, int] = {}

    def first_chunks(self) -> Iterable[Json]:
        """Return no chunks: a stream of completions begins with text."""
        return ()

    def chunks(self, step: Step) -> Iterable[Json]:
        """Yield the step as one chunk, or nothing if there is nothing to send."""
        if step.text or step.finish or self._ids or self._scored:
            yield self.envelope(self.part, [self._choice(step)])

    def response(self, answers: Sequence[Step]) -> Json:
        """Return the response with all choices of all prompts."""
        cost = usage(self.prompts, sum(len(step.tokens) for step in answers))
        return self.envelope(self.whole, [self._choice(step) for step in answers], usage=cost)

    def _choice(self, step: Step) -> Json:
        first = step.number not in self._offsets
        offset = self._offsets.get(step.number, 0)
        self._offsets[step.number] = offset + sum(len(score.token) for score in step.scores)
        scores = _text_scores(step.scores, offset) if self._scored else None
        choice = {"index": step.number, "text": step.text, "logprobs": scores, **self.end(step)}
        if first and self._ids:
            choice["prompt_token_ids"] = list(self.prompts[step.number // self._choices])
        return choice


def join_steps(steps: Iterable[Step]) -> Step:
    """Join all steps of an answer (at least one) to one step."""
    return reduce(Step.__add__, steps)


def usage(prompts: Sequence[Sequence[int]], written: int) -> Json:
    """Return the field `usage`: numbers of prompt tokens and of `written` tokens."""
    read = sum(map(len, prompts))
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
    }


def event(document: Json) -> bytes:
    """Return a document as a server-sent event."""
    return b"data: " + encode_json(document) + b"\n\n"


def encode_json(document: Json) -> bytes:
    """Return compact JSON. Raise ValueError for infinity or NaN, which JSON cannot hold."""
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()


def _merge_words(deltas: Iterable[Delta]) -> list[Delta]:
    result: list[Delta] = []
    for delta in deltas:
        last = result[-1] if result else None
        if isinstance(delta, Words) and isinstance(last, Words):
            result[-1] = Words(last.text + delta.text)
        else:
            result.append(delta)
    return result


def _chat_delta(delta: Delta) -> Json:
    match delta:
        case Words(text):
            return {"content": text}
        case CallStart(index, name):
            function = {"name": name, "arguments": ""}
            call = {"index": index, "id": _call_id(), "type": "function", "function": function}
            return {"tool_calls": [call]}
        case CallArguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}


def _call_id() -> str:
    return f"call_{uuid4().hex}"


def _message(step: Step) -> Json:
    begun = [delta for delta in step.deltas if isinstance(delta, CallStart)]
    arguments = {d.index: d.text for d in step.deltas if isinstance(d, CallArguments)}
    calls = [
        {
            "id": _call_id(),
            "type": "function",
            "function": {"name": call.name, "arguments": arguments[call.index]},
        }
        for call in begun
    ]
    content = step.text or (None if calls else "")
    message: Json = {"role": "assistant", "content": content}
    return message | ({"tool_calls": calls} if calls else {})


def _chat_scores(scores: Sequence[TokenScore]) -> Json:
    content = [
        {**_entry(s.token, s.logprob), "top_logprobs": [_entry(*pair) for pair in s.top]}
        for s in scores
    ]
    return {"content": content}


def _entry(token: str, logprob: float) -> Json:
    raw = list(token.encode("utf-8", "replace"))
    return {"token": token, "logprob": max(logprob, _LOWEST), "bytes": raw}


def _text_scores(scores: Sequence[TokenScore], offset: int) -> Json:
    offsets = []
    for score in scores:
        offsets.append(offset)
        offset += len(score.token)
    return {
        "tokens": [score.token for score in scores],
        "token_logprobs": [max(score.logprob, _LOWEST) for score in scores],
        "top_logprobs": [
            {token: max(logprob, _LOWEST) for token, logprob in (*s.top, (s.token, s.logprob))}
            for s in scores
        ],
        "text_offset": offsets,
    }
