"""One canonical JSON and its hashes. Equal meaning gives equal text: keys are sorted, there are no
spaces, numbers are in their shortest form (`2.0` is `2`), strings are NFC without surrounding white
space. Lists keep their order. Source: the dedup key of SENTINEL. A text with more than `MARKS`
combining marks in a row stays as it is, because sorting them takes quadratic time."""

import hashlib
import json
import math
import unicodedata
from typing import Any, Final

MARKS: Final = 1_000
"""Most combining marks in a row that are normalised; UAX 15's stream-safe format allows 30."""

# Made once: json.dumps with options would build an encoder at every call.
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def canonical(value: Any) -> Any:
    """Return `value` with numbers in shortest form and strings in NFC, stripped. Raises on NaN."""
    if isinstance(value, str):
        return (value if value.isascii() else _to_nfc(value)).strip()
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} has no canonical JSON; use a finite number or null")
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    if isinstance(value, dict):
        return {str(key): canonical(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [canonical(item) for item in value]
    return value


def _to_nfc(text: str) -> str:
    if len(text) > MARKS and _marks_in_a_row(text) > MARKS:
        return text
    return unicodedata.normalize("NFC", text)


def _marks_in_a_row(text: str) -> int:
    most = run = 0
    for character in text:
        marks = unicodedata.combining(character) or character in _MADE_OF_MARKS
        run = run + 1 if marks else 0
        most = max(most, run)
    return most


_MADE_OF_MARKS: Final = frozenset("\u0f73\u0f75\u0f81")
"""Characters that are not combining marks themselves but decompose into marks only."""


def canonical_json(value: Any) -> str:
    """Return the canonical text of a JSON value."""
    return exact_json(canonical(value))


def comparable_json(value: Any) -> str:
    """Return a text, in linear time, that is equal for two values exactly if they mean the same."""
    return exact_json(_mark_types(value))


def _mark_types(value: Any) -> Any:
    """Return the value with strings as "s..." and numbers as "n...", so that "1" and 1 differ."""
    if isinstance(value, str):
        return f"s{canonical(value)}"
    if isinstance(value, dict):
        return {key: _mark_types(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mark_types(item) for item in value]
    if isinstance(value, float):
        # Hexadecimal, because decimal text takes time quadratic in the number of digits.
        return f"n{int(value):x}" if value.is_integer() else f"n{value!r}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"n{value:x}"
    return value


def exact_json(value: Any) -> str:
    """Return JSON to compare or to hash: sorted keys, no spaces, unchanged values."""
    return _ENCODER.encode(value)


def sha256(text: str) -> str:
    """Return the hex sha256 of the text in UTF-8; lone surrogates are encoded, too."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
