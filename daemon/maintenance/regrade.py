"""Grade recorded rollouts of tau2-bench again, to check that their verdicts follow from the
transcript.

Each simulation is graded by replay (envs/grading.py) with the task that its file embeds, on the
real database of its environment. If the user acts too (telecom), the embedded task includes the
initial state and the assertions. A simulation without a user has a task for an agent alone.

A mistake (an edited task, a bug, grading by hand) makes a verdict wrong with probability
`MISTAKES`. A file counts as mislabelled if its number of disagreements, or of another task's action
checks, has a probability below `IMPLAUSIBLE`. 25 of 50 and 4 of 4 are too many; 8 of 50 and 3 of 3
are not. The action checks reveal shuffled task ids even if all verdicts are equal.

Environments that cannot run here, verdicts of a judge, and other formats are counted, not graded.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from math import comb
from pathlib import Path
from typing import Any, Final, cast, get_args

from pydantic import ValidationError

from envs.database import ABSENT
from envs.environment import Environment
from envs.evaluation import check_loaded
from envs.grading import Grade, grade
from envs.registry import UnknownEnvironment
from envs.task import Basis, Criteria, Scenario, TaskDefinition
from envs.tau2.benchmark import InvalidBenchmark, task_definition
from envs.tau2.environment import Tau2Environment
from events.rollouts import RolloutEnded, Task
from producers.importers import tau2
from producers.importers.importer import read_rollouts
from producers.importers.records import Rejection, RolloutImport
from producers.importers.tau2_simulation import FOREIGN_CHECKS, NO_USER

MISTAKES: Final = 0.1
"""Share of a file's verdicts that may be wrong by mistake. Up to 8 of 50 verdicts flip when tasks
are edited upstream (measured on the published airline results); usually none does."""

IMPLAUSIBLE: Final = 0.001
"""Probability below which mistakes no longer explain a file's wrong verdicts."""

EMBEDDED: Final = "embedded"
"""Name of the split for a task that is embedded in its simulation."""

_SHOWN_DIFFERENCES: Final = 3
_SHOWN_CHARACTERS: Final = 80

EnvironmentOpener = Callable[[str], Environment]


@dataclass(frozen=True, slots=True)
class Disagreement:
    """One simulation whose recorded verdict differs from the replayed one."""

    rollout: str
    task: str
    recorded: bool
    ours: bool
    why: str


@dataclass(frozen=True, slots=True)
class CheckDifference:
    """One simulation whose verdict by its benchmark's rules differs from ours."""

    rollout: str
    task: str
    benchmark: bool
    ours: bool
    why: str


@dataclass(slots=True)
class RegradeReport:
    """Results for one file's simulations in one environment."""

    file: str
    env: str | None
    simulations: int = 0
    graded: int = 0
    agree: int = 0
    disagree: list[Disagreement] = field(default_factory=list)
    differ: list[CheckDifference] = field(default_factory=list)
    """Simulations that our rules and the benchmark's judge differently, whatever was recorded."""
    unjudged: int = 0
    """Number of simulations recorded without a verdict."""
    unevaluated: int = 0
    """Number of simulations whose reward has a part that cannot be evaluated here."""
    foreign: int = 0
    """Number of simulations with another task's action checks."""
    rejected: list[Rejection] = field(default_factory=list)
    mislabelled: bool = False
    why: str = ""
    """Why the file counts as mislabelled, or why nothing was graded; else empty."""

    @property
    def in_order(self) -> bool:
        """Return whether everything could be read and nothing contradicts the recorded verdicts."""
        return not (self.disagree or self.mislabelled or self.rejected)


def regrade(
    paths: Iterable[Path],
    opened: EnvironmentOpener,
    progress: Callable[[int], None] = lambda _: None,
) -> Iterator[RegradeReport]:
    """Grade the simulations of these files and folders again, file by file. `opened` returns the
    environment of a name or raises UnknownEnvironment; `progress` gets the number of bytes read.
    Raise NoBenchmark if the real database is missing."""
    items = read_rollouts(paths, progress=progress)
    for file, group in groupby(items, key=_file):
        yield from _regrade_file(file, group, opened)


def _file(item: RolloutImport | Rejection) -> str:
    """Return the results file of a simulation; for a folder of simulations, the file beside it."""
    folder = Path(item.file).parent
    results = folder.parent / tau2.RESULTS
    return str(results) if folder.name == tau2.SIMULATIONS and results.is_file() else item.file


def _regrade_file(
    file: str, items: Iterable[RolloutImport | Rejection], opened: EnvironmentOpener
) -> list[RegradeReport]:
    """Return one report per environment of a file; the first one lists unreadable simulations."""
    by_name: dict[str | None, RegradeReport] = {}
    rejected: list[Rejection] = []
    for item in items:
        if isinstance(item, Rejection):
            rejected.append(item)
            continue
        name = item.data.task.environment if item.data.task else None
        report = by_name.get(name) or RegradeReport(file, name, why=_hindrance(item.data, opened))
        by_name[name] = report
        report.simulations += 1
        report.foreign += FOREIGN_CHECKS in item.warnings
        if not report.why:
            _count(report, item, opened)
    reports = list(by_name.values()) or [
        RegradeReport(file, None, why="no simulation could be read")
    ]
    reports[0].rejected = rejected
    for report in reports:
        _conclude(report)
    return reports


def _hindrance(data: RolloutEnded, opened: EnvironmentOpener) -> str:
    """Return why the rollouts of this environment cannot be graded; empty if they can be."""
    if data.source != tau2.NAME:
        return f"{data.source} files are not graded again, only results of tau2-bench"
    name = data.task.environment if data.task else None
    if name is None:
        return "nobody declared these tools, so there is no environment to replay them in"
    try:
        environment = opened(name)
    except UnknownEnvironment:
        return f"environment {name} is imported and diagnosed, not executed"
    if not isinstance(environment, Tau2Environment):
        return f"environment {name} has no real database"
    return ""


def _count(report: RegradeReport, item: RolloutImport, opened: EnvironmentOpener) -> None:
    data = item.data
    if data.success is None:
        report.unjudged += 1
        return
    known = _read_task(item, opened)
    if known is None:
        report.unevaluated += 1
        return
    environment, messages = opened(known.environment), data.content.messages if data.content else ()
    verdict = grade(environment, known, messages, data.termination)
    if verdict.success is None:
        report.unevaluated += 1
        return
    report.graded += 1
    ours = check_loaded(environment, known, messages, data.termination)
    if ours is not None and ours.success not in (None, verdict.success):
        why = _reasons(ours if verdict.success else verdict)
        report.differ.append(
            CheckDifference(data.rollout, known.id, verdict.success, ours.success, why)
        )
    if verdict.success == data.success:
        report.agree += 1
    else:
        task = data.task.id if data.task else ""
        recorded = ", ".join(f"{part} {worth}" for part, worth in data.reward_parts.items())
        why = f"{_reasons(verdict)} (recorded: {recorded or 'no parts'})"
        report.disagree.append(Disagreement(data.rollout, task, data.success, verdict.success, why))


def _read_task(item: RolloutImport, opened: EnvironmentOpener) -> TaskDefinition | None:
    """Return the embedded task; None if its reward has a part that cannot be evaluated here."""
    task = item.data.task
    if task is None or not set(task.reward_basis) <= set(get_args(Basis)):
        return None
    environment = opened(task.environment or "")
    return (
        definition(task) if environment.user_toolset is None else _read_embedded(item, environment)
    )


def _read_embedded(item: RolloutImport, environment: Environment) -> TaskDefinition | None:
    """Return the embedded task with first state and assertions; None if it cannot be built."""
    assert isinstance(environment, Tau2Environment), "_hindrance left the others out"
    raw = json.loads(item.record)["task"]
    try:
        known = task_definition(raw, environment.benchmark_files, EMBEDDED)
    except (InvalidBenchmark, KeyError, TypeError, ValidationError):
        return None
    if item.data.simulator != NO_USER:
        return known
    return known.make_solo(known.id, raw.get("ticket") or known.scenario.text())


def definition(task: Task) -> TaskDefinition:
    """Return a recorded task as an executable definition, without natural-language assertions."""
    basis = cast("tuple[Basis, ...]", task.reward_basis)
    arguments = {"reward_basis": basis} if basis else {}
    return TaskDefinition(
        id=task.id,
        environment=task.environment or "",
        capability=task.capability or EMBEDDED,
        split=EMBEDDED,
        scenario=Scenario(reason_for_call=task.instruction or ""),
        criteria=Criteria(
            gold_actions=task.gold_actions,
            outputs=task.outputs,
            nl_assertions=("not recorded",) if "NL_ASSERTION" in basis else (),
            **arguments,
        ),
    )


def _reasons(verdict: Grade) -> str:
    ours: list[str] = []
    if verdict.irregular is not None:
        ours.append(f"ended by {verdict.irregular}")
    for mismatch in verdict.difference[:_SHOWN_DIFFERENCES]:
        place = "/".join(mismatch.path)
        ours.append(
            f"{place} is {_format_value(mismatch.actual)} and should be "
            f"{_format_value(mismatch.expected)}"
        )
    more = len(verdict.difference) - _SHOWN_DIFFERENCES
    if more > 0:
        ours.append(f"and {more} more values differ")
    ours += [f"{output!r} was not said" for output in verdict.missing]
    ours += verdict.violations
    if verdict.parts.get("ACTION") == 0:
        ours.append("a gold action was not called")
    return "; ".join(ours) or "every part is 1"


def _format_value(value: Any) -> str:
    text = "not there" if value is ABSENT else repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def _conclude(report: RegradeReport) -> None:
    reasons = []
    if _implausible(len(report.disagree), report.graded):
        reasons.append(f"only {report.agree} of {report.graded} verdicts follow from what was done")
    if _implausible(report.foreign, report.simulations):
        reasons.append(
            f"{report.foreign} of {report.simulations} simulations carry the action checks of "
            "another task"
        )
    if reasons:
        report.mislabelled = True
        report.why = f"{', and '.join(reasons)}: the task ids are wrong, do not trust its rewards"


def _implausible(wrong: int, of: int) -> bool:
    """Return whether mistakes alone make `wrong` or more of `of` verdicts wrong with a probability
    below `IMPLAUSIBLE`: the upper tail of a binomial distribution."""
    tail = sum(
        comb(of, count) * MISTAKES**count * (1 - MISTAKES) ** (of - count)
        for count in range(wrong, of + 1)
    )
    return tail < IMPLAUSIBLE
