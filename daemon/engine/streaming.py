"""Turn the tokens of an answer into pieces of text and tool calls, while they are written.

    token -> text -> text before a stop string -> words and tool calls
             Detokenizer  StopStrings             ToolCallStream

`Answer` applies the three in this order, for one choice; it has no clock and no I/O. Guarantees,
for any tokens and any division of the text: no piece is taken back, and all pieces joined are the
whole text. A part of a character is held back until the rest comes. A text with tool calls gives
the same message as `chat.parse_answer` on the whole text. So nothing after a `<tool_call>` is
returned before the answer ends, when it is known whether every call can be parsed.
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
"""Text that a tokenizer gives for bytes that are not a (complete) character."""
_LONGEST_CHARACTER: Final = 4
"""Number of bytes of the longest character; every token has at least one byte."""
_BYTE: Final = re.compile("<0x[0-9A-Fa-f]{2}>")


def byte_tokens(vocabulary: Iterable[tuple[str, int]]) -> frozenset[int]:
    """Return the ids of a vocabulary's tokens for single bytes, such as `<0x0A>`."""
    return frozenset(number for token, number in vocabulary if _BYTE.fullmatch(token))


class Detokenizer:
    """Turns ids into text. Runs of byte tokens are decoded whole: one wrong byte spoils a run."""

    def __init__(self, decode: Decode, bytes_: frozenset[int] = frozenset()) -> None:
        self._decode = decode
        self._bytes = bytes_
        self._window: list[int] = []
        """The last ids. The first `_given` of them are context: their text was returned before."""
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
        """Return the new text of all but the last ids, or "" if that would cut a character."""
        before, held = self._window[:-_LONGEST_CHARACTER], self._window[-_LONGEST_CHARACTER:]
        text = self._decode(before)
        if text + self._decode(held) != self._decode(self._window):
            return ""
        new = text[len(self._decode(self._window[: self._given])) :]
        self._window = self._window[self._given :]
        self._given = len(self._window) - _LONGEST_CHARACTER
        return new

    def flush(self) -> str:
        """Return the text that was held back, even if bytes of it are not a character."""
        text = self._new()
        self._given = len(self._window)
        return text

    def _new(self) -> str:
        before = self._decode(self._window[: self._given])
        return self._decode(self._window)[len(before) :]


class StopStrings:
    """Passes text on until one of the stop strings, which may arrive in several pieces."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = tuple(strings)
        self._held = ""
        self.found: str | None = None

    def push(self, piece: str) -> str:
        """Return the text that is certain to be before any stop string."""
        if self.found is not None:
            return ""
        text = self._held + piece
        places = {string: text.find(string) for string in self._strings}
        matches = [string for string, place in places.items() if place >= 0]
        if matches:
            # The string that was complete first; of two that end at one place, the longer one.
            self.found = min(matches, key=lambda s: (places[s] + len(s), -len(s)))
            self._held = ""
            return text[: places[self.found]]
        kept = max((overlap(text, string) for string in self._strings), default=0)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def flush(self) -> str:
        """Return the text that was held back because it might have begun a stop string."""
        held, self._held = self._held, ""
        return held


def overlap(text: str, string: str) -> int:
    """Return the length of the longest end of `text` that begins `string`, but is not all of it."""
    most = min(len(text), len(string) - 1)
    return next((n for n in range(most, 0, -1) if text.endswith(string[:n])), 0)


@dataclass(frozen=True, slots=True)
class Words:
    """The next piece of the answer's text outside of tool calls."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """The start of a tool call; `CallArguments` with the same index follows."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """All arguments of a tool call, as JSON."""

    index: int
    text: str


Delta = Words | CallStart | CallArguments


class ToolCallStream:
    """Separates words from tool calls in a text that arrives in pieces."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._given = 0
        self._space: list[str] = []
        """White space after the returned words; it is dropped if a call follows."""
        self._held = ""
        """Text after the white space that begins, or may begin, a call."""

    def push(self, piece: str) -> list[Delta]:
        """Return the text that is certain to be outside of a tool call."""
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
        """Return the rest of the words, then the tool calls of the whole text."""
        message = parse_answer("".join(self._pieces))
        words = message.text[self._given :]
        return [*([Words(words)] if words else []), *calls(message)]


def calls(message: Message) -> list[Delta]:
    """Return a message's tool calls as the deltas of a stream."""
    pieces: list[Delta] = []
    for index, call in enumerate(message.tool_calls):
        pieces.append(CallStart(index, call.name))
        pieces.append(CallArguments(index, json.dumps(call.arguments, ensure_ascii=False)))
    return pieces


class Answer:
    """Turns the tokens of one choice, as they are written, into pieces of the answer."""

    def __init__(
        self,
        decode: Decode,
        *,
        byte_ids: frozenset[int] = frozenset(),
        stops: Sequence[str] = (),
        tools: bool = False,
    ) -> None:
        """With `tools`, tool calls are parsed; otherwise they stay words."""
        self._detokenizer = Detokenizer(decode, byte_ids)
        self._stops = StopStrings(stops)
        self._spoken = ToolCallStream() if tools else None
        self.finish: Reason | None = None

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the answer; None if none did."""
        return self._stops.found

    def take(self, token: int, finish: Literal["stop", "length"] | None) -> list[Delta]:
        """Return a token's pieces; only the last token has a `finish`. A stop token has no text."""
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
        # If the answer was cut off, its finish stays "length", even with tool calls.
        self.finish = "tool_calls" if called and finish == "stop" else finish
        return pieces
