"""Describe the fault of a wrong call in two sentences. They follow from the tool's error and the
difference from the right call, so that a small model can learn them. Example: "The call of
get_order failed: no such order. order_id was O7 and must be O12."
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from envs.database import ABSENT
from envs.reflection.parse import parse
from events.canonical import exact_json
from events.messages import Action, ToolCall

TOOL: Final = "tool"
"""Key of a difference in the tool, not in an argument."""

MOST_CHARACTERS: Final = 2000
"""Largest number of characters of a reflection."""
_MOST_CAUSE: Final = 200
"""Number of characters that are quoted of a tool's error."""

_TAG: Final = re.compile(r"</?\s*(think|reflect|tool_call|final)\b[^>]*>?", re.IGNORECASE)
_HALF_PAIR: Final = re.compile("[\ud800-\udfff]")
_PREFIXES: Final = ("Error during execution: ", "Error: ")
_PLAIN: Final = re.compile(r"(?!(?:true|false|null)$)[A-Za-z#@_][\w#@.+:/-]*")
"""Texts that may be written without quotes, because they cannot be read as another JSON value."""


# One encoder for all calls: json.dumps with options would build one at every call.
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, sort_keys=True)


@dataclass(frozen=True, slots=True)
class Change:
    """One key in which a wrong call differs from the right one, with both values."""

    key: str
    wrong: Any
    """`ABSENT` if the wrong call lacks the argument."""
    right: Any
    """`ABSENT` if the right call lacks the argument."""


def find_changes(wrong: ToolCall, right: ToolCall | Action) -> tuple[Change, ...]:
    """Return the differences between two calls: the tool, or else each argument that differs.
    Arguments that are no JSON object count as none."""
    if wrong.name != right.name:
        return (Change(TOOL, wrong.name, right.name),)
    before = wrong.arguments if isinstance(wrong.arguments, dict) else {}
    after = right.arguments if isinstance(right.arguments, dict) else {}
    return tuple(
        Change(key, before.get(key, ABSENT), after.get(key, ABSENT))
        for key in {**after, **before}
        if not _is_equal(before.get(key, ABSENT), after.get(key, ABSENT))
    )


def _is_equal(value: Any, other: Any) -> bool:
    if value is ABSENT or other is ABSENT:
        return value is other
    if isinstance(value, str) and isinstance(other, str):
        return value == other
    return exact_json(value) == exact_json(other)


def describe_mistake(tool: str, cause: str | None, is_repeated: bool) -> str:
    """Return the sentence about the wrong call; `cause` is the tool's own error."""
    if cause is None:
        return f"{tool} was called twice." if is_repeated else f"The call of {tool} was wrong."
    if is_repeated:
        return f"{tool} was called twice, and the second call failed: {cause}."
    return f"The call of {tool} failed: {cause}."


def describe_changes(changes: Sequence[Change]) -> str:
    """Return the sentence about the correction, with each key and its wrong and right value."""
    return f"{', '.join(_describe_change(change) for change in changes)}."


def _describe_change(change: Change) -> str:
    if change.key == TOOL:
        return f"The tool was {change.wrong} and must be {change.right}"
    wrong = "missing" if change.wrong is ABSENT else write_value(change.wrong)
    right = "left out" if change.right is ABSENT else write_value(change.right)
    return f"{change.key} was {wrong} and must be {right}"


def write_value(value: Any) -> str:
    """Return a simple text without quotes, and any other value as JSON: "5" differs from 5."""
    if isinstance(value, str) and _PLAIN.fullmatch(value):
        return value
    return _ENCODER.encode(value)


def find_cause(error: str) -> str:
    """Return the beginning of a tool's error, without tags, as a part of a sentence."""
    text = _read_error(error)
    for prefix in _PREFIXES:
        text = text.removeprefix(prefix)
    text = _TAG.sub("", " ".join(text.split()))
    return text[:_MOST_CAUSE].rstrip(" .") or "no reason was given"


def _read_error(text: str) -> str:
    if not text.startswith("{"):
        return text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    error = value.get("error") if isinstance(value, dict) else None
    return error if isinstance(error, str) and error else text


def find_unnamed(reflection: str, changes: Sequence[Change], with_values: bool = True) -> list[str]:
    """Return the differing keys that a reflection does not name. With `with_values`, also return
    keys of which it lacks the wrong or right value. A differing tool needs both tools' names."""
    unnamed = []
    for change in changes:
        parts = [change.wrong, change.right] if change.key == TOOL else [change.key]
        if with_values and change.key != TOOL:
            values = (value for value in (change.wrong, change.right) if value is not ABSENT)
            parts += [write_value(value) for value in values]
        if not all(_has(reflection, str(part)) for part in parts):
            unnamed.append(change.key)
    return unnamed


def _has(reflection: str, part: str) -> bool:
    """Return whether `part` stands in a text as a separate word."""
    begin = reflection.find(part)
    while begin >= 0:
        end = begin + len(part)
        before, behind = reflection[max(0, begin - 1) : begin], reflection[end : end + 1]
        if not _is_word(before) and not _is_word(behind):
            return True
        begin = reflection.find(part, begin + 1)
    return False


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


def find_fault(reflection: str) -> str | None:
    """Return the reason why a text is not well-formed as a reflection, or None."""
    if not reflection.strip():
        return "it is empty"
    if len(reflection) > MOST_CHARACTERS:
        return f"it has {len(reflection):,} characters; {MOST_CHARACTERS:,} may be"
    if (tag := _TAG.search(reflection)) is not None:
        return f"it has the tag {tag[0][:40]}"
    if has_half_pair(reflection):
        return "it has half of a surrogate pair, which is no character"
    if reflection != reflection.strip():
        return "it begins or ends with white space"
    if parse(reflection).calls or _quotes_call(reflection):
        return "it has the JSON of a call"
    return None


def has_half_pair(text: str) -> bool:
    """Return whether a text has half of a surrogate pair, so that it cannot be stored."""
    return not text.isascii() and _HALF_PAIR.search(text) is not None


def _quotes_call(text: str) -> bool:
    return re.search(r'"name"\s*:[\s\S]*"(arguments|parameters)"\s*:', text) is not None
