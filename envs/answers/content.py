"""Reads the content of a message: a text, or a list of parts. Parts of a monologue (thinking or
reasoning) are kept apart from the text. Nested parts are read to a bounded depth. Pictures and
sounds are not read."""

from typing import Any, Final, NamedTuple

_MONOLOGUES: Final = frozenset((
    "thinking", "think", "reasoning", "reasoning.text", "reasoning_text", "reasoning_content",
    "summary_text",
))  # fmt: skip
"""Types of parts that hold reasoning."""
_MONOLOGUE_FIELDS: Final = (
    "thinking", "think", "reasoning", "reasoning_content", "text", "content", "summary",
)  # fmt: skip
"""Fields of a reasoning part. The first one with a value holds its text or its inner parts."""
_NESTING: Final = 4
"""Largest number of levels of parts inside parts."""


class Content(NamedTuple):
    """A message's content, split into text and reasoning."""

    text: str
    reasoning: str
    unread: bool
    """Whether some part is neither text nor reasoning, such as a picture."""


def read_content(content: Any) -> Content:
    """Split a content (None, a text, or a list of parts) into text and reasoning."""
    if isinstance(content, str):
        return Content(content, "", False)
    if not isinstance(content, list):
        return Content("", "", content is not None)
    texts: list[str] = []
    thoughts: list[str] = []
    unread = False
    for part in content:
        thought = is_monologue(part)
        words = read_monologue(part) if thought else _read_part(part)
        unread = unread or words is None
        (thoughts if thought else texts).append(words or "")
    return Content("".join(texts), "".join(thoughts), unread)


def is_monologue(part: Any) -> bool:
    """Return whether a part of a content is reasoning."""
    kind = part.get("type") if isinstance(part, dict) else None
    return isinstance(kind, str) and kind in _MONOLOGUES


def _read_part(part: Any) -> str | None:
    if isinstance(part, dict):
        name = "refusal" if part.get("type") == "refusal" else "text"
        part = (part[name] or "") if name in part else None
    return part if isinstance(part, str) else None


def read_monologue(value: Any, levels: int = _NESTING) -> str | None:
    """Return the text of a monologue: a text, a part, or a list of both, nested up to `levels`
    deep. Return None for anything else."""
    if isinstance(value, str):
        return value
    if levels and isinstance(value, dict):
        inner = [value[name] for name in _MONOLOGUE_FIELDS if name in value]
        return read_monologue(next(filter(None, inner), ""), levels - 1) if inner else None
    if levels and isinstance(value, list):
        words = [read_monologue(item, levels - 1) for item in value]
        return None if None in words else "".join(filter(None, words))
    return None
