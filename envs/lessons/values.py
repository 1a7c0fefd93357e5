"""The values that an agent has seen at a place: words, and values of arguments and results.

    seen.has("O12")                     whether it was said, called with, or answered
    seen.find_others("order_id", "O12") other values of its kind, such as O7

Values are of one kind if seen under one name, or if they differ in digits alone (`#W12`, `#W7`).
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from envs.evidence.words import leaves
from events.messages import Message

_WORD: Final = re.compile(r"[\w#@][\w#@.+:-]*")
_DIGITS: Final = re.compile(r"\d+")


class SeenValues:
    """The words and values in a conversation."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._texts: list[str] = []
        self._words: set[str] = set()
        self._by_name: dict[str, dict[str, None]] = {}
        self._by_kind: dict[str, dict[str, None]] = {}
        for message in messages:
            if message.role != "system":
                self._see(message)

    def has(self, value: Any) -> bool:
        """Return whether every text inside a value was seen. Numbers count as seen."""
        return all(self._has_text(text) for text in find_texts(value))

    def find_others(self, name: str, value: Any) -> list[str]:
        """Return other seen values of the same kind, in order; `name` is the argument's name."""
        others: dict[str, None] = {}
        for key in _list_names(name):
            others |= self._by_name.get(key, {})
        if isinstance(value, str) and (kind := _get_kind(value)) is not None:
            others |= self._by_kind.get(kind, {})
        return [other for other in others if other != value]

    def list_texts(self) -> list[str]:
        """Return every seen value that has a digit, grouped by kind."""
        return [value for values in self._by_kind.values() for value in values]

    def _has_text(self, text: str) -> bool:
        lowered = text.lower()
        if lowered in self._words:
            return True
        # A part of a word is another word: seeing O30 is not seeing O3.
        return not _WORD.fullmatch(text) and any(lowered in seen for seen in self._texts)

    def _see(self, message: Message) -> None:
        for call in message.tool_calls:
            if isinstance(call.arguments, dict):
                for name, value in _list_values("", call.arguments):
                    self._note(name, value)
        text = message.text
        if not text:
            return
        lowered, words, kinds, values = _read_text(text, message.role == "tool")
        self._texts.append(lowered)
        self._words |= words
        for kind, value in kinds:
            self._by_kind.setdefault(kind, {})[value] = None
        for name, value in values:
            self._note(name, value)

    def _note(self, name: str, value: str) -> None:
        self._words.add(value.lower())
        self._by_name.setdefault(name, {})[value] = None
        if (kind := _get_kind(value)) is not None:
            self._by_kind.setdefault(kind, {})[value] = None


@lru_cache(maxsize=1024)
def _read_text(
    text: str, is_result: bool
) -> tuple[str, frozenset[str], tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]:
    """Return the lower-case text, its words, its words with digits by kind, and a result's
    values."""
    words = [word.rstrip(".:-+") for word in _WORD.findall(text)]
    kinds = tuple((kind, word) for word in words if (kind := _get_kind(word)) is not None)
    values: tuple[tuple[str, str], ...] = ()
    if is_result and text[0] in "{[":
        try:
            values = tuple(_list_values("", json.loads(text)))
        except (ValueError, RecursionError):
            values = ()
    return text.lower(), frozenset(word.lower() for word in words), kinds, values


def _list_values(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield (name, text) for each text in a value. Keys of an object with a plural name count
    too."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if name.endswith("s"):
                yield name, str(key)
            yield from _list_values(str(key), item)
    elif isinstance(value, list):
        for item in value:
            yield from _list_values(name, item)
    elif isinstance(value, str) and value:
        yield name, value


def find_texts(value: Any) -> Iterator[str]:
    """Yield the texts inside an argument."""
    return (leaf for leaf in leaves(value) if isinstance(leaf, str))


def _list_names(name: str) -> Iterable[str]:
    stem = name.removesuffix("_ids").removesuffix("_id")
    return (name, f"{name}s", f"{stem}s", stem, f"{stem}_id")


def _get_kind(value: str) -> str | None:
    """Return a word with 9 in place of each number. Return None for several words or no digit."""
    if " " in value:
        return None
    kind = _DIGITS.sub("9", value)
    return None if kind == value and "9" not in value else kind
