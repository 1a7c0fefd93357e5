"""Checks JSON that a model, a customer or a tool wrote; all its readers use this module.

Guarantee: a value that passes can be stored and read back: strict JSON, finite numbers in double
precision, at most `MAX_DEPTH` levels, texts that UTF-8 can encode. Anything else raises
UnstorableJson and no other error, at any depth. Not covered: how large a value is.
"""

import json
import math
import re
import sys
from typing import Any, Final, NoReturn

from events.canonical import exact_json
from events.errors import KintsugiError
from events.json_text.size import find_excess

MAX_DEPTH: Final = 100
"""Most levels of nesting, leaves included. Pydantic reads at most 200, and an event adds a few."""

_LISTS: Final = (list, tuple)
"""List types for isinstance. A tuple, because each `list | tuple` makes a new object."""

_LARGEST_INTEGER: Final = int(sys.float_info.max)
_HALF_PAIR: Final = re.compile("[\ud800-\udfff]")
_ESCAPED_HALF: Final = re.compile(r"\\u[dD][89a-fA-F]")


class UnstorableJson(KintsugiError, ValueError):
    """A text is no JSON, or its value cannot be stored and read back."""


def parse_arguments(raw: Any) -> dict[str, Any] | str:
    """Return a call's arguments as an object, or as the caller's text if they are none. `raw` is
    JSON text or parsed. U+FFFD replaces each half of a surrogate pair. Null and blank text, also as
    a JSON value, become an empty object: callers write them for a tool without arguments."""
    if _is_blank(raw):
        return {}
    try:
        value = _parse_small(raw) if isinstance(raw, str) else clean_json(raw)
    except UnstorableJson:
        return replace_half_pairs(raw if isinstance(raw, str) else _write(raw))
    if isinstance(value, dict):
        return value
    if _is_blank(value):
        return {}
    return replace_half_pairs(raw) if isinstance(raw, str) else _write(value)


def parse_json(text: str, levels: int = MAX_DEPTH) -> Any:
    """Return the value of a JSON text of at most `levels` levels, with U+FFFD for half surrogates.
    The last of equal keys counts, as in `json`. Raises UnstorableJson."""
    try:
        value = _DECODER.decode(replace_half_pairs(text))
    except RecursionError as error:
        raise _too_deep(levels) from error
    except UnstorableJson:
        raise
    except json.JSONDecodeError as error:
        raise UnstorableJson(f"it is no JSON: {error}") from error
    except ValueError as error:
        # Python converts integers of at most `sys.get_int_max_str_digits` digits.
        raise _too_large() from error
    check_json(value, levels)
    return _replace_in(value) if _ESCAPED_HALF.search(text) else value


def clean_json(value: Any) -> Any:
    """Return a value with U+FFFD for each half of a surrogate pair. Raises UnstorableJson."""
    check_json(value)
    return _replace_in(value)


def check_json(value: Any, levels: int = MAX_DEPTH) -> None:
    """Raise UnstorableJson for more than `levels` levels, or a number that no double can hold."""
    level = [value]
    for _ in range(levels):
        level = _list_children(level)
        if not level:
            return
    raise _too_deep(levels)


def replace_half_pairs(text: str) -> str:
    """Return `text` with U+FFFD in the place of each half of a surrogate pair: no UTF-8 has one."""
    return text if text.isascii() else _HALF_PAIR.sub("\ufffd", text)


def has_half_pair(value: Any) -> bool:
    """Return whether a text in a value, or a key, has half of a surrogate pair."""
    values = [value]
    for item in values:
        if isinstance(item, str):
            if not item.isascii() and _HALF_PAIR.search(item):
                return True
        elif isinstance(item, dict):
            values += item
            values += item.values()
        elif isinstance(item, _LISTS):
            values += item
    return False


def _parse_small(text: str) -> Any:
    """Return the value of a JSON text within a request's limits. Raises UnstorableJson."""
    excess = find_excess(text)
    if excess is not None:
        raise UnstorableJson(f"it has {excess}; write less of them")
    return parse_json(text)


def _is_blank(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _list_children(level: list[Any]) -> list[Any]:
    children: list[Any] = []
    for item in level:
        if isinstance(item, str):
            continue
        if isinstance(item, dict):
            children.extend(item.values())
        elif isinstance(item, _LISTS):
            children.extend(item)
        elif isinstance(item, int):
            if not -_LARGEST_INTEGER <= item <= _LARGEST_INTEGER:
                raise _too_large()
        elif isinstance(item, float) and not math.isfinite(item):
            raise UnstorableJson("a number is not finite; JSON has none, use null")
    return children


def _replace_in(value: Any) -> Any:
    if not has_half_pair(value):
        return value
    return json.loads(replace_half_pairs(json.dumps(value, ensure_ascii=False)))


def _write(value: Any) -> str:
    try:
        return exact_json(value)
    except (RecursionError, ValueError) as error:
        # The value has too many levels or digits to be written, so the text only tells the error.
        return f"(arguments that cannot be written as text: {error})"


def _refuse_constant(name: str) -> NoReturn:
    raise UnstorableJson(f"{name} is no JSON; use null")


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse_constant)


def _too_deep(levels: int) -> UnstorableJson:
    return UnstorableJson(f"it is nested deeper than {levels} levels; flatten it")


def _too_large() -> UnstorableJson:
    return UnstorableJson("a number is larger than a double holds; write it as a text")
