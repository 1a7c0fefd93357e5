"""The rule of Tool-Reflection-Bench without its defects (official.py lists them).

A completion is correct if its form is right and it makes gold's calls. The calls are equal as
multisets of names and arguments (JSON with sorted keys), in any order; none equals none. The form
is wrong if a block of <tool_call> holds no call, a tag is left over, or a call stands as bare JSON
outside <reflect> and <think>. In Llama's form a list that is no JSON is wrong.
"""

import re
from typing import Final

from envs.reflection.official import Dialect
from envs.reflection.parse import ParsedCall, Parts, are_calls_equal, parse

_CALL_BEGINS: Final[dict[Dialect, re.Pattern[str]]] = {
    "qwen": re.compile(r'\{\s*+"name"\s*+:\s*+"[^"]*+"\s*+,\s*+"arguments"\s*+:'),
    "llama": re.compile(r'\{\s*+"name"\s*+:\s*+"[^"]*+"\s*+,\s*+"parameters"\s*+:'),
}
"""Beginning of a call's JSON; the rest need not be valid."""

_TAG: Final = re.compile("</?tool_call>", re.IGNORECASE)


def is_repaired(completion: str, gold: str, dialect: Dialect) -> bool:
    """Return whether a completion makes gold's calls in the right form."""
    made = _parse(completion, dialect)
    if (made.malformed and dialect == "qwen") or _CALL_BEGINS[dialect].search(made.rest):
        return False
    return are_calls_equal(_select(made, dialect), _select(_parse(gold, dialect), dialect))


def _parse(text: str, dialect: Dialect) -> Parts:
    """Parse a text. In Llama's form, tags of Qwen's form are first replaced by spaces."""
    return parse(text if dialect == "qwen" else _TAG.sub(" ", text))


def _select(parts: Parts, dialect: Dialect) -> tuple[ParsedCall, ...]:
    return parts.calls[: parts.tagged] if dialect == "qwen" else parts.calls[parts.tagged :]
