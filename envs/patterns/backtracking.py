"""Limit the text that `re` may search with a pattern that RE2 does not take.

`re` backtracks. If n unbounded repeats can match the same characters, its time grows with the n-th
power of the text's length. If a repeat repeats choices, its time grows exponentially.
"""

import math
from collections.abc import Iterable, Iterator
from re import _constants as op  # type: ignore[attr-defined]
from typing import Any, Final

MOST_CHARACTERS: Final = 2_000
"""Number of characters at a text's end that `re` searches with a pattern that RE2 does not take."""

_MOST_STEPS: Final = 100_000_000
"""Number of backtracking steps that one search may take, about a second."""

_SHORT_REPEAT: Final = 24
"""Number of repetitions of a set of characters up to which a repeat costs almost nothing."""
_FEW_CHOICES: Final = 8
"""Number of repetitions of a choice up to which it costs almost nothing."""

_REPEATS: Final = (op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT)
LOOKS: Final = (op.ASSERT, op.ASSERT_NOT)


def bound_text(tree: Iterable[Any]) -> int:
    """Return how many characters `re` searches with a pattern within `_MOST_STEPS` steps."""
    degree = _measure_degree(tree)
    if degree is not None:
        repeats = (value for kind, value in _walk(tree) if kind in _REPEATS)
        ways = math.prod(most - least + 1 for least, most, _ in repeats if most != op.MAXREPEAT)
        return max(1, min(MOST_CHARACTERS, int((_MOST_STEPS / ways) ** (1 / (degree + 1)))))
    choices = sum(
        len(value[1]) if kind is op.BRANCH else kind in _REPEATS for kind, value in _walk(tree)
    )
    return int(math.log(_MOST_STEPS, max(2, choices)))


def _measure_degree(tree: Iterable[Any]) -> int | None:
    """Return the exponent of `re`'s time in the text's length, the search's start not counted.
    Return None for exponential time: a repeat repeats choices."""
    degree = most = 0
    for kind, value in tree:
        inner = _measure_node(kind, value)
        if inner is None:
            return None
        # A look-around is tried once for each way to match the parts before it.
        most = max(most, degree + inner)
        degree += 0 if kind in LOOKS else inner
    return most


def _measure_node(kind: Any, value: Any) -> int | None:
    if kind not in _REPEATS:
        degrees = [_measure_degree(part) for part in _list_parts(kind, value)]
        return None if None in degrees else max(filter(None, degrees), default=0)
    _, most, tree = value
    inner = _measure_degree(tree)
    if inner is None or most == 1:
        return inner
    if not _has_choice(tree):
        return int(most > _SHORT_REPEAT)
    if inner == 0:
        return 0 if most <= _FEW_CHOICES else None
    return None if most == op.MAXREPEAT else int(most) * inner


def _has_choice(tree: Iterable[Any]) -> bool:
    return any(
        kind is op.BRANCH or (kind in _REPEATS and value[0] < value[1])
        for kind, value in _walk(tree)
    )


def _list_parts(kind: Any, value: Any) -> list[Any]:
    if kind is op.BRANCH:
        return list(value[1])
    if kind is op.SUBPATTERN:
        return [value[3]]
    if kind in LOOKS:
        return [value[1]]
    if kind is op.GROUPREF_EXISTS:
        return [part for part in value[1:] if part is not None]
    return [value] if kind is op.ATOMIC_GROUP else []


def _walk(tree: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    for kind, value in tree:
        yield kind, value
        parts = [value[2]] if kind in _REPEATS else _list_parts(kind, value)
        for part in parts:
            yield from _walk(part)
