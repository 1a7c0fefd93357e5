"""The similarity of a table to its target, from 0 to 1, as in ToolSandbox (arXiv 2408.04682, 3.3).

    column     exact, contained, close or a traced call: 0 or 1; texts by ROUGE-L
    row        the geometric mean over its columns
    table      the geometric mean over its rows, in the best one-to-one assignment; 0 if the
               numbers of rows differ

ROUGE-L is the F-measure of the longest common subsequence (Lin 2004) of words of letters a to z and
digits; those of more than three characters are stemmed, as in the distribution rouge-score.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, Final

from envs.comparison.numerals import find_numbers
from envs.milestones.graph import CONVERSATION, Constraint, Measure, Relation
from envs.toolsandbox.device.state import COLUMNS, Row
from envs.toolsandbox.extractors import extract
from envs.toolsandbox.snapshots import ROW_COLUMNS, Trace
from envs.toolsandbox.stemming import stem
from events.errors import KintsugiError

Rows = Sequence[Row]

HOLDS: Final = "holds"
"""Key in our own targets: the value that a call's result must hold. Exported scenarios lack it."""

_EXACT: Final = Measure(name="exact")
_WORD: Final = re.compile(r"[a-z0-9]+")
_STEMMED: Final = 4
"""Length of the shortest word that is stemmed."""


class ScoringUnavailable(KintsugiError):
    """A library that scoring needs is not installed."""


def measure_constraint(constraint: Constraint, now: Rows, reference: Rows | None) -> float:
    """Return the similarity of the table `now` to a constraint's target. `reference` is the table
    at the moment to which the constraint refers, or None. Raise ScoringUnavailable."""
    return _RELATIONS[constraint.relation](constraint, now, reference or ())


def _measure_addition(constraint: Constraint, now: Rows, reference: Rows) -> float:
    """Compare the rows that the reference lacks. Return 0 if a row of the reference is missing."""
    if not all(row in now for row in reference):
        return 0.0
    return _measure_rows(constraint, [row for row in now if row not in reference], constraint.rows)


def _measure_update(constraint: Constraint, now: Rows, reference: Rows) -> float:
    if len(now) != len(reference):
        return 0.0
    return _measure_rows(constraint, [row for row in now if row not in reference], constraint.rows)


def _measure_dependent(constraint: Constraint, now: Rows, reference: Rows) -> float:
    """Return the best similarity after filling values of the reference call into the target."""
    if len(now) != 1 or len(reference) != 1 or constraint.extractor is None:
        return 0.0
    fill = _fill_trace if constraint.fill_to == "tool_trace" else _fill_content
    targets = [
        [fill(row, values) for row in constraint.rows]
        for values in extract(constraint.extractor, reference[0].get("tool_trace"))
    ]
    if any(row is None for target in targets for row in target):
        return 0.0
    filled = [[row for row in target if row is not None] for target in targets]
    return max((_measure_rows(constraint, now, target) for target in filled), default=0.0)


def _fill_trace(row: Row, values: Mapping[str, Any]) -> Row:
    """Return the row with `values` filled into its calls, both over and under their arguments."""
    filled = []
    for call in parse_traces(row.get("tool_trace")):
        for arguments in ({**call["arguments"], **values}, {**values, **call["arguments"]}):
            filled.append({**call, "arguments": arguments})
    return {**row, "tool_trace": json.dumps(filled)}


def _fill_content(row: Row, values: Mapping[str, Any]) -> Row | None:
    """Return the row with its content filled in, or None if a value is missing."""
    try:
        return {**row, "content": str(row["content"]).format(**values)}
    except (KeyError, IndexError, ValueError, AttributeError):
        return None


_RELATIONS: Final[Mapping[Relation, Callable[[Constraint, Rows, Rows], float]]] = {
    "snapshot": lambda constraint, now, _: _measure_rows(constraint, now, constraint.rows),
    "addition": _measure_addition,
    "removal": lambda constraint, now, reference: _measure_addition(constraint, reference, now),
    "update": _measure_update,
    "trace_dependent": _measure_dependent,
    "guardrail": lambda _, now, reference: float(list(now) == list(reference)),
}


def _measure_rows(constraint: Constraint, rows: Rows, targets: Rows) -> float:
    known = ROW_COLUMNS if constraint.table == CONVERSATION else COLUMNS[constraint.table]
    if len(rows) != len(targets) or any(set(target) - set(known) for target in targets):
        return 0.0
    if not targets:
        # No rows equal no rows. The original has no result for this case.
        return 1.0
    costs = [[_cost(constraint, row, target) for row in rows] for target in targets]
    cost = costs[0][0] if len(targets) == 1 else _assign(costs)
    return math.exp(-cost)


def can_assign_rows() -> bool:
    """Return whether scipy is installed, which constraints with several target rows need."""
    return find_spec("scipy") is not None


def _assign(costs: Sequence[Sequence[float]]) -> float:
    """Return the mean cost of the cheapest assignment, or infinity. Raise ScoringUnavailable."""
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError as error:
        raise ScoringUnavailable(
            "a milestone with several target rows needs scipy; install it with "
            "pip install 'kintsugi[toolsandbox]'"
        ) from error
    try:
        targets, rows = linear_sum_assignment(costs)
    except ValueError:  # every assignment has an infinite cost
        return math.inf
    chosen: list[float] = [costs[target][row] for target, row in zip(targets, rows, strict=True)]
    return sum(chosen) / len(chosen)


def _cost(constraint: Constraint, row: Row, target: Row) -> float:
    total = 0.0
    for column, value in target.items():
        measure = constraint.columns.get(column, _EXACT)
        similarity = measure_column(measure, column, row.get(column), value)
        if similarity <= 0:
            return math.inf
        total -= math.log(similarity)
    return total / len(target) if target else 0.0


def measure_column(measure: Measure, column: str, actual: Any, target: Any) -> float:
    """Return the similarity of a column's value to the target's value."""
    if measure.name == "any":
        return 1.0
    if measure.name == "tool_trace":
        return float(_matches_trace(measure, actual, target))
    if measure.name == "close":
        return float(_is_close(actual, target, measure.tolerance, column))
    if measure.name == "contains":
        return float(isinstance(actual, str) and str(target) in actual)
    if measure.name == "number":
        return float(isinstance(actual, str) and _says_number(actual, str(target)))
    if measure.name == "rouge_l":
        return measure_rouge_l(_as_text(target), _as_text(actual))
    return float(
        _as_text(actual) == _as_text(target) if None in (actual, target) else actual == target
    )


def _as_text(value: Any) -> Any:
    """Return an empty text for None, else the value, as the original compares tables."""
    return "" if value is None else value


def _says_number(text: str, target: str) -> bool:
    return any(number in find_numbers(text) for number in find_numbers(target))


def _matches_trace(measure: Measure, actual: Trace | None, target: Any) -> bool:
    """Return whether a call is one that the target allows. Arguments that the target does not name
    are free. If the target has `holds`, the result must be or contain this value."""
    return actual is not None and any(
        call["tool_name"] == actual.name
        and all(
            name in actual.arguments
            and _is_close(actual.arguments[name], value, measure.tolerance, name)
            for name, value in call["arguments"].items()
        )
        and (HOLDS not in call or _holds(actual.result, call[HOLDS]))
        for call in parse_traces(target)
    )


def _holds(result: Any, value: Any) -> bool:
    if isinstance(result, dict):
        return any(_holds(part, value) for part in result.values())
    if isinstance(result, list | tuple):
        return any(_holds(part, value) for part in result)
    if isinstance(result, str) and isinstance(value, str):
        return value in result
    return bool(result == value)


def _is_close(actual: Any, target: Any, tolerance: Mapping[str, float | None], name: str) -> bool:
    if name in tolerance and isinstance(actual, int | float) and isinstance(target, int | float):
        most = tolerance[name]
        return most is None or abs(actual - target) <= most
    return bool(actual == target)


@lru_cache(maxsize=4096)
def _load_traces(text: str) -> list[dict[str, Any]]:
    loaded = json.loads(text)
    return loaded if isinstance(loaded, list) else [loaded]


def parse_traces(target: Any) -> list[dict[str, Any]]:
    """Return a target's allowed calls from JSON: `{"tool_name", "arguments"}` or a list of them."""
    return _load_traces(target) if isinstance(target, str) else []


def measure_rouge_l(target: Any, prediction: Any) -> float:
    """Return the ROUGE-L F-measure of two texts."""
    return _rouge_l(str(target), str(prediction)[-_LONGEST:])


_LONGEST: Final = 20_000
"""Number of last characters that are compared: time grows with the product of both lengths."""


@lru_cache(maxsize=1024)
def _rouge_l(target: str, prediction: str) -> float:
    ours, theirs = _split(target), _split(prediction)
    common = _count_common(ours, theirs)
    if not common:
        return 0.0
    precision, recall = common / len(theirs), common / len(ours)
    return 2 * precision * recall / (precision + recall)


def _split(text: str) -> list[str]:
    words = _WORD.findall(text.lower())
    return [stem(word) if len(word) >= _STEMMED else word for word in words]


def _count_common(first: Sequence[str], second: Sequence[str]) -> int:
    lengths = [0] * (len(second) + 1)
    for word in first:
        diagonal = 0
        for place, other in enumerate(second, 1):
            above = lengths[place]
            lengths[place] = diagonal + 1 if word == other else max(above, lengths[place - 1])
            diagonal = above
    return lengths[-1]
