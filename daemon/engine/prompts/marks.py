"""Mark what may begin a control string in the texts of a conversation.

    mark = choose_mark(conversation.join_texts())
    marked = put_mark(message, pattern, mark)           behind each match in each string of it
    rendering = read_marks(text, mark)                  of the marked messages, as a template wrote

A mark is digits that no text holds: templates trim, join, escape and JSON-encode them like other
text, so what a template joined to a text or took out of it is seen as well.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate, count
from typing import Any, Final

_PROTOCOL: Final = frozenset({"role", "type"})
"""Keys of words that templates compare."""
_DIGITS: Final = 8
"""Digits of a mark. A request is too short to hold all numbers of so many."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """The input of a chat template."""

    messages: Sequence[dict[str, Any]]
    tools: Sequence[dict[str, Any]]
    variables: dict[str, Any]

    def join_texts(self) -> str:
        """Return all its strings."""
        return "\0".join(_list_texts((self.messages, self.tools, self.variables)))


@dataclass(frozen=True, slots=True)
class Rendering:
    """A conversation as its template writes it."""

    text: str
    marks: Sequence[int] = ()
    """Ascending positions in the text; a control string around one is no control token."""

    def cut(self, begin: int) -> "Rendering":
        """Return the rendering from a position on."""
        kept = self.marks[bisect_right(self.marks, begin) :]
        return Rendering(self.text[begin:], [mark - begin for mark in kept])


def _list_texts(value: Any) -> Iterator[str]:
    """Yield the strings of a JSON value, keys included, however deep it is."""
    values = [value]
    while values:
        item = values.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            values += item
            values += item.values()
        elif isinstance(item, list | tuple):
            values += item


def put_mark(value: Any, before: re.Pattern[str], mark: str) -> Any:
    """Return a value of JSON with a mark behind each match in its strings."""
    match value:
        case str():
            return before.sub(rf"\g<0>{mark}", value)
        case dict():
            return {
                _mark_key(key, before, mark): field
                if key in _PROTOCOL and isinstance(field, str) and field.isidentifier()
                else put_mark(field, before, mark)
                for key, field in value.items()
            }
        case list() | tuple():
            return [put_mark(item, before, mark) for item in value]
    return value


def _mark_key(key: Any, before: re.Pattern[str], mark: str) -> Any:
    """Return a marked key; identifiers, which templates ask for, stay."""
    return key if str(key).isidentifier() else put_mark(key, before, mark)


def choose_mark(texts: str) -> str:
    """Return digits that the texts do not hold, determined by all of them."""
    digest = sha256(texts.encode(errors="surrogatepass")).digest()
    trials = (sha256(digest + b"%d" % number).digest() for number in count())
    marks = (str(int.from_bytes(trial))[-_DIGITS:] for trial in trials)
    return next(mark for mark in marks if mark not in texts)


def read_marks(text: str, mark: str) -> Rendering:
    """Return a text without its marks, and their places."""
    parts = text.split(mark)
    lengths = accumulate(map(len, parts[:-1]))
    return Rendering("".join(parts), list(lengths))
