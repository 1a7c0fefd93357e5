"""What of foreign JSON can be stored and read back: depth, finite numbers, whole characters."""

import json
import re
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

from events.canonical import exact_json
from events.json_text.guard import LISTS, UnstorableJson, check_json

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
    values = [value]
    for item in values:
        if isinstance(item, str):
            if not item.isascii() and _HALF_PAIR.search(item):
                return True
        elif isinstance(item, dict):
            values += item
            values += item.values()
        elif isinstance(item, LISTS):
            values += item
    return False


def check_storable(value: Any, what: str) -> None:
    """Raise Unusable for a value that cannot be stored and read back; `what` names it."""
    try:
        check_json(value)
    except UnstorableJson as error:
        raise Unusable(f"{what}: {error}") from error
