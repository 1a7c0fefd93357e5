"""What of foreign JSON can be stored and read back: depth, finite numbers, whole characters."""

import json
import math
import re
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from events.canonical import exact_json

MAX_DEPTH: Final = 100
"""Deepest nesting of arguments and content parts: pydantic reads back at most 200 levels of JSON,
and the message around them takes a few."""


_HALF_PAIR: Final = re.compile("[\ud800-\udfff]")


class Unusable(Exception):
    """A record that cannot become a rollout; its text says why, and what would help."""


class Wire(BaseModel):
    """Base of what formats look like on disk: exact types, and what we do not read is ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


def readable(value: Any) -> Any:
    """`value` with U+FFFD in the place of each half of a surrogate pair."""
    if not _has_half_pair(value):
        return value
    return json.loads(_HALF_PAIR.sub("\ufffd", exact_json(value)))


def _has_half_pair(value: Any) -> bool:
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            if not item.isascii() and _HALF_PAIR.search(item):
                return True
        elif isinstance(item, dict):
            waiting += item
            waiting += item.values()
        elif isinstance(item, list | tuple):
            waiting += item
    return False


def check_storable(value: Any, what: str) -> None:
    """Raise Unusable for what JSON cannot hold, or what no reader would take back."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
        ]
        if any(isinstance(item, float) and not math.isfinite(item) for item in level):
            raise Unusable(f"{what} hold a number that is not finite; JSON has none, use null")
        if not level:
            return
    raise Unusable(f"{what} are nested deeper than {MAX_DEPTH} levels; flatten them")
