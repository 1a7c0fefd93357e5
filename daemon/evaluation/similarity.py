"""What an evaluation of graded tasks adds to the report: mean similarity, by category too.

    similarity    mean over tasks of the mean score of their judged trials
    perfect       mean over tasks of the share of trials that are a success

The tasks that cannot be fulfilled are reported apart, always: there an agent that does nothing is
nearly perfect, and everywhere else it is worth nothing, so one mean of both says little (the table
of ToolSandbox, arXiv 2408.04682, has a column for them).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from envs.grading import Grade

if TYPE_CHECKING:
    from daemon.evaluation.run import Line, Run

INSUFFICIENT: Final = "insufficient_information"

COLUMNS: Final = (
    "single_tool_call",
    "multiple_tool_call",
    "single_user_turn",
    "multiple_user_turn",
    "state_dependency",
    "canonicalization",
    INSUFFICIENT,
)
"""The categories of scenarios, in the order of ToolSandbox's table; others follow them."""


def report_similarity(run: "Run", idle: Mapping[str, Grade]) -> dict[str, Any]:
    """What `kintsugi eval --json` adds where tasks are graded.

    `idle` is, by task, the grade of an agent that does nothing: its figures stand beside those of
    the agent as `do_nothing_similarity`.
    """
    lines = [line for line in run.lines if line.graded]
    apart = [line for line in lines if INSUFFICIENT in line.categories]
    others = [line for line in lines if INSUFFICIENT not in line.categories]
    named = {category for line in lines for category in line.categories}
    ordered = [*(c for c in COLUMNS if c in named), *sorted(named - set(COLUMNS))]
    rows = {c: [line for line in lines if c in line.categories] for c in ordered}
    return {
        "similarity": _mean_score(run, lines),
        "perfect": _mean(_perfect(run, lines)),
        INSUFFICIENT: _describe(run, apart, idle),
        "others": _describe(run, others, idle),
        "categories": {category: _describe(run, row, idle) for category, row in rows.items()},
    }


def _describe(run: "Run", lines: Sequence["Line"], idle: Mapping[str, Grade]) -> dict[str, Any]:
    return {
        "n": len(lines),
        "similarity": _mean_score(run, lines),
        "perfect": _mean(_perfect(run, lines)),
        "do_nothing_similarity": _mean(idle[line.id].reward or 0.0 for line in lines),
    }


def _mean_score(run: "Run", lines: Sequence["Line"]) -> float | None:
    means = (_mean(v.reward for v in _judged(run, line) if v.reward is not None) for line in lines)
    return _mean(mean for mean in means if mean is not None)


def _perfect(run: "Run", lines: Sequence["Line"]) -> Iterable[float]:
    for line in lines:
        share = _mean(float(bool(verdict.success)) for verdict in _judged(run, line))
        if share is not None:
            yield share


def _judged(run: "Run", line: "Line") -> list[Any]:
    ended = (run.ended.get((line.id, trial)) for trial in range(run.trials))
    return [verdict for verdict in ended if verdict is not None and verdict.success is not None]


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return sum(known) / len(known) if known else None
