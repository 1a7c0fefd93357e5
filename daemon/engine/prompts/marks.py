"""Mark the characters in a conversation's texts that may begin a control string.

    mark = choose_mark(conversation.join_texts())
    marked = put_mark(message, pattern, mark)           behind each match in each string of it
    rendering = read_marks(text, mark)                  of the marked messages, as a template wrote

A mark is a string of digits that no text contains. Templates trim, join, escape and JSON-encode
digits like other text. So marks show which parts of a rendering come from texts.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate, count
from typing import Any, Final

_PROTOCOL: Final = frozenset({"role", "type"})
"""Keys whose values are words of the protocol, which templates compare; they get no mark."""
_DIGITS: Final = 8
"""Number of digits of a mark. No request is long enough to contain all numbers of this length."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """The input of a chat template: messages, tools and other variables."""

    messages: Sequence[dict[str, Any]]
    tools: Sequence[dict[str, Any]]
    variables: dict[str, Any]

    def join_texts(self) -> str:
        """Return all strings of the conversation, joined by zero characters."""
        return "\0".join(_list_texts((self.messages, self.tools, self.variables)))


@dataclass(frozen=True, slots=True)
class Rendering:
    """A conversation as text, written by a chat template."""

    text: str
    marks: Sequence[int] = ()
    """Ascending positions in `text`. A control string around such a position is ordinary text."""

    def cut(self, begin: int) -> "Rendering":
        """Return the part of the rendering from position `begin` on."""
        kept = self.marks[bisect_right(self.marks, begin) :]
        return Rendering(self.text[begin:], [mark - begin for mark in kept])


def _list_texts(value: Any) -> Iterator[str]:
    """Yield all strings in a JSON value of any depth, including keys."""
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
    """Return a JSON value with `mark` after each match of the pattern `before` in its strings."""
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
    """Return a key with marks. Identifiers stay as they are, since templates look them up."""
    return key if str(key).isidentifier() else put_mark(key, before, mark)


def choose_mark(texts: str) -> str:
    """Return a string of digits that is not in `texts`. Equal texts give the same digits."""
    digest = sha256(texts.encode(errors="surrogatepass")).digest()
    trials = (sha256(digest + b"%d" % number).digest() for number in count())
    marks = (str(int.from_bytes(trial))[-_DIGITS:] for trial in trials)
    return next(mark for mark in marks if mark not in texts)


def read_marks(text: str, mark: str) -> Rendering:
    """Return a marked text as a rendering: the text without the marks, and their positions."""
    parts = text.split(mark)
    lengths = accumulate(map(len, parts[:-1]))
    return Rendering("".join(parts), list(lengths))
