"""How Tool-Reflection-Bench itself scores a completion, defects included.

This is the behaviour of MeiGen-AI/Tool-Reflection-Bench@291bb3e, benchmark/test.py, for comparison
with published figures. A completion is correct without a format error, with as many calls as gold
and the same set of calls. An error while comparing makes it wrong. These defects are kept:

    1  an argument that is a list or an object cannot be put into a set: wrong, whatever was called
    2  a call that a reflection quotes as bare JSON is a format error, as gold itself often has one
    3  so is a call whose arguments end with an object, also in its tags
    4  in Llama's form any list that is not one of calls is a format error, an argument's too
    5  where neither side has a call, brackets in either text are wrong
    6  equal calls are one in a set, so (a, a, b) and (a, b, b) are the same

Guarantee: any text gives a verdict; in Qwen's form in linear time, in Llama's in time that grows
with length times nesting of brackets.
"""

import json
import re
from bisect import bisect_left
from dataclasses import dataclass
from typing import Any, Final, Literal

Dialect = Literal["qwen", "llama"]
"""The form of a model's calls: tagged with `arguments`, or a JSON list with `parameters`."""

ARGUMENTS: Final[dict[Dialect, str]] = {"qwen": "arguments", "llama": "parameters"}
"""Dialect -> the field of a call that holds its arguments."""

_THINK_OPEN: Final = re.compile("<think>", re.IGNORECASE)
_THINK_CLOSE: Final = re.compile("</think>", re.IGNORECASE)
_BLANK_LINES: Final = re.compile(r"\n\s*\n")
_ONLY_THINKING: Final = "ERROR: Content empty after removing think tags"

_CALL_OPEN: Final = re.compile(r"<tool_call>\s*+(?=\{)")
_CALL_CLOSE: Final = re.compile(r"\}\s*+</tool_call>")
_BARE_OPEN: Final = re.compile(
    r'(?<!<tool_call>)\{\s*+"name"\s*+:\s*+"[^"]++"\s*+,\s*+"arguments"\s*+:\s*+\{'
)
_BARE_CLOSE: Final = re.compile(r"\s*+\}(?!\s*+</tool_call>)")


class _FormatError(Exception):
    """The completion is wrong because of its form."""


@dataclass(frozen=True, slots=True)
class OfficialScore:
    """The score of one completion by the official program."""

    correct: bool
    overlap: float
    """The share of gold's calls that the completion makes; 1 if neither has any."""


def detect_dialect(model: str) -> Dialect:
    """Return the dialect that the official program assumes for a model's name."""
    return "llama" if "llama" in model.lower() else "qwen"


def score_officially(completion: str, gold: str, dialect: Dialect) -> OfficialScore:
    """Return the official score of a completion; both texts are as models write them."""
    text = remove_thinking(completion)
    try:
        calls, expected = _read_calls(text, dialect), _read_gold(gold, dialect)
        if not calls and not expected:
            correct = not _looks_like_calls(gold) and not _looks_like_calls(text)
            return OfficialScore(correct, float(correct))
        if not calls or not expected:
            return OfficialScore(False, 0.0)
        made, wanted = _collect(calls, dialect), _collect(expected, dialect)
    except (_FormatError, TypeError, ValueError, RecursionError):
        # The program catches every exception of a comparison and counts it as wrong.
        return OfficialScore(False, 0.0)
    equal = made == wanted
    overlap = 1.0 if equal else len(made & wanted) / len(wanted)
    return OfficialScore(equal and len(calls) == len(expected), overlap)


def remove_thinking(text: str) -> str:
    """Return a completion without <think>...</think> blocks and empty lines."""
    kept: list[str] = []
    position = 0
    while (start := _THINK_OPEN.search(text, position)) and (
        end := _THINK_CLOSE.search(text, start.end())
    ):
        kept.append(text[position : start.start()])
        position = end.end()
    rest = _BLANK_LINES.sub("\n", "".join([*kept, text[position:]])).strip()
    return rest or (_ONLY_THINKING if text else text)


def _looks_like_calls(text: str) -> bool:
    return ('"name"' in text and '"parameters"' in text) or ("[" in text and "]" in text)


def _read_gold(text: str, dialect: Dialect) -> list[dict[str, Any]]:
    """Return the calls in gold; its format errors are ignored."""
    if dialect == "llama":
        return _read_lists(text, strict=False)
    return _read_blocks(text, strict=False)


def _read_calls(text: str, dialect: Dialect) -> list[dict[str, Any]]:
    if dialect == "llama":
        return _read_lists(text, strict=True)
    calls = _read_blocks(text, strict=True)
    # The last call is not closed: no brace closes behind its opening tag.
    if _CALL_OPEN.search(text, text.rfind("}") + 1) or _has_bare_call(text):
        raise _FormatError
    return calls


def _read_blocks(text: str, strict: bool) -> list[dict[str, Any]]:
    """Return the calls in call tags, each cut at the first brace before a closing tag."""
    calls: list[dict[str, Any]] = []
    position = 0
    while (start := _CALL_OPEN.search(text, position)) and (
        end := _CALL_CLOSE.search(text, start.end())
    ):
        position = end.end()
        try:
            call = json.loads(text[start.end() : end.start() + 1])
        except json.JSONDecodeError as error:
            if strict:
                raise _FormatError from error
            continue
        if "name" in call and "arguments" in call:
            calls.append(call)
        elif strict:
            raise _FormatError
    return calls


def _has_bare_call(text: str) -> bool:
    """Return whether the official pattern finds a call as bare JSON, rightly or not."""
    position, brace = 0, -1
    while match := _BARE_OPEN.search(text, position):
        if brace < match.end():
            brace = text.find("}", match.end())
            if brace < 0:
                return False
            # Each brace is examined once, however many calls begin before it.
            if _BARE_CLOSE.match(text, brace + 1):
                return True
        position = match.start() + 1
    return False


def _read_lists(text: str, strict: bool) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []
    names = [match.start() for match in re.finditer('"name"', text)]
    fields = [match.start() for match in re.finditer('"parameters"', text)]
    for start, end in _pair_brackets(text):
        try:
            value = json.loads(text[start:end])
        except json.JSONDecodeError as error:
            if strict and _is_between(names, start, end) and _is_between(fields, start, end):
                raise _FormatError from error
            continue
        if all(isinstance(v, dict) and "name" in v and "parameters" in v for v in value):
            calls += value
        elif strict:
            raise _FormatError
    return calls


def _pair_brackets(text: str) -> list[tuple[int, int]]:
    """Return (begin, end) of each bracket pair, by begin. Brackets in strings count, as in the
    original."""
    opened: list[int] = []
    pairs: list[tuple[int, int]] = []
    for match in re.finditer(r"[\[\]]", text):
        if match[0] == "[":
            opened.append(match.start())
        elif opened:
            pairs.append((opened.pop(), match.end()))
    return sorted(pairs)


def _is_between(places: list[int], start: int, end: int) -> bool:
    following = bisect_left(places, start)
    return following < len(places) and places[following] < end


def _collect(calls: list[dict[str, Any]], dialect: Dialect) -> set[tuple[Any, tuple[Any, ...]]]:
    """Return the calls as a set. Raise TypeError for arguments that cannot be hashed (defect 1)."""
    field = ARGUMENTS[dialect]
    # The program sorts the calls first, which fails for names that cannot be compared.
    sorted((call["name"], json.dumps(call[field], sort_keys=True)) for call in calls)
    return {(call["name"], _freeze(call[field])) for call in calls}


def _freeze(arguments: Any) -> tuple[Any, ...]:
    return tuple(sorted(arguments.items())) if isinstance(arguments, dict) else (arguments,)
