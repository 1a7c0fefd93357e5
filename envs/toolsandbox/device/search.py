"""Search for rows by exact values, ranges, and texts that are nearly equal."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple

from rapidfuzz import fuzz, utils

from envs.tools import ToolError
from envs.toolsandbox.device.state import Row

NAMES: Final = 90.0
"""Smallest likeness, out of 100, for a match of names and relationships."""
TEXTS: Final = 50.0
"""Smallest likeness, out of 100, for a match of the contents of messages and reminders."""
MOST: Final = 5
"""Largest number of rows that a search by likeness returns."""


class Criterion(NamedTuple):
    """A condition on a column. It is ignored if its value is None."""

    column: str
    value: Any
    rule: Literal["equal", "alike", "from", "to"] = "equal"
    least: float = NAMES


def find_rows(rows: Iterable[Row], criteria: Iterable[Criterion]) -> list[Row]:
    """Return the rows that meet all criteria, the most alike first. Raise ToolError for no
    values."""
    asked = [criterion for criterion in criteria if criterion.value is not None]
    if not asked:
        raise ToolError("a search needs at least one argument")
    found = list(rows)
    for criterion in asked:
        found = _select(found, criterion)
    return [dict(row) for row in found]


def _select(rows: list[Row], criterion: Criterion) -> list[Row]:
    column, value = criterion.column, criterion.value
    if criterion.rule == "alike":
        return _select_alike(rows, criterion)
    if criterion.rule == "from":
        return [row for row in rows if row[column] is not None and row[column] >= value]
    if criterion.rule == "to":
        return [row for row in rows if row[column] is not None and row[column] <= value]
    return [row for row in rows if row[column] is not None and row[column] == value]


def _select_alike(rows: list[Row], criterion: Criterion) -> list[Row]:
    scored = [
        (measure_likeness(criterion.value, row[criterion.column]), row)
        for row in rows
        if row[criterion.column] is not None
    ]
    alike = [(score, row) for score, row in scored if score >= criterion.least]
    alike.sort(key=lambda pair: -pair[0])
    return [row for _, row in alike[:MOST]]


def measure_likeness(query: str, text: str) -> float:
    """Return the likeness of two texts, from 0 to 100. Case and punctuation do not matter. Only the
    first 1,000 characters of the query count."""
    return _measure_likeness(query[:_LONGEST], text)


_LONGEST: Final = 1_000


@lru_cache(maxsize=4096)
def _measure_likeness(query: str, text: str) -> float:
    return fuzz.WRatio(query, text, processor=utils.default_process)
