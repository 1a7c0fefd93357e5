"""One call's answer, for the client and for the log.

The gateway adds fields to the request that ask for token ids and log-probabilities (http/wire.py).
`whole` and `chunk` return the answer without them. `chunk` returns None for a chunk that the engine
only sent because of the added fields. Guarantee: exact tokens or none. Ids and log-probabilities
are the engine's own. If one is missing, counts differ, or values are impossible (a wrong index, a
probability above 1), the record has no arrays and a reason. A very long answer is kept in part and
passed on in full. Pure.
"""

import array
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import is_not
from typing import Any, ClassVar, Final

from envs.answers.reader import MessageReader, list_objects, read_count
from events.messages import Message
from events.rollouts import is_logprob
from producers.gateway.http import sse
from producers.gateway.http.stream_usage import find_kind, is_silent
from producers.gateway.http.wire import Dialect, ExtraFields, Json, ModelRequest
from producers.storable import readable

_CALL_MARK: Final = "<tool_call>"
"""Begins a tool call in Hermes' form. In an answer's text, it shows an unparsed call."""

MAX_HELD_BYTES: Final = 128 << 20
"""Approximate most bytes of one answer in memory: half a million tokens."""

_TOKEN_BYTES: Final = 200
"""Approximate bytes per token: its id, its log-probability and its text."""
_ID_BYTES: Final = 40
_CHOICE_BYTES: Final = 1000

_MOST_CALLS: Final = 1_000
_STRAY_CHOICES: Final = 16
"""Most choices kept beyond the requested ones, as evidence of the engine's fault."""

_PROMPT_PARTS: Final = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
"""Fields of Anthropic's usage whose sum is the number of prompt tokens."""

_PROMPT_IDS: Final = frozenset(("prompt_token_ids",))
_CHOICE_IDS: Final = frozenset(("token_ids", "prompt_token_ids"))

_ENVELOPE: Final = frozenset(
    ("id", "object", "created", "model", "choices", "system_fingerprint", "service_tier")
)
"""Fields that every chunk has; they hold nothing of the answer."""


@dataclass(slots=True)
class _Choice:
    words: MessageReader
    token_ids: list[Any] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    spelled: list[Any] = field(default_factory=list)
    """Text of each token, as a list of bytes or as text."""
    has_ids: bool = False
    has_logprobs: bool = False
    finish: str | None = None

    def drop_tokens(self) -> None:
        self.token_ids, self.logprobs, self.spelled = [], [], []

    def collect_texts(self) -> tuple[str, ...]:
        """Return all texts of the choice as the engine sent them."""
        tokens = b"".join(map(_raw, self.spelled)).decode(errors="replace")
        return *self.words.collect_texts(), tokens

    def untrainable(self) -> str | None:
        """Return the reason why this choice has no exact tokens; None if it has them."""
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
    """The record of an answer."""

    messages: tuple[Message, ...]
    merged: Message | None
    """The first choice as clients see it that join calls by index only; None if it is the same."""
    arrays: Mapping[str, "array.array[Any]"]
    """Token arrays by name; empty if the answer is untrainable."""
    untrainable_because: str | None
    finish_reason: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    invalid_tool_calls: int
    finished: bool
    """Whether every choice that began has ended."""


NOTHING: Final = AnswerRecord(
    (), None, {}, "nothing was captured", None, None, None, 0, finished=False
)
"""The record of an answer that could not be captured."""


class Capture:
    """Collects the answer to one call while it arrives."""

    LAST: ClassVar[str] = "[DONE]"
    """Payload of the event that ends a complete stream."""

    def __init__(
        self,
        asked: ModelRequest,
        added: ExtraFields,
        dialect: Dialect | None,
        most: int = MAX_HELD_BYTES,
    ) -> None:
        """`most`: about how many bytes of the answer are held."""
        self._asked = asked
        self._added = added
        self._dialect = dialect
        self._chat = asked.endpoint == "chat"
        n = asked.document.get("n")
        self._n = n if type(n) is int and n > 0 else 1
        self._expected = self._n * max(1, len(asked.prompts))
        self._most = most
        self._held = 0
        self._full = False
        """Whether the answer exceeded the bytes that may be held; its tokens are dropped then."""
        self._pieces = 0
        """Number of pieces kept so far: tokens, calls, and fragments of text and of calls."""
        self._odd: str | None = None
        """The first reason to distrust the engine's answer; None as long as there is none."""
        self._whole = False
        self._counts_always = False
        """Whether chunks with words have usage too; then usage alone does not justify a chunk."""
        self._choices: dict[int, _Choice] = {}
        self._prompts: dict[int, list[Any]] = {}
        self._usage: Json = {}
        self.error: str | None = None
        """Message of an error that the engine sent within a stream; None without one."""

    def whole(self, document: Json) -> Json:
        """Capture a whole response; return it without the fields that the gateway asked for."""
        self._whole = True
        self._take(document, "message" if self._chat else None)
        return self._strip(document)

    def chunk(self, document: Json) -> Json | None:
        """Capture a chunk; return it without added fields. None: the client gets no chunk."""
        if (error := document.get("error")) is not None:
            message = error.get("message") if isinstance(error, dict) else error
            self.error = str(readable(str(message)))
            return document
        self._take(document, "delta" if self._chat else None)
        restored = self._strip(document)
        return None if self._is_ours(document, restored) else restored

    @property
    def held(self) -> int:
        """Return approximately how many bytes of the answer are held."""
        return self._held

    @property
    def has_begun(self) -> bool:
        """Return whether any token, word or part of a tool call has arrived."""
        return self._pieces > 0

    def is_last(self, payload: bytes | None) -> bool:
        """Return whether an event with this payload ends a whole stream."""
        return payload is not None and payload.startswith(sse.DONE)

    def collect_texts(self) -> tuple[str, ...]:
        """Return all texts so far: words, raw arguments of calls, and the text of the tokens."""
        return tuple(text for choice in self._choices.values() for text in choice.collect_texts())

    def build_record(self) -> AnswerRecord:
        """Return the record of the answer so far."""
        choices = [self._choices[number] for number in sorted(self._choices)]
        why = self._untrainable(choices)
        messages = tuple(choice.words.build_message() for choice in choices)
        return AnswerRecord(
            messages=messages,
            merged=self._merge_calls(choices[0], messages[0]) if choices else None,
            arrays={} if why else self._arrays(),
            untrainable_because=why,
            finish_reason=choices[0].finish if choices else None,
            prompt_tokens=self._count("prompt_tokens", self._count_prompt_ids()),
            completion_tokens=self._count("completion_tokens", _count_ids(choices)),
            invalid_tool_calls=sum(map(self._invalid, choices, messages)),
            finished=bool(choices) and all(choice.finish is not None for choice in choices),
        )

    def _take(self, document: Json, words: str | None) -> None:
        """Capture a response or chunk. `words`: the choices' field that holds the words."""
        self._take_prompt(0, document.get("prompt_token_ids"))
        if isinstance(usage := document.get("usage"), dict):
            self._usage = usage
        elif usage is not None:
            self._doubt("usage is no object")

        seen: set[int] = set()
        for place, choice in enumerate(self._read_objects(document, "choices")):
            if choice.get("index") is None and not (self._whole or any(choice.values())):
                continue  # an empty choice that accompanies usage
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
            state.words.take(words, whole=self._whole)
        elif words is not None:
            self._doubt("what a choice says is no object")
        self._take_tokens(state, choice)
        if ended and self._pieces > before:
            self._doubt("a choice goes on after its end")
        if isinstance(finish := choice.get("finish_reason"), str):
            state.finish = str(readable(finish))[:128]

    def _choice(self, number: int) -> _Choice | None:
        if number not in self._choices and self._may_hold(number) and self._holds(_CHOICE_BYTES):
            self._choices[number] = self._begin_choice()
        return self._choices.get(number)

    def _begin_choice(self) -> _Choice:
        return _Choice(MessageReader(lambda why, _: self._doubt(why), self._keep, _MOST_CALLS))

    def _keep(self, size: int) -> bool:
        kept = self._holds(size)
        self._pieces += kept
        return kept

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
            logprobs, spelled = self._read_scores(scores)
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

    def _read_objects(self, holder: Json, name: str) -> Iterable[Json]:
        listed = holder.get(name)
        objects = list_objects(listed)
        if listed is not None and (not isinstance(listed, list) or len(objects) < len(listed)):
            self._doubt(f"{name} is no list of objects")
        return objects

    def _number(self, index: Any, place: int) -> int:
        """Return a choice's number. Without a valid index, mark the answer as untrainable."""
        if type(index) is int and 0 <= index < self._expected:
            return index
        self._doubt(f"a choice has an index that is none of {self._expected} from 0")
        return index if type(index) is int else place

    def _prompt_of(self, number: int) -> int:
        """Return the index of the prompt that a choice answers: each prompt has `n` choices."""
        return 0 if self._chat else number // self._n

    def _holds(self, size: int) -> bool:
        """Count `size` more bytes. Return whether they can be held; if not, drop all tokens."""
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

    def _read_scores(self, scores: Json) -> tuple[list[Any], list[Any]]:
        """Return the tokens' log-probabilities and their texts, with None for missing ones."""
        if not self._chat:
            return self._list_scores(scores, "token_logprobs"), self._list_scores(scores, "tokens")
        entries = self._list_scores(scores, "content")
        tokens = [entry if isinstance(entry, dict) else {} for entry in entries]
        spelled = [token.get("bytes") or token.get("token") for token in tokens]
        return [token.get("logprob") for token in tokens], spelled

    def _list_scores(self, scores: Json, name: str) -> list[Any]:
        values = scores.get(name)
        if isinstance(values, list):
            return values
        if values is not None:
            self._doubt("log-probabilities are no list")
        return []

    def _strip(self, document: Json) -> Json:
        if not (self._added.token_ids or self._added.logprobs or self._added.usage):
            return document
        restored = self._without_ids(document, _PROMPT_IDS)
        choices = restored.get("choices")
        if isinstance(choices, list):
            stripped = [self._strip_choice(choice) for choice in choices]
            if any(map(is_not, stripped, choices)):
                restored = {**restored, "choices": stripped}
        if self._added.usage is None:
            return restored
        return self._added.usage.strip(restored)

    def _strip_choice(self, choice: Any) -> Any:
        if not isinstance(choice, dict):
            return choice
        restored = self._without_ids(choice, _CHOICE_IDS)
        if self._added.logprobs and restored.get("logprobs") is not None:
            restored = {**restored, "logprobs": None}
        return restored

    def _without_ids(self, holder: Json, names: frozenset[str]) -> Json:
        if not self._added.token_ids or names.isdisjoint(holder):
            return holder
        if self._dialect is not None and self._dialect.null_fields:
            if all(holder.get(name) is None for name in names):
                return holder
            return {name: None if name in names else value for name, value in holder.items()}
        return {name: value for name, value in holder.items() if name not in names}

    def _is_ours(self, sent: Json, restored: Json) -> bool:
        """Return whether the engine sent a chunk only because of fields that the gateway added."""
        usage, choices = self._added.usage, sent.get("choices")
        if usage is not None and usage.is_own_chunk(sent):
            return True
        if sent.get("usage") is not None and find_kind(sent) == "words":
            self._counts_always = True
        if not isinstance(choices, list) or not choices:
            return False
        if not all(map(self._is_for_tokens, choices, restored["choices"])):
            return False
        told = (name for name in restored.keys() - _ENVELOPE if restored[name] is not None)
        return all(name == "usage" and self._counts_always for name in told)

    def _is_for_tokens(self, sent: Any, restored: Any) -> bool:
        """Return whether a choice holds nothing but token data that the client did not ask for."""
        if not isinstance(sent, dict) or not self._says_nothing(restored):
            return False
        return any(
            sent.get(name) is not None and restored.get(name) is None
            for name in ("token_ids", "logprobs")
        )

    def _says_nothing(self, choice: Json) -> bool:
        return is_silent(choice) and (
            self._chat or not (self._dialect and self._dialect.silent_text)
        )

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
        why = next((why for choice in choices if (why := choice.untrainable())), None)
        return (
            why
            or self._check_count("completion_tokens", _count_ids(choices))
            or self._check_count("prompt_tokens", self._count_prompt_ids())
        )

    def _check_count(self, name: str, ids: int) -> str | None:
        """Describe a difference between the number of ids and the engine's count; None if equal."""
        told = read_count(self._usage, name)
        if told is None or told == ids:
            return None
        return f"the engine sent {ids} token ids and counts {told} ({name})"

    def _count_prompt_ids(self) -> int:
        return sum(map(len, self._prompts.values()))

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
        """Return the engine's count; without one return `counted`, or None if that is 0."""
        told = read_count(self._usage, name)
        return told if told is not None else counted or None

    def _merge_calls(self, choice: _Choice, message: Message) -> Message | None:
        calls = choice.words.build_calls_by_index()
        return None if calls is None else message.model_copy(update={"tool_calls": calls})

    def _invalid(self, choice: _Choice, message: Message) -> int:
        """Return the number of malformed calls: unknown tool, bad arguments, or not parsed."""
        tools = self._asked.tools
        if not tools:
            return 0
        functions = [tool.get("function") or tool.get("custom") for tool in tools]
        names = (function.get("name") for function in list_objects(functions))
        offered = {name for name in names if isinstance(name, str)}
        broken = sum(
            call.name not in offered or isinstance(call.arguments, str)
            for call in message.tool_calls
        )
        return broken + choice.words.text.count(_CALL_MARK)


class MessagesCapture(Capture):
    """Collects the answer to one call of Anthropic's protocol while it arrives."""

    LAST: ClassVar[str] = "message_stop"

    def __init__(self, asked: ModelRequest, added: ExtraFields, dialect: Dialect | None) -> None:
        super().__init__(asked, added, dialect)
        self._inputs: dict[int, list[str] | None] = {}
        """Block -> its input, which deltas replace; None if the block is no client tool call."""

    def whole(self, document: Json) -> Json:
        """Capture a whole response and return it unchanged."""
        self._take_message(document)
        for number, block in enumerate(list_objects(document.get("content"))):
            self._begin_block(number, block)
        return document

    def chunk(self, document: Json) -> Json | None:
        """Capture an event of a stream and return it unchanged."""
        number = document.get("index")
        place = number if type(number) is int else 0
        match document.get("type"):
            case "error":
                return super().chunk(document)
            case "message_start":
                # No token was generated yet, so its number of output tokens is not a count.
                begun = _dict(document.get("message"))
                counts = {**_dict(begun.get("usage")), "output_tokens": None}
                self._take_message({**begun, "usage": counts})
            case "content_block_start":
                self._begin_block(place, _dict(document.get("content_block")))
            case "content_block_delta":
                self._add_to_block(place, _dict(document.get("delta")))
            case "message_delta":
                usage = document.get("usage")
                self._take_message({**_dict(document.get("delta")), "usage": usage})
        return document

    def is_last(self, payload: bytes | None) -> bool:
        """Return whether an event with this payload ends a whole stream."""
        if payload is None or self.LAST.encode() not in payload:
            return False
        try:
            event = json.loads(payload)
        except (ValueError, RecursionError):
            return False
        return isinstance(event, dict) and event.get("type") == self.LAST

    @property
    def _message(self) -> _Choice:
        if 0 not in self._choices:
            self._choices[0] = self._begin_choice()
        return self._choices[0]

    def _take_message(self, message: Json) -> None:
        if isinstance(stop := message.get("stop_reason"), str):
            self._message.finish = str(readable(stop))[:128]
        usage = _dict(message.get("usage"))
        self._usage = {**self._usage, **{k: v for k, v in usage.items() if v is not None}}

    def _count(self, name: str, counted: int) -> int | None:
        parts = _PROMPT_PARTS if name == "prompt_tokens" else ("output_tokens",)
        counts = [read_count(self._usage, part) for part in parts]
        told = [count for count in counts if count is not None]
        # A prompt count of 0 means that the prompt was not counted yet.
        return sum(told) or (0 if told and name == "completion_tokens" else None)

    def _begin_block(self, number: int, block: Json) -> None:
        kind = block.get("type")
        if kind != "tool_use":
            self._inputs[number] = None
            self._add_to_block(number, {**block, "type": f"{kind}_delta"})
            return
        function = {"name": block.get("name"), "arguments": block.get("input") or None}
        call = {"index": number, "id": block.get("id"), "function": function}
        words = self._message.words
        before = len(words.calls)
        words.take_call(call, number)
        self._inputs[number] = words.calls[-1].arguments if len(words.calls) > before else []

    def _add_to_block(self, number: int, delta: Json) -> None:
        kind, words = delta.get("type"), self._message.words
        if kind == "text_delta":
            words.add_text(delta.get("text"))
        elif kind == "thinking_delta":
            words.add_reasoning(delta.get("thinking"))
        elif kind == "input_json_delta":
            begun = self._inputs.get(number, [])
            if begun is None:
                return
            function = {"arguments": delta.get("partial_json")}
            if function["arguments"]:
                begun.clear()
                self._inputs[number] = []
            words.take_call({"index": number, "function": function}, number)

    def _untrainable(self, choices: list[_Choice]) -> str | None:
        return "over /v1/messages the engine tells no token ids"


def make_capture(asked: ModelRequest, added: ExtraFields, dialect: Dialect | None) -> Capture:
    """Return the capture for the answer to a request."""
    return (MessagesCapture if asked.endpoint == "messages" else Capture)(asked, added, dialect)


def _raw(token: Any) -> bytes:
    if isinstance(token, list) and all(type(byte) is int and 0 <= byte < 256 for byte in token):
        return bytes(token)
    return token.encode(errors="replace") if isinstance(token, str) else b""


def _array_name(name: str, place: int) -> str:
    return name if place == 0 else f"{name}.{place}"


def _dict(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _count_ids(choices: Iterable[_Choice]) -> int:
    return sum(len(choice.token_ids) for choice in choices)


def _is_id(token: Any) -> bool:
    return type(token) is int and 0 <= token < 2**31


def _is_logprob(value: Any) -> bool:
    # Refuses texts and bools (a bool is an int), and numbers out of range.
    return type(value) in (int, float) and is_logprob(value)
