"""One call's answer: what the client gets, and what the log gets (response -> record).

The engine was asked for token ids and log-probabilities (wire.py). `whole` and `chunk` take what it
sent and return what it would have sent without being asked: fields that the client did not ask for
are taken out, and chunks that would not have been sent are None. What was taken out is kept, with
the messages that the pieces come to. `MessagesCapture` does the same for Anthropic's protocol, in
which nothing can be asked for: it takes nothing out.

Guarantee: exact tokens or none. Ids and log-probabilities are the engine's own; where one of them
is missing, or their numbers differ, there are no arrays and the reason is said. Pure: no I/O.
"""

import array
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from events.canonical import exact_json
from events.messages import Message, ToolCall
from producers.conversation import parse_arguments
from producers.gateway import sse
from producers.gateway.wire import Added, Asked, Dialect, Json
from producers.records import readable

_CALL_MARK: Final = "<tool_call>"
"""Begins a call in the form of Hermes. In the text of an answer it is one that cannot be read."""

_LOWEST: Final = -9998.0
"""Engines write about -9999 for minus infinity, which JSON has not: no token is drawn with it."""


_PROMPT_PARTS: Final = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
"""Of Anthropic's usage: together they are the prompt."""


@dataclass(slots=True)
class _Call:
    id: str | None = None
    name: str = ""
    arguments: str = ""


@dataclass(slots=True)
class _Choice:
    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: dict[int, _Call] = field(default_factory=dict)
    token_ids: list[Any] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    spelled: list[Any] = field(default_factory=list)
    """What each token says, as bytes or text."""
    has_ids: bool = False
    has_logprobs: bool = False
    finish: str | None = None

    def message(self) -> Message:
        text = "".join(self.text)
        calls = tuple(self._tool_call(self.calls[number]) for number in sorted(self.calls))
        content = readable(text) if text or not calls else None
        reasoning = "".join(self.reasoning)
        return Message(
            role="assistant",
            content=content,
            tool_calls=calls,
            reasoning=readable(reasoning) if reasoning else None,
        )

    def spoken(self) -> tuple[str, ...]:
        """Everything that is known of what was said, as it was said."""
        tokens = b"".join(map(_raw, self.spelled)).decode(errors="replace")
        calls = (text for call in self.calls.values() for text in (call.name, call.arguments))
        return "".join(self.text), "".join(self.reasoning), tokens, *calls

    def _tool_call(self, call: _Call) -> ToolCall:
        arguments = parse_arguments(call.arguments)
        if isinstance(arguments, str):
            arguments = readable(arguments)
        return ToolCall(name=readable(call.name), arguments=arguments, id=readable(call.id))

    def untrainable(self) -> str | None:
        """Why this choice has no exact tokens; None when it has."""
        if not self.has_ids:
            return "the engine gave no token ids"
        if not self.has_logprobs:
            return "the engine gave no log-probabilities"
        if len(self.token_ids) != len(self.logprobs):
            return f"{len(self.token_ids)} token ids and {len(self.logprobs)} log-probabilities"
        if not self.token_ids:
            return "the answer has no tokens"
        if not all(map(_is_id, self.token_ids)):
            return "a token id is no number of 32 bits"
        if not all(map(_is_logprob, self.logprobs)):
            return "a log-probability is no finite number"
        if self.finish is None or self.finish in ("abort", "error"):
            return f"the answer ended with {self.finish}"
        return None


@dataclass(frozen=True, slots=True)
class Captured:
    """What is recorded of an answer."""

    messages: tuple[Message, ...]
    """One per choice."""
    arrays: Mapping[str, "array.array[Any]"]
    """Empty when untrainable."""
    untrainable_because: str | None
    finish_reason: str | None
    """Of the first choice."""
    prompt_tokens: int | None
    completion_tokens: int | None
    invalid_tool_calls: int
    finished: bool
    """Whether every choice that began has ended."""


class Capture:
    """The answer to one call while it comes."""

    LAST: ClassVar[str] = "[DONE]"
    """What ends a whole stream."""

    def __init__(self, asked: Asked, added: Added, dialect: Dialect | None) -> None:
        self._asked = asked
        self._added = added
        self._dialect = dialect
        self._chat = asked.endpoint == "chat"
        self._choices: dict[int, _Choice] = {}
        self._prompts: dict[int, list[Any]] = {}
        self._usage: Json = {}
        self.error: str | None = None
        """What the engine said went wrong, in the middle of a stream."""

    def whole(self, document: Json) -> Json:
        """A whole response, as it would have been without our fields."""
        self._take_head(document)
        for choice in _dicts(document.get("choices")):
            self._take_choice(choice, choice.get("message") if self._chat else choice)
        return self._restored(document)

    def chunk(self, document: Json) -> Json | None:
        """A chunk of a stream; None where the engine would not have sent it."""
        if (error := document.get("error")) is not None:
            said = error.get("message") if isinstance(error, dict) else error
            self.error = str(readable(str(said)))
            return document
        self._take_head(document)
        for choice in _dicts(document.get("choices")):
            self._take_choice(choice, choice.get("delta") if self._chat else choice)
        restored = self._restored(document)
        return None if self._is_silent(restored) else restored

    def is_last(self, payload: bytes | None) -> bool:
        """Whether an event that says this ends a whole stream."""
        return payload == sse.DONE

    def spoken(self) -> tuple[str, ...]:
        """Everything that is known of what was said so far: words, raw arguments of calls, and what
        the tokens spell."""
        return tuple(text for choice in self._choices.values() for text in choice.spoken())

    def captured(self) -> Captured:
        """What the answer came to so far."""
        choices = [self._choices[number] for number in sorted(self._choices)]
        why = self._untrainable(choices)
        counted = sum(len(choice.token_ids) for choice in choices)
        return Captured(
            messages=tuple(choice.message() for choice in choices),
            arrays={} if why else self._arrays(),
            untrainable_because=why,
            finish_reason=choices[0].finish if choices else None,
            prompt_tokens=self._count("prompt_tokens", sum(map(len, self._prompts.values()))),
            completion_tokens=self._count("completion_tokens", counted),
            invalid_tool_calls=sum(self._invalid(choice) for choice in choices),
            finished=bool(choices) and all(choice.finish is not None for choice in choices),
        )

    def _take_head(self, document: Json) -> None:
        if isinstance(ids := document.get("prompt_token_ids"), list):
            self._prompts.setdefault(0, ids)
        if isinstance(usage := document.get("usage"), dict):
            self._usage = usage

    def _take_choice(self, choice: Json, said: Any) -> None:
        number = choice.get("index")
        one = self._choices.setdefault(number if type(number) is int else 0, _Choice())
        if isinstance(said, dict):
            _take_words(one, said)
        if isinstance(ids := choice.get("token_ids"), list):
            one.has_ids = True
            one.token_ids += ids
        if isinstance(scores := choice.get("logprobs"), dict):
            one.has_logprobs = True
            one.logprobs += self._logprobs(scores)
            one.spelled += self._spelled(scores)
        if isinstance(ids := choice.get("prompt_token_ids"), list):
            self._prompts.setdefault(self._prompt_of(number), ids)
        if isinstance(finish := choice.get("finish_reason"), str):
            one.finish = str(readable(finish))[:128]

    def _prompt_of(self, number: Any) -> int:
        """Which prompt a choice answers: each has `n` of them."""
        n = self._asked.given.get("n")
        return number // n if type(number) is int and type(n) is int and n > 1 else number or 0

    def _logprobs(self, scores: Json) -> list[Any]:
        if self._chat:
            return [entry.get("logprob") for entry in _dicts(scores.get("content"))]
        found = scores.get("token_logprobs")
        return found if isinstance(found, list) else []

    def _spelled(self, scores: Json) -> list[Any]:
        if self._chat:
            return [e.get("bytes") or e.get("token") for e in _dicts(scores.get("content"))]
        found = scores.get("tokens")
        return found if isinstance(found, list) else []

    def _restored(self, document: Json) -> Json:
        """Without what we asked for."""
        if not (self._added.token_ids or self._added.logprobs):
            return document
        restored = self._without_ids(document, "prompt_token_ids")
        choices = restored.get("choices")
        if isinstance(choices, list):
            restored = {**restored, "choices": [self._restored_choice(one) for one in choices]}
        return restored

    def _restored_choice(self, choice: Any) -> Any:
        if not isinstance(choice, dict):
            return choice
        restored = self._without_ids(choice, "token_ids", "prompt_token_ids")
        if self._added.logprobs and "logprobs" in restored:
            restored = {**restored, "logprobs": None}
        return restored

    def _without_ids(self, holder: Json, *names: str) -> Json:
        if not self._added.token_ids:
            return holder
        if self._dialect is not None and self._dialect.null_fields:
            return {name: None if name in names else value for name, value in holder.items()}
        return {name: value for name, value in holder.items() if name not in names}

    def _is_silent(self, chunk: Json) -> bool:
        """Whether the engine sent a chunk only to say what the client did not ask for."""
        choices = chunk.get("choices")
        if not (self._added.token_ids or self._added.logprobs) or not isinstance(choices, list):
            return False
        return bool(choices) and all(map(self._says_nothing, choices))

    def _says_nothing(self, choice: Any) -> bool:
        if not isinstance(choice, dict) or choice.get("finish_reason") is not None:
            return False
        if choice.get("logprobs") is not None or choice.get("token_ids") is not None:
            return False
        if self._chat:
            return not choice.get("delta")
        return not choice.get("text") and not (self._dialect and self._dialect.silent_text)

    def _untrainable(self, choices: list[_Choice]) -> str | None:
        if not choices:
            return "there is no answer"
        if not self._prompts or not all(self._prompts.values()):
            return "the engine gave no token ids of the prompt"
        if not all(_is_id(token) for ids in self._prompts.values() for token in ids):
            return "a token id of the prompt is no number of 32 bits"
        return next((why for choice in choices if (why := choice.untrainable())), None)

    def _arrays(self) -> dict[str, "array.array[Any]"]:
        found: dict[str, array.array[Any]] = {}
        for place, number in enumerate(sorted(self._prompts)):
            found[_numbered("prompt_token_ids", place)] = array.array("i", self._prompts[number])
        for place, number in enumerate(sorted(self._choices)):
            choice = self._choices[number]
            found[_numbered("token_ids", place)] = array.array("i", choice.token_ids)
            found[_numbered("logprobs", place)] = array.array("f", choice.logprobs)
        return found

    def _count(self, name: str, counted: int) -> int | None:
        """By the engine's word; else what was counted; None where nothing was."""
        said = self._usage.get(name)
        if type(said) is int and 0 <= said < 2**63:
            return said
        return counted or None

    def _invalid(self, choice: _Choice) -> int:
        """Calls that no tool could be called with."""
        tools = self._asked.tools
        if not tools:
            return 0
        offered = {
            function.get("name")
            for tool in tools
            if isinstance(function := tool.get("function"), dict)
        }
        broken = sum(
            call.name not in offered or isinstance(parse_arguments(call.arguments), str)
            for call in choice.calls.values()
        )
        return broken + ("".join(choice.text).count(_CALL_MARK))


class MessagesCapture(Capture):
    """The answer to one call of Anthropic's protocol while it comes."""

    LAST: ClassVar[str] = "message_stop"

    def whole(self, document: Json) -> Json:
        """A whole response, as it came."""
        self._take_message(document)
        for number, block in enumerate(_dicts(document.get("content"))):
            self._begin_block(number, block)
            self._end_block(number)
        return document

    def chunk(self, document: Json) -> Json | None:
        """An event of a stream, as it came."""
        number = document.get("index")
        place = number if type(number) is int else 0
        match document.get("type"):
            case "error":
                return super().chunk(document)
            case "message_start":
                self._take_message(_dict(document.get("message")))
            case "content_block_start":
                self._begin_block(place, _dict(document.get("content_block")))
            case "content_block_delta":
                self._add_to_block(place, _dict(document.get("delta")))
            case "content_block_stop":
                self._end_block(place)
            case "message_delta":
                usage = document.get("usage")
                self._take_message({**_dict(document.get("delta")), "usage": usage})
        return document

    def is_last(self, payload: bytes | None) -> bool:
        """Whether an event that says this ends a whole stream."""
        if payload is None or self.LAST.encode() not in payload:
            return False
        try:
            said = json.loads(payload)
        except (ValueError, RecursionError):
            return False
        return isinstance(said, dict) and said.get("type") == self.LAST

    @property
    def _message(self) -> _Choice:
        return self._choices.setdefault(0, _Choice())

    def _take_message(self, message: Json) -> None:
        if isinstance(stop := message.get("stop_reason"), str):
            self._message.finish = str(readable(stop))[:128]
        usage = _dict(message.get("usage"))
        parts = [usage[name] for name in _PROMPT_PARTS if type(usage.get(name)) is int]
        if parts:
            self._usage = {**self._usage, "prompt_tokens": sum(parts)}
        if "output_tokens" in usage:
            self._usage = {**self._usage, "completion_tokens": usage["output_tokens"]}

    def _begin_block(self, number: int, block: Json) -> None:
        kind, message = block.get("type"), self._message
        if kind != "tool_use":
            self._add_to_block(number, {**block, "type": f"{kind}_delta"})
            return
        call = message.calls.setdefault(number, _Call())
        if isinstance(name := block.get("id"), str):
            call.id = name
        if isinstance(name := block.get("name"), str):
            call.name = name
        if given := block.get("input"):
            call.arguments = _written(given)

    def _add_to_block(self, number: int, delta: Json) -> None:
        kind, message = delta.get("type"), self._message
        if kind == "text_delta" and isinstance(text := delta.get("text"), str):
            message.text.append(text)
        elif kind == "thinking_delta" and isinstance(text := delta.get("thinking"), str):
            message.reasoning.append(text)
        elif kind == "input_json_delta" and isinstance(text := delta.get("partial_json"), str):
            message.calls.setdefault(number, _Call()).arguments += text

    def _end_block(self, number: int) -> None:
        """A call without arguments says so by saying nothing."""
        call = self._choices[0].calls.get(number) if 0 in self._choices else None
        if call is not None and not call.arguments:
            call.arguments = "{}"

    def _untrainable(self, choices: list[_Choice]) -> str | None:
        return "over /v1/messages the engine tells no token ids"


def capturing(asked: Asked, added: Added, dialect: Dialect | None) -> Capture:
    """What takes the answer to a request."""
    return (MessagesCapture if asked.endpoint == "messages" else Capture)(asked, added, dialect)


def _written(given: Any) -> str:
    """Arguments as the text that a stream of them comes to."""
    try:
        return exact_json(given)
    except RecursionError:
        return "nested too deeply to be read"


def _take_words(one: _Choice, said: Json) -> None:
    for name, parts in (("content", one.text), ("text", one.text)):
        if isinstance(text := said.get(name), str):
            parts.append(text)
    reasoning = said.get("reasoning") or said.get("reasoning_content")
    if isinstance(reasoning, str):
        one.reasoning.append(reasoning)
    for place, call in enumerate(_dicts(said.get("tool_calls"))):
        number = call.get("index")
        _take_call(one.calls.setdefault(number if type(number) is int else place, _Call()), call)


def _take_call(one: _Call, call: Json) -> None:
    if isinstance(name := call.get("id"), str) and one.id is None:
        one.id = name
    function = call.get("function")
    if not isinstance(function, dict):
        return
    if isinstance(name := function.get("name"), str):
        one.name += name
    if isinstance(text := function.get("arguments"), str):
        one.arguments += text


def _raw(token: Any) -> bytes:
    """What a token says, as bytes."""
    if isinstance(token, list) and all(type(byte) is int and 0 <= byte < 256 for byte in token):
        return bytes(token)
    return token.encode(errors="replace") if isinstance(token, str) else b""


def _numbered(name: str, place: int) -> str:
    return name if place == 0 else f"{name}.{place}"


def _dict(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _dicts(value: Any) -> Iterable[Json]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _is_id(token: Any) -> bool:
    return type(token) is int and 0 <= token < 2**31


def _is_logprob(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value > _LOWEST
