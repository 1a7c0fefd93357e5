"""Report tasks that are graded with a score: the mean score (similarity), also by category.

    similarity    mean over tasks of the mean score of their judged trials
    perfect       mean over tasks of the share of trials with score 1, whatever an environment calls
                  a success

Tasks that cannot be fulfilled are always reported separately: an agent that does nothing is nearly
perfect there and useless elsewhere (a column in ToolSandbox's table, arXiv 2408.04682).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from envs.milestones.graph import EXACT, INSUFFICIENT

COLUMNS: Final = (
    "single_tool_call",
    "multiple_tool_call",
    "single_user_turn",
    "multiple_user_turn",
    "state_dependency",
    "canonicalization",
    INSUFFICIENT,
)
"""Categories in the order of ToolSandbox's table; a report lists other categories after them."""


@dataclass(frozen=True, slots=True)
class GradedTask:
    """Scores of one graded task: of each judged trial, and of an agent that does nothing."""

    categories: tuple[str, ...]
    scores: tuple[float, ...]
    idle_score: float


def report_similarity(tasks: Sequence[GradedTask]) -> dict[str, Any]:
    """Return the report's fields; `do_nothing_similarity` is for an agent that does nothing."""
    apart = [task for task in tasks if INSUFFICIENT in task.categories]
    others = [task for task in tasks if INSUFFICIENT not in task.categories]
    named = {category for task in tasks for category in task.categories}
    ordered = [*(c for c in COLUMNS if c in named), *sorted(named - set(COLUMNS))]
    rows = {c: [task for task in tasks if c in task.categories] for c in ordered}
    whole = _describe(tasks)
    return {
        "similarity": whole["similarity"],
        "perfect": whole["perfect"],
        INSUFFICIENT: _describe(apart),
        "others": _describe(others),
        "categories": {category: _describe(row) for category, row in rows.items()},
    }


def _describe(tasks: Sequence[GradedTask]) -> dict[str, Any]:
    judged = [task for task in tasks if task.scores]
    return {
        "n": len(tasks),
        "similarity": _mean(sum(task.scores) / len(task.scores) for task in judged),
        "perfect": _mean(
            sum(score >= EXACT for score in task.scores) / len(task.scores) for task in judged
        ),
        "do_nothing_similarity": _mean(task.idle_score for task in tasks),
    }


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return sum(known) / len(known) if known else None
