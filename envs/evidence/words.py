"""The words and values of a text (pure). `words("Order O85, please.")` is {"order", "o85",
"please"}, `squeeze("Order O-85!")` is "ordero85", and `leaves({"a": [1, {"b": 2}]})` yields 1 and
2."""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from envs.task import TaskDefinition

WORD: Final = re.compile(r"\d+(?:\.\d+)+|[^\W_][\w#@+-]*(?:[.@][^\W_][\w@-]*)*|#\w+")
"""A number, an id, a mail address or a word, without punctuation around it."""

_THOUSANDS: Final = re.compile(r"(?<=\d),(?=\d{3}\b)")

_NOTHING: Final = re.compile(r"[^0-9a-z]+")
"""Characters that other spellings of a value may add or leave out."""


def collect_user_text(task: TaskDefinition) -> str:
    """Return the text of everything that the user may say: its scenario and its script."""
    script = task.script
    lines = () if script is None else (script.opening, *(answer.says for answer in script.answers))
    return "\n".join((task.scenario.text(), *lines))


def words(text: str) -> set[str]:
    """Return the words of a text, in lower case."""
    return {word.lower() for word in split_words(text)}


def split_words(text: str) -> list[str]:
    """Return the words of a text in their own spelling. `1,000` also counts as 1000."""
    plain = _THOUSANDS.sub("", text)
    return WORD.findall(text) + (WORD.findall(plain) if plain != text else [])


def squeeze(text: str) -> str:
    """Return the letters and digits of a text, in lower case."""
    return _NOTHING.sub("", text.lower())


squeeze_word = lru_cache(maxsize=4096)(squeeze)
"""`squeeze` with a cache, for short texts that come often."""


def leaves(value: Any) -> Iterator[Any]:
    """Yield the single values inside an argument."""
    if isinstance(value, Mapping):
        for item in value.values():
            yield from leaves(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from leaves(item)
    else:
        yield value
