"""Reads a model's answer as its engine wrote it, whole or in pieces (wire -> Message).

The gateway, the importers and the endpoint's client read answers with `MessageReader`, so that they
agree on the message. It accepts the differences between engines:

    a call        is known by its index and its id together. An empty id is none, and one that comes
                  later is the call's. A piece without an id belongs to the last call of its index,
                  one without an index to the call of its id, and one without both to the last call
                  of its place in the list.
                  A new id without a name goes on with the call of its index: some engines make one
                  for each piece.
    its name      may come whole, again with each piece, or in fragments.
    its arguments may be a text, an object, or nothing, which is an empty object.
    a content     may be a list of parts; those of a thought are reasoning, a refusal is text.

Guarantee: calls are in the order in which they began, and reading takes time and memory linear in
the size of the pieces. What no engine writes is reported to `doubt`; the rest is still read. Not
covered: asides inside of parts, and pictures or sounds.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, NoReturn

from envs.answers.content import read_content, read_monologue
from envs.asides import split_aside
from events.canonical import exact_json
from events.errors import KintsugiError
from events.json_text.guard import (
    UnstorableJson,
    clean_json,
    parse_arguments,
    parse_json,
    replace_half_pairs,
)
from events.messages import Message, ToolCall

PIECE_BYTES: Final = 64
"""Number of bytes that a piece of text takes in memory beside its characters."""
CALL_BYTES: Final = 1000
"""Number of bytes that a call takes in memory beside its texts."""
ARGUMENT_BYTES: Final = 24
"""Bytes in memory that a character of parsed arguments may take: a list takes three characters."""

UNREAD_PART: Final = "a part of the content is neither text nor reasoning"
"""The doubt that is reported for a part such as a picture."""


class BadAnswer(KintsugiError, ValueError):
    """A model's answer has a form that no engine writes."""


Doubt = Callable[[str, Any], object]
"""A callback that takes a description of a fault in an answer, and the faulty value."""


def read_count(usage: Mapping[str, Any], name: str) -> int | None:
    """Return a token count from an engine's `usage`, or None if there is no valid one."""
    value = usage.get(name)
    return value if type(value) is int and 0 <= value < 2**63 else None


def refuse(why: str, value: Any) -> NoReturn:
    """Raise BadAnswer. Readers that accept no faulty answer use it as their `doubt`."""
    quoted = f", got {str(value)[:40]!r}" if isinstance(value, str | int | float) else ""
    raise BadAnswer(why + quoted)


@dataclass(slots=True)
class CallPieces:
    """A tool call of which all or only the first pieces have arrived."""

    index: int | None = None
    id: str | None = None
    custom: bool = False
    """Whether it calls a custom tool, whose input is a text and not JSON."""
    names: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    value: Any = None
    """Arguments of a whole call that did not come as text: an object, or another JSON value."""
    raw_ids: list[str] = field(default_factory=list)
    """All ids that arrived, repeated ones included."""
    raw_names: list[str] = field(default_factory=list)
    """All pieces of the name that arrived, repeated ones included."""
    _name_length: int = 0
    _is_fragmented: bool = False
    """Whether the arguments are known to come in fragments that each repeat the name."""

    @property
    def name(self) -> str:
        """The name as far as it has arrived."""
        return "".join(self.names)

    @property
    def text(self) -> str:
        """The arguments as far as they have arrived, as text."""
        if self.value is None:
            return "".join(self.arguments)
        return self.value if isinstance(self.value, str) else _write(self.value)

    def add_name(self, piece: str) -> None:
        """Add a piece of the name: a fragment, or the whole name so far, perhaps with more."""
        self.raw_names.append(piece)
        # Compared with texts that are no longer than itself, the pieces take linear time.
        if len(piece) >= self._name_length and piece.startswith(self.name):
            self.names, self._name_length = [piece], len(piece)
        else:
            self.names.append(piece)
            self._name_length += len(piece)

    def is_over(self, name: Any, arguments: Any) -> bool:
        """Return whether a piece without an id begins another call: its name differs after
        arguments have begun, or the arguments are complete and begin again."""
        if not isinstance(name, str) or not name or not self.arguments:
            return False
        if len(name) != self._name_length or name != self.name:
            return True
        begins = not isinstance(arguments, str) or arguments.lstrip().startswith("{")
        if self._is_fragmented or not arguments or not begins:
            return False
        # At most one look at them for each call: another would cost the square of their number.
        self._is_fragmented = not _is_object(self.text)
        return not self._is_fragmented

    def build(self) -> ToolCall:
        """Return the complete call as a ToolCall."""
        if isinstance(self.value, dict) and not self.custom:  # checked when it was read
            return _make_call(self.name, self.value, self.id)
        arguments = self.text if self.value is None else self.value
        return build_call(self.name, arguments, self.id, self.custom)


def build_call(name: str, arguments: Any, id: str | None, custom: bool = False) -> ToolCall:
    """Return a ToolCall. The text input of a custom tool becomes its argument `input`."""
    return _make_call(name, parse_arguments({"input": arguments} if custom else arguments), id)


def _make_call(name: str, arguments: dict[str, Any] | str, id: str | None) -> ToolCall:
    return ToolCall(
        name=replace_half_pairs(name),
        arguments=arguments,
        id=None if id is None else replace_half_pairs(id),
    )


class _Fields(NamedTuple):
    """The name and arguments of a call or piece, from any of the wire's forms."""

    name: Any
    arguments: Any
    custom: bool


class MessageReader:
    """Reads one message of a model, either from the deltas of a stream or as a whole."""

    def __init__(
        self,
        doubt: Doubt = refuse,
        keep: Callable[[int], bool] = lambda _: True,
        max_calls: int | None = None,
    ) -> None:
        """Report malformed parts to `doubt`. Call `keep` with a number of bytes before storing as
        many; if it returns false, drop them. Leave out calls after the first `max_calls`."""
        self._doubt = doubt
        self._max_calls = max_calls
        self._keep = keep
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._refusals: list[str] = []
        self.calls: list[CallPieces] = []
        self._known: dict[Any, CallPieces] = {}
        """The last call for each index, each id, each pair of both, and each place in the list."""

    @property
    def text(self) -> str:
        """The text that has arrived, asides included."""
        return "".join(self._texts)

    @property
    def reasoning(self) -> str:
        """The reasoning that has arrived."""
        return "".join(self._thoughts)

    def collect_texts(self) -> tuple[str, ...]:
        """Return all that has arrived: text, reasoning, refusal, names and arguments of calls."""
        calls = (text for call in self.calls for text in (call.name, call.text))
        return self.text, self.reasoning, "".join(self._refusals), *calls

    def take(self, words: Mapping[str, Any], whole: bool = False) -> None:
        """Read one delta, or a complete message if `whole`. In a complete message each item of
        `tool_calls` is a separate call."""
        for name in ("content", "text"):
            content = words.get(name)
            if isinstance(content, str):
                self.add_text(content)
            elif content is not None:
                self._take_parts(content, name)
        if (thought := words.get("reasoning") or words.get("reasoning_content")) is not None:
            self.add_reasoning(thought)
        if (refusal := words.get("refusal")) is not None:
            self._add(self._refusals, refusal, "refusal")
        if calls := words.get("tool_calls"):
            for place, call in enumerate(self._read_objects(calls, "tool_calls")):
                self.take_call(call, place, whole)
        older = words.get("function_call")
        if any(older.values()) if isinstance(older, dict) else older is not None:
            self.take_call({"function": older}, "function_call", whole)

    def add_text(self, text: Any) -> None:
        """Add a piece of text."""
        self._add(self._texts, text, "text")

    def add_reasoning(self, text: Any) -> None:
        """Add a piece of reasoning: a text, or a list of parts."""
        words = read_monologue(text) if isinstance(text, list | dict) else text
        self._add(self._thoughts, text if words is None else words, "reasoning")

    def take_call(self, piece: Mapping[str, Any], place: int | str, whole: bool = False) -> None:
        """Read a call, or a piece of one; `place` is its position in the list of calls."""
        sent, id, index = self._read_call(piece), piece.get("id"), piece.get("index")
        if index is not None and (type(index) is not int or index < 0):
            self._doubt("a call has an index that is no number from 0", index)
            index = None
        id = id if isinstance(id, str) and id else None
        call = None if whole else self._find(index, id, place, sent)
        if call is None:
            if whole and sent.name is None:
                self._doubt("a tool call has neither `function` nor `name`; name its tool", None)
            if len(self.calls) == self._max_calls:
                self._doubt(f"a choice has more than {self._max_calls:,} tool calls", None)
                return
            if not self._keep(CALL_BYTES):
                return
            call = CallPieces()
            self.calls.append(call)
            if not whole:
                self._known["place", place] = call
        self._note(call, index, id, place)
        call.custom = call.custom or sent.custom
        self._take_name(call, sent.name)
        if whole and not isinstance(sent.arguments, str):
            self._take_value(call, sent.arguments)
        else:
            self._take_arguments(call, sent.arguments)

    def build_message(self) -> Message:
        """Return the message as far as it has arrived, with asides separated from the text."""
        aside, text = split_aside(self.text)
        text, reasoning = text or "".join(self._refusals), self.reasoning
        message = Message(
            role="assistant",
            content=replace_half_pairs(text) if text or not self.calls else None,
            tool_calls=tuple(call.build() for call in self.calls),
            reasoning=replace_half_pairs(reasoning) or None,
        )
        return message.with_aside(replace_half_pairs(aside) if aside else None)

    def build_calls_by_index(self) -> tuple[ToolCall, ...] | None:
        """Return the calls as clients see them that concatenate all pieces with one index, as
        OpenAI's own client does. Return None if the result would not differ."""
        groups: dict[int | None, list[CallPieces]] = {}
        for call in self.calls:
            groups.setdefault(call.index, []).append(call)
        again = any(call.raw_names != call.names or call.raw_ids[1:] for call in self.calls)
        if None in groups or (len(groups) == len(self.calls) and not again):
            return None
        return tuple(
            build_call(
                "".join(name for call in group for name in call.raw_names),
                "".join(call.text for call in group),
                "".join(id for call in group for id in call.raw_ids) or None,
                group[0].custom,
            )
            for group in groups.values()
        )

    def _take_parts(self, content: Any, name: str) -> None:
        read = read_content(content)
        if read.unread:
            known = isinstance(content, list) and all(isinstance(p, str | dict) for p in content)
            self._doubt(UNREAD_PART if known else f"{name} is no text", content)
        self.add_text(read.text)
        self.add_reasoning(read.reasoning)

    def _read_call(self, piece: Mapping[str, Any]) -> _Fields:
        for kind, field_name in (("function", "arguments"), ("custom", "input")):
            inner = piece.get(kind)
            if isinstance(inner, dict):
                return _Fields(inner.get("name"), inner.get(field_name), kind == "custom")
            if inner is not None:
                self._doubt(f"the {kind} of a call is no object", inner)
        return _Fields(piece.get("name"), piece.get("arguments"), False)

    def _find(
        self, index: int | None, id: str | None, place: int | str, sent: _Fields
    ) -> CallPieces | None:
        """Return the call that a piece continues, or None if the piece begins a new call."""
        known = self._known
        if id is not None:
            call = known.get((index, id)) or known.get(("id", id))
            if call is not None and (index is None or call.index in (None, index)):
                return call
        call = known.get(("place", place) if index is None else index)
        if call is None and index is not None:
            call = known.get(("place", place))
            call = call if call is not None and call.index is None else None
        if call is None:
            return None
        if id is not None and call.id is not None:
            # A call begins with the name of a tool.
            return call if index is not None and sent.arguments and not sent.name else None
        return None if call.is_over(sent.name, sent.arguments) else call

    def _note(self, call: CallPieces, index: int | None, id: str | None, place: int | str) -> None:
        known = self._known
        if ("place", place) in known:  # else there would be more places than calls
            known["place", place] = call
        if index is not None:
            call.index = index
            known[index] = call
        if id is not None and self._keep(PIECE_BYTES + len(id)):
            call.id = call.id or id
            known["id", id] = known[call.index, id] = call
            call.raw_ids.append(id)

    def _take_name(self, call: CallPieces, name: Any) -> None:
        if not isinstance(name, str):
            if name is not None:
                self._doubt("the name of a call is no text", name)
        elif name and self._keep(PIECE_BYTES + len(name)):
            call.add_name(name)

    def _take_value(self, call: CallPieces, arguments: Any) -> None:
        try:
            call.value = clean_json(arguments)
        except UnstorableJson as error:
            self._doubt(f"the arguments of a call: {error}", None)
            call.value = _write(arguments)

    def _take_arguments(self, call: CallPieces, arguments: Any) -> None:
        if arguments is None:
            return
        text = arguments if isinstance(arguments, str) else _write(arguments)
        if text and self._keep(PIECE_BYTES + len(text) * ARGUMENT_BYTES):
            call.arguments.append(text)

    def _add(self, pieces: list[str], text: Any, what: str) -> None:
        """Append `text` to `pieces` unless `keep` refuses more bytes."""
        if not isinstance(text, str):
            if text is not None:
                self._doubt(f"{what} is no text", text)
        elif text and self._keep(PIECE_BYTES + len(text)):
            pieces.append(text)

    def _read_objects(self, listed: Any, what: str) -> Iterable[Mapping[str, Any]]:
        objects = list_objects(listed)
        if not isinstance(listed, list) or len(objects) < len(listed):
            self._doubt(f"{what} is no list of objects", listed)
        return objects


def list_objects(listed: Any) -> list[dict[str, Any]]:
    """Return the dicts in a list, or an empty list if `listed` is no list."""
    return [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []


def _write(arguments: Any) -> str:
    """Return arguments that did not come as text in the same form as arguments from a stream."""
    try:
        return exact_json(clean_json(arguments))
    except UnstorableJson:
        text = parse_arguments(arguments)
        assert isinstance(text, str), "arguments that cannot be stored are no object"
        return text


def _is_object(text: str) -> bool:
    try:
        return isinstance(parse_json(text), dict)
    except UnstorableJson:
        return False
