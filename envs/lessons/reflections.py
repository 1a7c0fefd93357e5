"""Say how a call was wrong, in two sentences that follow from the tool's error and the difference
of the two calls, so that a small model can learn them ("The call of get_order failed: no such
order. order_id was O7 and must be O12.")."""

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
"""Key of the difference of two calls of different tools."""

MOST_CHARACTERS: Final = 2000
"""Longest reflection."""
_MOST_CAUSE: Final = 200
"""Characters of a tool's error that are quoted."""

_TAG: Final = re.compile(r"</?\s*(think|reflect|tool_call|final)\b[^>]*>?", re.IGNORECASE)
_HALF_PAIR: Final = re.compile("[\ud800-\udfff]")
_PREFIXES: Final = ("Error during execution: ", "Error: ")
_PLAIN: Final = re.compile(r"(?!(?:true|false|null)$)[A-Za-z#@_][\w#@.+:/-]*")
"""Texts that are written without quotes: none of them is read as another value."""


# Made once: json.dumps with options would build an encoder at every call.
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, sort_keys=True)


@dataclass(frozen=True, slots=True)
class Change:
    """One key in which a wrong call differs from the right one."""

    key: str
    wrong: Any
    """`ABSENT` where the wrong call lacks it."""
    right: Any
    """`ABSENT` where the right call has no such argument."""


def find_changes(wrong: ToolCall, right: ToolCall | Action) -> tuple[Change, ...]:
    """Return where two calls differ: in the tool, or else in arguments. Arguments that are no JSON
    object differ in each of the right call."""
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
    """Return the sentence on what happened; `cause` is the tool's own error."""
    if cause is None:
        return f"{tool} was called twice." if is_repeated else f"The call of {tool} was wrong."
    if is_repeated:
        return f"{tool} was called twice, and the second call failed: {cause}."
    return f"The call of {tool} failed: {cause}."


def describe_changes(changes: Sequence[Change]) -> str:
    """Return the sentence on what has to be changed, with every key, wrong and right value."""
    return f"{', '.join(_describe_change(change) for change in changes)}."


def _describe_change(change: Change) -> str:
    if change.key == TOOL:
        return f"The tool was {change.wrong} and must be {change.right}"
    wrong = "missing" if change.wrong is ABSENT else write_value(change.wrong)
    right = "left out" if change.right is ABSENT else write_value(change.right)
    return f"{change.key} was {wrong} and must be {right}"


def write_value(value: Any) -> str:
    """Return a plain text as it is, and any other value as JSON, so that "5" differs from 5."""
    if isinstance(value, str) and _PLAIN.fullmatch(value):
        return value
    return _ENCODER.encode(value)


def find_cause(error: str) -> str:
    """Return a tool's error as a part of a sentence: its first words, without tags."""
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
    """Return the differing keys that a reflection does not name; for two tools, both names. With
    `with_values`, also those of which it lacks the wrong or the right value."""
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
    """Return whether a part stands in a text as a word of its own."""
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
    """Return why a text is no reflection; None where it is one."""
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
    """Return whether a text has half of a surrogate pair: it cannot be stored."""
    return not text.isascii() and _HALF_PAIR.search(text) is not None


def _quotes_call(text: str) -> bool:
    return re.search(r'"name"\s*:[\s\S]*"(arguments|parameters)"\s*:', text) is not None
