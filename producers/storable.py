"""Checks whether foreign JSON can be stored and read back: depth, finite numbers, characters."""

import json
from typing import Any

from pydantic import BaseModel, ConfigDict

from events.canonical import exact_json
from events.json_text.guard import UnstorableJson, check_json, has_half_pair, replace_half_pairs


class Unusable(Exception):
    """A record that cannot become a rollout; its text gives the reason and the remedy."""


class Wire(BaseModel):
    """Base of the models of foreign formats: exact types; unknown fields are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


def readable(value: Any) -> Any:
    """Return `value` with U+FFFD in the place of each half of a surrogate pair."""
    if not has_half_pair(value):
        return value
    return json.loads(replace_half_pairs(exact_json(value)))


def check_storable(value: Any, what: str) -> None:
    """Raise Unusable for a value that cannot be stored and read back; `what` names it."""
    try:
        check_json(value)
    except UnstorableJson as error:
        raise Unusable(f"{what}: {error}") from error
