"""BFCL's multi-turn categories for any endpoint, as a table of the paper's rows (Structured
Reflection, arXiv 2509.18847, table 1).

A category is a split of the environment `bfcl` in FC mode, and an evaluation (run.py). The official
verdict is the part `TURNS`; BFCL judges a case that was cut off in its last turn by the calls until
then. The strict verdict also needs `ABSTENTION` and a regular ending.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from daemon.evaluation.run import Run, by_k, outcomes_of
from envs import statistics
from envs.bfcl.cases import SPLITS
from envs.bfcl.environment import NATIVE, Bfcl
from envs.episode import Termination
from envs.evaluation import UNJUDGED
from envs.grading import Grade
from envs.task import Basis
from envs.tau2.benchmark import InvalidBenchmark, NoBenchmark
from events.rollouts import RolloutEnded

if TYPE_CHECKING:
    from daemon.core.app import App

OFFICIAL: Final[Basis] = "TURNS"
"""Name of the reward's part that has BFCL's own verdict."""
_JUDGED_OFFICIALLY: Final = frozenset(
    {
        Termination.USER_STOP,
        Termination.AGENT_STOP,
        Termination.MAX_STEPS,
        Termination.AGENT_ERROR,
    }
)
"""Endings that BFCL judges; at any other ending BFCL counts a failed request."""


Outcomes = dict[str, Sequence[bool | None]]
"""Task -> verdict of each trial; None if the trial was spoiled."""


@dataclass(frozen=True, slots=True)
class Category:
    """A category of which all tasks were played."""

    run: Run
    idle: Mapping[str, Grade]
    """Task -> verdict on an agent that does nothing."""
    official: Outcomes


def survey_categories(
    environment: Bfcl, categories: Sequence[str] = SPLITS
) -> tuple[dict[str, str], dict[str, str]]:
    """Return category -> its split, and category -> why the folder lacks it. Raises NoBenchmark if
    it has none, NoBfclClasses."""
    splits: dict[str, str] = {}
    lacking: dict[str, str] = {}
    for category in categories:
        split = f"{category}-{NATIVE}"
        try:
            has_case = any(True for _ in environment.tasks(split))
        except (NoBenchmark, InvalidBenchmark) as error:
            lacking[category] = str(error)
            continue
        if has_case:
            splits[category] = split
        else:
            lacking[category] = "its file has no case"
    if not splits:
        raise NoBenchmark(next(iter(lacking.values())))
    return splits, lacking


def read_official(app: "App", run: Run) -> Outcomes:
    """Return task -> official verdict of each trial, None for a spoiled trial. Raises LogTruncated,
    BadRecord."""
    from daemon.sessions import transcript

    verdicts: dict[str, list[bool | None]] = {line.id: [] for line in run.lines}
    with app.reading() as connection:
        for task, trial in run.slots:
            ended = run.ended.get((task, trial))
            if ended is None or ended.termination in UNJUDGED:
                verdicts[task].append(None)
                continue
            rollout = run.rollout((task, trial), run.tries[task, trial] - 1)
            recorded = transcript.read(transcript.find(connection, rollout), app.log, app.bodies)
            verdicts[task].append(is_right_officially(recorded.data))
    return {task: trials for task, trials in verdicts.items() if set(trials) != {None}}


def is_right_officially(rollout: RolloutEnded) -> bool:
    """Return whether a recorded rollout that is not spoiled passes by BFCL's verdict."""
    return rollout.reward_parts.get(OFFICIAL) == 1.0 and rollout.termination in _JUDGED_OFFICIALLY


def report(played: Mapping[str, Category], lacking: Mapping[str, str]) -> dict[str, Any]:
    """Return the document of `kintsugi bench bfcl --json`. Over all categories each case counts
    alike, which equals BFCL's mean for categories of equal size."""
    verdicts = [verdict for category in played.values() for verdict in category.run.ended.values()]
    return {
        "tasks": sum(len(category.run.lines) for category in played.values()),
        "trials": max(category.run.trials for category in played.values()),
        **_describe(list(played.values())),
        "per_category": {
            name: {"tasks": len(category.run.lines), **_describe([category])}
            for name, category in played.items()
        },
        "missing": dict(lacking),
        "unjudged": sum(verdict.termination in UNJUDGED for verdict in verdicts),
        "terminations": dict(sorted(Counter(str(v.termination) for v in verdicts).items())),
    }


def _describe(categories: Sequence[Category]) -> dict[str, Any]:
    """Return pass^k by both verdicts, and pass^k of an agent that does nothing."""
    official: Outcomes = {}
    strict: Outcomes = {}
    idle: dict[str, Grade] = {}
    for category in categories:
        official |= category.official
        strict |= outcomes_of(category.run, category.run.lines)
        idle |= category.idle
    idle_verdicts: dict[str, Outcomes] = {
        "official": {task: [grade.parts[OFFICIAL] == 1.0] for task, grade in idle.items()},
        "strict": {task: [grade.success] for task, grade in idle.items()},
    }
    return {
        "official": by_k(statistics.pass_hat, official),
        "strict": by_k(statistics.pass_hat, strict),
        "do_nothing": {
            rule: asdict(statistics.pass_hat(outcomes, 1))
            for rule, outcomes in idle_verdicts.items()
        },
    }
