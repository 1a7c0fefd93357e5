"""What a folder of results shows: pass^1 of every arm and kind, and which goals are met (pure but
for `read`).

All arms of a seed meet the same tasks with the same random numbers, so differences are taken task
by task. Intervals (95 %): seeds are drawn first, then tasks (ops/learning/bootstrap.py). A goal is
`met` where its figure reaches it, and `shown` where the whole interval does.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Final

from pydantic import ValidationError

from envs.statistics import Interval
from events.errors import KintsugiError
from events.registry import first_problem
from ops.learning.bootstrap import TaskRates, compute_task_rates, interval
from ops.learning.cycles.run import ArmResult
from ops.learning.cycles.settings import ARMS, Arm, Settings

_ROUNDING: Final = 1e-9
"""Of sums of shares."""


class NothingToReport(KintsugiError):
    """A folder without a result of the base."""


class OtherSettings(KintsugiError):
    """A result that was made with other settings."""


class BadResult(KintsugiError):
    """A file that is no result."""


def read(folder: Path) -> list[ArmResult]:
    """All results of a folder, by name. Raises BadResult."""
    results = []
    for file in sorted(folder.glob("*.json")):
        try:
            results.append(ArmResult.model_validate_json(file.read_bytes()))
        except ValidationError as error:
            raise BadResult(
                f"{file} is no result of an arm: {first_problem(error)}; move it away"
            ) from None
    return results


def check_settings(results: Sequence[ArmResult], settings: Settings) -> None:
    """Raises OtherSettings where one was made with other settings than these."""
    for result in results:
        if result.source.settings != settings.digest:
            raise OtherSettings(
                f"{result.arm} of seed {result.seed} was made with the settings "
                f"{result.source.settings[:12]}, not {settings.digest[:12]}; use another folder"
            )


def text(results: Sequence[ArmResult], settings: Settings) -> str:
    """The report, in Markdown. Raises NothingToReport, OtherSettings."""
    check_settings(results, settings)
    by_arm = {arm: {r.seed: r for r in results if r.arm == arm} for arm in ARMS}
    if not by_arm["base"]:
        raise NothingToReport("there is no result of the base; run the arms first")
    parts = [
        _provenance(results, settings),
        _table(
            ["arm", "seeds", "all traffic, 95 %", "of each seed", "rollouts", "references"],
            [_arm_row(arm, by_arm[arm], settings) for arm in ARMS if by_arm[arm]],
        ),
        _table(
            ["kind", "share", *(arm for arm in ARMS if by_arm[arm])],
            [_kind_row(kind, by_arm, settings) for kind in settings.mixture],
        ),
        _table(
            ["goal, after the last cycle", "seeds", "figure, 95 %", "goal", "outcome"],
            list(_goal_rows(by_arm, settings)),
        ),
    ]
    return "\n".join(parts)


def _provenance(results: Sequence[ArmResult], settings: Settings) -> str:
    commits = sorted({result.source.commit[:12] for result in results})
    dirty = sum(not result.source.clean for result in results)
    changed = f", {dirty} results with changed files" if dirty else ""
    return (
        f"{settings.cycles} cycles, settings {settings.digest[:12]}, "
        f"commits {', '.join(commits)}{changed}\n"
    )


def _arm_row(arm: Arm, runs: Mapping[int, ArmResult], settings: Settings) -> list[str]:
    rates = _rates(runs, sorted(runs))
    return [
        f"{arm}: {ARMS[arm]}",
        ", ".join(map(str, sorted(runs))),
        _level(interval(rates, settings.mixture)),
        ", ".join(f"{value:.3f}" for value in rates.by_seed(settings.mixture)),
        f"{fmean(run.rollouts for run in runs.values()):,.0f}",
        f"{fmean(run.references for run in runs.values()):,.0f}",
    ]


def _kind_row(
    kind: str, by_arm: Mapping[Arm, Mapping[int, ArmResult]], settings: Settings
) -> list[str]:
    name = f"**{kind}**" if kind in settings.weak else kind
    figures = [
        _level(interval(_rates(runs, sorted(runs)), {kind: 1.0}))
        for runs in by_arm.values()
        if runs
    ]
    return [name, f"{settings.mixture[kind]:.3f}", *figures]


def _goal_rows(
    by_arm: Mapping[Arm, Mapping[int, ArmResult]], settings: Settings
) -> Iterator[list[str]]:
    """Every goal with its figure; one whose arms are missing is named as not measured."""
    loop, goals = by_arm["loop"], settings.goals
    yield _goal_row(
        "all traffic", _level, goals.traffic,
        (interval(_rates(loop, sorted(loop)), settings.mixture), sorted(loop)) if loop else None,
    )  # fmt: skip
    for kind in settings.weak:
        compared = _difference(loop, by_arm["sft"], {kind: 1.0})
        yield _goal_row(f"{kind}, less the arm sft", _gain, 0.0, compared)
    for kind in settings.mixture:
        compared = _difference(loop, by_arm["base"], {kind: 1.0})
        yield _goal_row(f"{kind}, less the base", _gain, -goals.loss, compared)
    beside = _difference(loop, by_arm["general"], settings.mixture)
    yield _goal_row("all traffic, less the arm general", _gain, None, beside)


def _difference(
    own: Mapping[int, ArmResult], other: Mapping[int, ArmResult], weights: Mapping[str, float]
) -> tuple[Interval, list[int]] | None:
    """The difference over the seeds that both arms have; None without one."""
    seeds = sorted(set(own) & set(other))
    if not seeds:
        return None
    return interval(_rates(own, seeds) - _rates(other, seeds), weights), seeds


def _goal_row(
    name: str,
    show: Callable[[Interval], str],
    goal: float | None,
    measured: tuple[Interval, list[int]] | None,
) -> list[str]:
    wanted = "" if goal is None else f"at least {goal:g}"
    if measured is None:
        return [name, "", "", wanted, "not measured"]
    figure, seeds = measured
    return [name, ", ".join(map(str, seeds)), show(figure), wanted, judge(figure, goal)]


def judge(figure: Interval, goal: float | None) -> str:
    """Return whether a figure reaches a goal, and whether its whole interval does."""
    if goal is None:
        return "no goal"
    if figure.value < goal - _ROUNDING:
        return "**not met**" if figure.high >= goal else "**not met**, and shown to be below"
    return "met and shown" if figure.low >= goal - _ROUNDING else "met, not shown"


def _rates(runs: Mapping[int, ArmResult], seeds: Sequence[int]) -> TaskRates:
    return compute_task_rates([runs[seed].outcomes for seed in seeds], 1)


def _level(figure: Interval) -> str:
    return f"{figure.value:.3f} ({figure.low:.3f} to {figure.high:.3f})"


def _gain(figure: Interval) -> str:
    return f"{figure.value:+.3f} ({figure.low:+.3f} to {figure.high:+.3f})"


def _table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (names, ["---"] * len(names), *rows)]
    return "\n".join(lines) + "\n"
