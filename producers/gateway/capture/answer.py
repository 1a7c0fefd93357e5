"""One call's answer: what the client gets, and what the log gets (response -> record).

The engine was asked for token ids and log-probabilities (producers/gateway/http/wire.py). `whole`
and `chunk` take what it sent and return what it would have sent without being asked: fields that
the client did not ask for are taken out, and chunks that would not have been sent are None. What
was taken out is kept, with the messages that the pieces come to. `MessagesCapture` does the same
for Anthropic's protocol, in which nothing can be asked for: it takes nothing out.

Guarantee: exact tokens or none. Ids and log-probabilities are the engine's own; where one of them
is missing, their numbers differ, or an engine says what none says (an index that was not asked for,
a probability above 1), there are no arrays and the reason is said. Of an answer without end a part
is kept, and all of it is passed on. Pure: no I/O.
"""

import array
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from envs.reflection.tags import split_reflection
from events.canonical import exact_json
from events.messages import Message, ToolCall
from events.rollouts import is_logprob
from producers.conversation import parse_arguments
from producers.gateway.http import sse
from producers.gateway.http.wire import Dialect, ExtraFields, Json, ModelRequest
from producers.storable import readable

_CALL_MARK: Final = "<tool_call>"
"""Begins a call in the form of Hermes. In the text of an answer it is one that cannot be read."""

MAX_HELD_BYTES: Final = 128 << 20
"""About how much of one answer is held: half a million tokens."""

_TOKEN_BYTES: Final = 200
"""What is held of a token: its id, its log-probability and what it spells."""
_ID_BYTES: Final = 40
_PIECE_BYTES: Final = 64
"""What is held of a piece of text, beside its characters."""
_ENTRY_BYTES: Final = 1000
"""What is held of a choice or a call."""
_ARGUMENT_BYTES: Final = 24
"""What a byte of arguments may come to when they are read: a list takes three."""

_MOST_CALLS: Final = 1_000
"""Tool calls held of one choice."""
_STRAY_CHOICES: Final = 16
"""Choices held although they were not requested: enough to show what the engine did."""

_PROMPT_PARTS: Final = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
"""Fields of Anthropic's usage whose sum is the number of prompt tokens."""


@dataclass(slots=True)
class _Call:
    id: str | None = None
    names: list[str] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return "".join(self.names)

    @property
    def arguments(self) -> str:
        return "".join(self.pieces)


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

    def drop_tokens(self) -> None:
        """Forget what cannot be trained on any more."""
        self.token_ids, self.logprobs, self.spelled = [], [], []

    def message(self) -> Message:
        reflection, text = split_reflection("".join(self.text))
        calls = tuple(self._tool_call(self.calls[number]) for number in sorted(self.calls))
        content = readable(text) if text or not calls else None
        reasoning = "".join(self.reasoning)
        return Message(
            role="assistant",
            content=content,
            tool_calls=calls,
            reasoning=readable(reasoning) if reasoning else None,
            reflection=readable(reflection) if reflection else None,
        )

    def collect_texts(self) -> tuple[str, ...]:
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
            return "a log-probability is no finite number, or above 0"
        if self.finish is None or self.finish in ("abort", "error"):
            return f"the answer ended with {self.finish}"
        return None


@dataclass(frozen=True, slots=True)
class AnswerRecord:
    """What is recorded of an answer."""

    messages: tuple[Message, ...]
    """One per choice."""
    arrays: Mapping[str, "array.array[Any]"]
    """Empty when untrainable."""
    untrainable_because: str | None
    finish_reason: str | None
    """Finish reason of the first choice."""
    prompt_tokens: int | None
    completion_tokens: int | None
    invalid_tool_calls: int
    finished: bool
    """Whether every choice that began has ended."""


NOTHING: Final = AnswerRecord((), {}, "nothing was captured", None, None, None, 0, finished=False)
"""What is recorded of an answer that could not be captured."""


class Capture:
    """The answer to one call while it comes."""

    LAST: ClassVar[str] = "[DONE]"
    """What ends a whole stream."""

    def __init__(
        self,
        asked: ModelRequest,
        added: ExtraFields,
        dialect: Dialect | None,
        most: int = MAX_HELD_BYTES,
    ) -> None:
        """`most` bytes are held of the answer, about."""
        self._asked = asked
        self._added = added
        self._dialect = dialect
        self._chat = asked.endpoint == "chat"
        n = asked.document.get("n")
        self._n = n if type(n) is int and n > 0 else 1
        self._expected = self._n * max(1, len(asked.prompts))
        """Choices that were asked for."""
        self._most = most
        self._held = 0
        self._full = False
        """Whether the answer exceeded the bytes that may be held; its tokens are dropped then."""
        self._pieces = 0
        """Number of pieces kept so far: tokens, calls, and fragments of text and of calls."""
        self._odd: str | None = None
        """The first reason found to distrust the engine's answer; None while there is none."""
        self._choices: dict[int, _Choice] = {}
        self._prompts: dict[int, list[Any]] = {}
        self._usage: Json = {}
        self.error: str | None = None
        """What the engine said went wrong, in the middle of a stream."""

    def whole(self, document: Json) -> Json:
        """A whole response, as it would have been without our fields."""
        self._take(document, "message" if self._chat else None)
        return self._strip(document)

    def chunk(self, document: Json) -> Json | None:
        """A chunk of a stream; None where the engine would not have sent it."""
        if (error := document.get("error")) is not None:
            message = error.get("message") if isinstance(error, dict) else error
            self.error = str(readable(str(message)))
            return document
        self._take(document, "delta" if self._chat else None)
        restored = self._strip(document)
        return None if self._is_silent(restored) else restored

    @property
    def held(self) -> int:
        """About how many bytes are held of the answer."""
        return self._held

    @property
    def has_begun(self) -> bool:
        """Whether anything that the model said has come: a token, a word, or a part of a call."""
        return self._pieces > 0

    def is_last(self, payload: bytes | None) -> bool:
        """Whether an event that says this ends a whole stream."""
        return payload == sse.DONE

    def collect_texts(self) -> tuple[str, ...]:
        """Everything that is known of what was said so far: words, raw arguments of calls, and what
        the tokens spell."""
        return tuple(text for choice in self._choices.values() for text in choice.collect_texts())

    def build_record(self) -> AnswerRecord:
        """What the answer came to so far."""
        choices = [self._choices[number] for number in sorted(self._choices)]
        why = self._untrainable(choices)
        counted = sum(len(choice.token_ids) for choice in choices)
        return AnswerRecord(
            messages=tuple(choice.message() for choice in choices),
            arrays={} if why else self._arrays(),
            untrainable_because=why,
            finish_reason=choices[0].finish if choices else None,
            prompt_tokens=self._count("prompt_tokens", sum(map(len, self._prompts.values()))),
            completion_tokens=self._count("completion_tokens", counted),
            invalid_tool_calls=sum(self._invalid(choice) for choice in choices),
            finished=bool(choices) and all(choice.finish is not None for choice in choices),
        )

    def _take(self, document: Json, words: str | None) -> None:
        """A response or a piece of one; its choices say their words in the field `words`."""
        self._take_prompt(0, document.get("prompt_token_ids"))
        if isinstance(usage := document.get("usage"), dict):
            self._usage = usage

        seen: set[int] = set()
        for place, choice in enumerate(self._read_objects(document, "choices")):
            number = self._number(choice.get("index"), place)
            if number in seen:
                self._doubt("two choices have one index")
            seen.add(number)
            self._take_choice(number, choice, choice if words is None else choice.get(words))

    def _take_choice(self, number: int, choice: Json, words: Any) -> None:
        state = self._choice(number)
        if state is None:
            return
        ended, before = state.finish is not None, self._pieces
        self._take_prompt(self._prompt_of(number), choice.get("prompt_token_ids"))
        if isinstance(words, dict):
            self._take_words(state, words)
        elif words is not None:
            self._doubt("what a choice says is no object")
        self._take_tokens(state, choice)
        if ended and self._pieces > before:
            self._doubt("a choice goes on after its end")
        if isinstance(finish := choice.get("finish_reason"), str):
            state.finish = str(readable(finish))[:128]

    def _choice(self, number: int) -> _Choice | None:
        """Return the choice of this number; None where it is not held."""
        if number not in self._choices and self._may_hold(number) and self._holds(_ENTRY_BYTES):
            self._choices[number] = _Choice()
        return self._choices.get(number)

    def _may_hold(self, number: int) -> bool:
        """Return whether a choice may be held: all requested ones, and `_STRAY_CHOICES` others."""
        asked_for = 0 <= number < self._expected
        return asked_for or len(self._choices) < self._expected + _STRAY_CHOICES

    def _take_tokens(self, state: _Choice, choice: Json) -> None:
        ids, scores = choice.get("token_ids"), choice.get("logprobs")
        if isinstance(ids, list) and self._holds(_ID_BYTES * len(ids)):
            state.has_ids = True
            state.token_ids += ids
            self._pieces += len(ids)
        elif ids is not None:
            self._doubt("token ids are no list")
        if isinstance(scores, dict):
            state.has_logprobs = True
            logprobs, spelled = self._logprobs(scores), self._read_spellings(scores)
            if self._holds(_TOKEN_BYTES * max(len(logprobs), len(spelled))):
                state.logprobs += logprobs
                state.spelled += spelled
        elif scores is not None:
            self._doubt("log-probabilities are no object")

    def _take_prompt(self, number: int, ids: Any) -> None:
        if ids is None:
            return
        if not isinstance(ids, list):
            self._doubt("token ids of the prompt are no list")
        elif number not in self._prompts:
            if self._holds(_ID_BYTES * len(ids)):
                self._prompts[number] = ids
        elif self._prompts[number] != ids:
            self._doubt("a prompt has two kinds of token ids")

    def _take_words(self, state: _Choice, words: Json) -> None:
        for name in ("content", "text"):
            self._add(state.text, words.get(name), name)
        reasoning = words.get("reasoning") or words.get("reasoning_content")
        self._add(state.reasoning, reasoning, "reasoning")
        for place, call in enumerate(self._read_objects(words, "tool_calls")):
            number = call.get("index")
            if number is not None and (type(number) is not int or number < 0):
                self._doubt("a call has an index that is no number from 0")
            self._take_call(state, number if type(number) is int else place, call)

    def _take_call(self, state: _Choice, number: int, piece: Json) -> None:
        if len(state.calls) == _MOST_CALLS and number not in state.calls:
            self._doubt(f"a choice has more than {_MOST_CALLS:,} tool calls")
            return
        if number not in state.calls and self._holds(_ENTRY_BYTES):
            state.calls[number] = _Call()
            self._pieces += 1
        call = state.calls.get(number)
        if call is None:
            return
        if isinstance(name := piece.get("id"), str) and call.id is None:
            call.id = name
        function = piece.get("function")
        if isinstance(function, dict):
            self._add(call.names, function.get("name"), "the name of a call")
            self._add(call.pieces, function.get("arguments"), "arguments", _ARGUMENT_BYTES)
        elif function is not None:
            self._doubt("the function of a call is no object")

    def _add(self, parts: list[str], text: Any, what: str, weight: int = 1) -> None:
        """More of a text, each character of which comes to `weight` bytes."""
        if isinstance(text, str):
            if text and self._holds(_PIECE_BYTES + len(text) * weight):
                parts.append(text)
                self._pieces += 1
        elif text is not None:
            self._doubt(f"{what} is no text")

    def _read_objects(self, holder: Json, name: str) -> Iterable[Json]:
        """The objects of a list."""
        listed = holder.get(name)
        objects = _dicts(listed)
        if listed is not None and (not isinstance(listed, list) or len(objects) < len(listed)):
            self._doubt(f"{name} is no list of objects")
        return objects

    def _number(self, index: Any, place: int) -> int:
        """The number under which a choice is kept. An index that no choice can have is replaced by
        one that keeps the choice apart from the others, as far as that can be told."""
        if type(index) is int and 0 <= index < self._expected:
            return index
        self._doubt(f"a choice has an index that is none of {self._expected} from 0")
        return index if type(index) is int else place

    def _prompt_of(self, number: int) -> int:
        """Return the index of the prompt that a choice answers: each prompt has `n` choices."""
        return 0 if self._chat else number // self._n

    def _holds(self, size: int) -> bool:
        """Count `size` more bytes and return whether they can be held; drop all tokens where
        not."""
        if self._full:
            return False
        self._held += size
        if self._held <= self._most:
            return True
        self._full = True
        self._doubt(f"the answer is more than {self._most:,} bytes to hold")
        self._prompts = {}
        for choice in self._choices.values():
            choice.drop_tokens()
        return False

    def _doubt(self, why: str) -> None:
        """Mark the answer as untrainable for the reason `why`; the first reason is kept."""
        self._odd = self._odd or why

    def _logprobs(self, scores: Json) -> list[Any]:
        return self._read_scores(
            scores, "content", "token_logprobs", lambda entry: entry.get("logprob")
        )

    def _read_spellings(self, scores: Json) -> list[Any]:
        return self._read_scores(
            scores, "content", "tokens", lambda entry: entry.get("bytes") or entry.get("token")
        )

    def _read_scores(
        self, scores: Json, chat: str, plain: str, read: Callable[[Json], Any]
    ) -> list[Any]:
        """One value for each token, None where there is none."""
        values = scores.get(chat if self._chat else plain)
        if not isinstance(values, list):
            if values is not None:
                self._doubt("log-probabilities are no list")
            return []
        if not self._chat:
            return values
        return [read(entry) if isinstance(entry, dict) else None for entry in values]

    def _strip(self, document: Json) -> Json:
        """Return the document without the fields that the gateway requested."""
        if not (self._added.token_ids or self._added.logprobs):
            return document
        restored = self._without_ids(document, "prompt_token_ids")
        choices = restored.get("choices")
        if isinstance(choices, list):
            restored = {**restored, "choices": [self._strip_choice(choice) for choice in choices]}
        return restored

    def _strip_choice(self, choice: Any) -> Any:
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
        if self._odd is not None:
            return self._odd
        if not choices:
            return "there is no answer"
        if not all(self._prompts.get(self._prompt_of(number)) for number in self._choices):
            return "the engine gave no token ids of the prompt"
        if len(self._prompts) > 1 and len(choices) != self._expected:
            return f"{len(choices)} answers of {self._expected} to several prompts"
        if not all(_is_id(token) for ids in self._prompts.values() for token in ids):
            return "a token id of the prompt is no number of 32 bits"
        return next((why for choice in choices if (why := choice.untrainable())), None)

    def _arrays(self) -> dict[str, "array.array[Any]"]:
        arrays: dict[str, array.array[Any]] = {}
        for place, number in enumerate(sorted(self._prompts)):
            arrays[_array_name("prompt_token_ids", place)] = array.array("i", self._prompts[number])
        for place, number in enumerate(sorted(self._choices)):
            choice = self._choices[number]
            arrays[_array_name("token_ids", place)] = array.array("i", choice.token_ids)
            arrays[_array_name("logprobs", place)] = array.array("f", choice.logprobs)
        return arrays

    def _count(self, name: str, counted: int) -> int | None:
        """Return the count that the engine reports, else `counted`, or None where that is 0."""
        value = self._usage.get(name)
        if type(value) is int and 0 <= value < 2**63:
            return value
        return counted or None

    def _invalid(self, choice: _Choice) -> int:
        """Calls that no tool could be called with."""
        tools = self._asked.tools
        if not tools:
            return 0
        offered = {
            name
            for tool in tools
            if isinstance(function := tool.get("function"), dict)
            and isinstance(name := function.get("name"), str)
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
            event = json.loads(payload)
        except (ValueError, RecursionError):
            return False
        return isinstance(event, dict) and event.get("type") == self.LAST

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
        function = {"name": block.get("name")}
        if arguments := block.get("input"):
            function["arguments"] = _format_arguments(arguments)
        self._take_call(message, number, {"id": block.get("id"), "function": function})

    def _add_to_block(self, number: int, delta: Json) -> None:
        kind, message = delta.get("type"), self._message
        if kind == "text_delta":
            self._add(message.text, delta.get("text"), "text")
        elif kind == "thinking_delta":
            self._add(message.reasoning, delta.get("thinking"), "thinking")
        elif kind == "input_json_delta":
            function = {"arguments": delta.get("partial_json")}
            self._take_call(message, number, {"function": function})

    def _end_block(self, number: int) -> None:
        """A call without arguments says so by saying nothing."""
        call = self._choices[0].calls.get(number) if 0 in self._choices else None
        if call is not None and not call.pieces:
            call.pieces.append("{}")

    def _untrainable(self, choices: list[_Choice]) -> str | None:
        return "over /v1/messages the engine tells no token ids"


def make_capture(asked: ModelRequest, added: ExtraFields, dialect: Dialect | None) -> Capture:
    """What takes the answer to a request."""
    return (MessagesCapture if asked.endpoint == "messages" else Capture)(asked, added, dialect)


def _format_arguments(arguments: Any) -> str:
    """Arguments as the text that a stream of them comes to."""
    try:
        return exact_json(arguments)
    except RecursionError:
        return "nested too deeply to be read"


def _raw(token: Any) -> bytes:
    """What a token says, as bytes."""
    if isinstance(token, list) and all(type(byte) is int and 0 <= byte < 256 for byte in token):
        return bytes(token)
    return token.encode(errors="replace") if isinstance(token, str) else b""


def _array_name(name: str, place: int) -> str:
    return name if place == 0 else f"{name}.{place}"


def _dict(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _dicts(value: Any) -> list[Json]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _is_id(token: Any) -> bool:
    return type(token) is int and 0 <= token < 2**31


def _is_logprob(value: Any) -> bool:
    # No text, and not true: a bool is an int. As float32, what is beyond its range is infinite.
    return type(value) in (int, float) and is_logprob(value)
