"""Split a completion into its reflection, its calls and its final answer.

    <think>...</think>                                    removed before anything else
    <reflect>what went wrong</reflect>                    the first one is the reflection
    <tool_call>{"name": ..., "arguments": {...}}</tool_call>      a call in Qwen's form
    [{"name": ..., "parameters": {...}}]                  calls in Llama's form; also without a list
    <final>the answer</final>                             the first one is the final answer

Format: Structured Reflection, arXiv 2509.18847, and its Tool-Reflection-Bench. Tags are matched
without regard to case; an unclosed tag is text. Calls in a reflection or in <think> do not count,
and a block without a call is ignored (`malformed` says so).

Guarantee: any text gives a result and no exception, in time linear in its length. Not covered: text
behind a </think> whose opening tag the prompt holds; cut it off before.
"""

import json
import math
import re
from dataclasses import dataclass
from typing import Any, Final

MAX_DEPTH: Final = 100
"""Largest nesting of a call, as in events/json_text/guard.py. Python's own limit varies."""

MAX_DIGITS: Final = 640
"""Largest number of digits of an integer. Every Python process converts at least as many."""

MAX_FAILURES: Final = 1_000
"""Number of brackets that begin no JSON after which the rest counts as text. Each failed attempt
takes time linear in the text, because Python's error counts the lines before it."""

_DECODER: Final = json.JSONDecoder(
    parse_int=lambda digits: int(digits) if len(digits) <= MAX_DIGITS else math.inf
)
"""A decoder whose errors always have a position, so that a scan can go on there. The encoder
refuses numbers that are not finite."""

_ENCODER: Final = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
)

_BRACKET: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[{]|[\]}]', re.DOTALL)
"""A string, closed or not, or a bracket outside a string."""

_OPENING: Final = re.compile(r"[\[{]")


def _compile_tag(name: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    flags = re.IGNORECASE | re.ASCII
    return re.compile(f"<{name}>", flags), re.compile(f"</{name}>", flags)


_THINK: Final = _compile_tag("think")
_REFLECT: Final = _compile_tag("reflect")
_FINAL: Final = _compile_tag("final")
_TOOL_CALL: Final = _compile_tag("tool_call")


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """A call of a tool, read from a text."""

    name: str
    """Name of the tool, without white space around it."""
    arguments: dict[str, Any]
    canonical: str
    """The arguments as JSON with sorted keys. Calls with equal name and canonical form are
    equal."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a completion. A missing part is empty."""

    reflection: str
    calls: tuple[ParsedCall, ...]
    final: str
    tagged: int = 0
    """Number of `calls` in Qwen's form. They come before those in Llama's form."""
    malformed: bool = False
    """Whether a block of <tool_call> holds no call, or a tag of one is left over."""
    rest: str = ""
    """The text outside reflections, <think>, <tool_call> blocks and bare calls."""


def parse(text: str) -> Parts:
    """Split a completion into its parts."""
    if "<" not in text:
        bare, rest = _take_bare_calls(text)
        return Parts("", tuple(bare), "", rest=rest)
    _, text = _take(text, _THINK, "")
    reflections, text = _take(text, _REFLECT, "\n")
    final = _find_first(text, _FINAL)
    blocks, rest = _take(text, _TOOL_CALL, "\n")
    read = [parse_call(block) for block in blocks]
    tagged = [call for call in read if call is not None]
    malformed = len(tagged) < len(blocks) or any(tag.search(rest) for tag in _TOOL_CALL)
    bare, rest = _take_bare_calls(rest)
    return Parts(
        reflection=reflections[0].strip() if reflections else "",
        calls=(*tagged, *bare),
        final=final.strip(),
        tagged=len(tagged),
        malformed=malformed,
        rest=rest,
    )


def parse_call(text: str) -> ParsedCall | None:
    """Read a JSON text as a call in Qwen's form. Return None if it is no call."""
    return _read_call(_load(text), "arguments")


def are_calls_equal(calls: tuple[ParsedCall, ...], others: tuple[ParsedCall, ...]) -> bool:
    """Return whether two multisets of calls are equal: names, and arguments as canonical JSON."""
    if len(calls) != len(others):
        return False
    return sorted((call.name, call.canonical) for call in calls) == sorted(
        (call.name, call.canonical) for call in others
    )


def _take(
    text: str, tag: tuple[re.Pattern[str], re.Pattern[str]], filler: str
) -> tuple[list[str], str]:
    """Return the contents of a tag's blocks, and the text with `filler` in place of each block."""
    opening, closing = tag
    contents: list[str] = []
    kept: list[str] = []
    position = 0
    while (start := opening.search(text, position)) and (end := closing.search(text, start.end())):
        contents.append(text[start.end() : end.start()])
        kept.append(text[position : start.start()])
        position = end.end()
    return contents, filler.join([*kept, text[position:]])


def _find_first(text: str, tag: tuple[re.Pattern[str], re.Pattern[str]]) -> str:
    opening, closing = tag
    if (start := opening.search(text)) and (end := closing.search(text, start.end())):
        return text[start.end() : end.start()]
    return ""


def _load(text: str) -> Any:
    """Parse the whole text as JSON. Return None if it is no JSON or nested too deeply."""
    if text.count("{") + text.count("[") > MAX_DEPTH and _measure_depth(text) > MAX_DEPTH:
        return None
    try:
        return _DECODER.decode(text)
    except ValueError:
        return None


def _measure_depth(text: str) -> int:
    deepest = depth = 0
    for match in _BRACKET.finditer(text):
        mark = match[0]
        if mark in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif mark in "]}":
            depth -= 1
    return deepest


def _read_call(value: Any, field: str) -> ParsedCall | None:
    """Read a JSON value as a call with its arguments in `field`. Return None if it is no call."""
    if not isinstance(value, dict):
        return None
    name, arguments = value.get("name"), value.get(field)
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return None
    try:
        return ParsedCall(name.strip(), arguments, _ENCODER.encode(arguments))
    except ValueError:  # a number that is not finite
        return None


def _take_bare_calls(text: str) -> tuple[list[ParsedCall], str]:
    """Return the calls in Llama's form, in lists or single, and the text without their JSON."""
    calls: list[ParsedCall] = []
    if '"parameters"' not in text:
        return calls, text
    kept: list[str] = []
    copied = position = failures = 0
    while failures < MAX_FAILURES and (match := _OPENING.search(text, position)):
        value, position = _decode_at(text, match.start())
        failures += value is None
        items = value if isinstance(value, list) else [value]
        read = [call for item in items if (call := _read_call(item, "parameters")) is not None]
        if read:
            calls += read
            kept.append(text[copied : match.start()])
            copied = position
    return calls, "\n".join([*kept, text[copied:]])


def _decode_at(text: str, start: int) -> tuple[Any, int]:
    """Return the JSON value that begins at `start`, or None, and where the scan goes on. That is
    the end after a value nested too deeply, else where the decoder stopped: no part is read
    twice."""
    try:
        value, end = _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        value, end = None, max(error.pos, start + 1)
    except RecursionError:
        return None, len(text)
    opened = text.count("[", start, end) + text.count("{", start, end)
    if opened > MAX_DEPTH and _measure_depth(text[start:end]) > MAX_DEPTH:
        return None, len(text)
    return value, end
