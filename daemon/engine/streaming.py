"""Tokens to the pieces of an answer, as they are written.

    token -> text -> text before a stop string -> words and tool calls
             Detokenizer  StopStrings             ToolCallStream

`Answer` is the three in a row, for one choice; it has no clock and no I/O. Guarantees, for any
tokens and however the text is cut: pieces are never taken back, and joined they are the whole text;
half a character is held back until the rest comes. A text with tool calls gives the message that
`chat.parse_answer` makes of the whole. So nothing after a `<tool_call>` is given out before the
answer ends: only then it is known whether every call can be read.
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from daemon.engine.chat import parse_answer
from events.messages import Message

Decode = Callable[[Sequence[int]], str]

Reason = Literal["stop", "length", "tool_calls"]

_OPEN: Final = "<tool_call>"
_BROKEN: Final = "\ufffd"
"""A tokenizer's text for bytes that are no character (yet)."""
_LONGEST_CHARACTER: Final = 4
"""Bytes of the longest character; a token has one byte or more."""
_BYTE: Final = re.compile("<0x[0-9A-Fa-f]{2}>")


def byte_tokens(vocabulary: Iterable[tuple[str, int]]) -> frozenset[int]:
    """Return the ids that stand for one byte where a tokenizer falls back to bytes."""
    return frozenset(number for token, number in vocabulary if _BYTE.fullmatch(token))


class Detokenizer:
    """Ids to text one by one, but runs of bytes whole: a wrong byte makes a run unreadable."""

    def __init__(self, decode: Decode, bytes_: frozenset[int] = frozenset()) -> None:
        self._decode = decode
        self._bytes = bytes_
        self._window: list[int] = []
        """The last ids: first some whose text was given out, as context."""
        self._given = 0

    def push(self, token: int) -> str:
        """Take a token and return the text that is certain now."""
        self._window.append(token)
        if token in self._bytes:
            return ""
        text = self._new()
        if text.endswith(_BROKEN):
            return self._release_bytes() if self._is_too_long() else ""
        self._window = self._window[self._given :]
        self._given = len(self._window)
        return text

    def _is_too_long(self) -> bool:
        return len(self._window) - self._given > _LONGEST_CHARACTER

    def _release_bytes(self) -> str:
        """Return the text of all ids but the last ones, or "" where that would cut a character."""
        before, held = self._window[:-_LONGEST_CHARACTER], self._window[-_LONGEST_CHARACTER:]
        text = self._decode(before)
        if text + self._decode(held) != self._decode(self._window):
            return ""
        new = text[len(self._decode(self._window[: self._given])) :]
        self._window = self._window[self._given :]
        self._given = len(self._window) - _LONGEST_CHARACTER
        return new

    def flush(self) -> str:
        """Return the rest, even if unreadable."""
        text = self._new()
        self._given = len(self._window)
        return text

    def _new(self) -> str:
        before = self._decode(self._window[: self._given])
        return self._decode(self._window)[len(before) :]


class StopStrings:
    """Passes text on up to the first of some strings, which may arrive in pieces."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = tuple(strings)
        self._held = ""
        self.found: str | None = None

    def push(self, piece: str) -> str:
        """Return the text that is certainly before any of the strings."""
        if self.found is not None:
            return ""
        text = self._held + piece
        places = {string: text.find(string) for string in self._strings}
        matches = [string for string, place in places.items() if place >= 0]
        if matches:
            # The one that was complete first; of two that end together, the longer.
            self.found = min(matches, key=lambda s: (places[s] + len(s), -len(s)))
            self._held = ""
            return text[: places[self.found]]
        kept = max((overlap(text, string) for string in self._strings), default=0)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def flush(self) -> str:
        """Return what was held back for a string that did not come."""
        held, self._held = self._held, ""
        return held


def overlap(text: str, string: str) -> int:
    """Return how many last characters of a text begin a string, the whole string not counted."""
    most = min(len(text), len(string) - 1)
    return next((n for n in range(most, 0, -1) if text.endswith(string[:n])), 0)


@dataclass(frozen=True, slots=True)
class Words:
    """Next piece of the content."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """Start of a tool call, whose arguments follow."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """Arguments of a tool call, as JSON."""

    index: int
    text: str


Delta = Words | CallStart | CallArguments


class ToolCallStream:
    """Passes on a text in pieces that may hold tool calls."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._given = 0
        self._space: list[str] = []
        """White space after the words given out, dropped if a call follows."""
        self._held = ""
        """Text after that, which may begin a call."""

    def push(self, piece: str) -> list[Delta]:
        """Return the words that are certainly words."""
        self._pieces.append(piece)
        if self._held == _OPEN:
            return []
        text = self._held + piece
        opened = text.find(_OPEN)
        end = opened if opened >= 0 else len(text) - overlap(text, _OPEN)
        self._held = text[end : end + len(_OPEN)]
        words = text[:end].rstrip()
        space = text[len(words) : end]
        if not words:
            self._space.append(space)
            return []
        words = "".join([*self._space, words])
        self._space = [space]
        self._given += len(words)
        return [Words(words)]

    def flush(self) -> list[Delta]:
        """Return the rest of the words, then the calls."""
        message = parse_answer("".join(self._pieces))
        words = message.text[self._given :]
        return [*([Words(words)] if words else []), *calls(message)]


def calls(message: Message) -> list[Delta]:
    """Return a message's tool calls as they are streamed."""
    pieces: list[Delta] = []
    for index, call in enumerate(message.tool_calls):
        pieces.append(CallStart(index, call.name))
        pieces.append(CallArguments(index, json.dumps(call.arguments, ensure_ascii=False)))
    return pieces


class Answer:
    """One choice while it is written: takes tokens, returns pieces."""

    def __init__(
        self,
        decode: Decode,
        *,
        byte_ids: frozenset[int] = frozenset(),
        stops: Sequence[str] = (),
        tools: bool = False,
    ) -> None:
        """`tools`: whether tool calls are read; otherwise they are words."""
        self._detokenizer = Detokenizer(decode, byte_ids)
        self._stops = StopStrings(stops)
        self._spoken = ToolCallStream() if tools else None
        self.finish: Reason | None = None

    @property
    def stop_string(self) -> str | None:
        """Stop string that ended it."""
        return self._stops.found

    def take(self, token: int, finish: Literal["stop", "length"] | None) -> list[Delta]:
        """Take the next token; `finish` is set for the last. A token that stops is no text."""
        text = "" if finish == "stop" else self._detokenizer.push(token)
        if finish is not None:
            text += self._detokenizer.flush()
        text = self._stops.push(text)
        if self._stops.found is not None:
            return self._end(text, "stop")
        return self._more(text) if finish is None else self._end(text + self._stops.flush(), finish)

    def _more(self, text: str) -> list[Delta]:
        if self._spoken is not None:
            return self._spoken.push(text)
        return [Words(text)] if text else []

    def _end(self, text: str, finish: Literal["stop", "length"]) -> list[Delta]:
        pieces = self._more(text)
        pieces += self._spoken.flush() if self._spoken is not None else []
        called = any(isinstance(piece, CallStart) for piece in pieces)
        # An answer that was cut off is never called complete.
        self.finish = "tool_calls" if called and finish == "stop" else finish
        return pieces
