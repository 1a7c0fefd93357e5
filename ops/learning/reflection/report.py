"""What a folder of results shows, in Markdown (pure): repairs by operator, what a mistake costs,
what ordinary tasks lose, and which goals are met.

Figures are means over the seeds that an arm has, with 95 % intervals by the hierarchical bootstrap
(ops/learning/bootstrap.py). All arms of a seed meet the same held-out tasks and lessons, so
differences are taken task by task, over the seeds that both arms have. A goal is `met` where its
figure reaches it, and `shown` where the whole interval does. Intervals are not corrected for their
number.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import comb
from statistics import fmean
from typing import Final

import numpy as np

from daemon.engine.reference.recipe import WEAK
from envs.lessons.operators import PERTURBATIONS
from envs.statistics import Interval
from events.errors import KintsugiError
from ops.learning.bootstrap import TaskRates, compute_task_rates, interval
from ops.learning.cycles.report import judge
from ops.learning.reflection.results import ArmRun, Tries
from ops.learning.reflection.settings import ARMS, CONTROL, SEEDS, TAUGHT, Arm, Settings
from ops.learning.report import format_change, format_interval, format_table

_DEPTHS: Final = (1, 3, 5)
"""k of Repair@k."""

_EVERY: Final[Mapping[str, float]] = dict.fromkeys(PERTURBATIONS, 1.0)
"""Weights of all operators alike."""

Runs = Mapping[Arm, Mapping[int, ArmRun]]
"""Arm -> seed -> run."""


class NothingToReport(KintsugiError):
    """A folder without a result of the base."""


class OtherSettings(KintsugiError):
    """A result that was made with other settings."""


def write_report(results: Sequence[ArmRun], settings: Settings) -> str:
    """Return the report. Raises NothingToReport, OtherSettings."""
    _check_settings(results, settings)
    runs = {
        arm: own for arm in ARMS if (own := {r.key.seed: r for r in results if r.key.arm == arm})
    }
    if "base" not in runs:
        raise NothingToReport("there is no result of the base; run the arms first")
    sections = [
        ("", _provenance(results, runs)),
        ("What was spent", _tabulate_costs(runs)),
        ("Repair@1 by operator, and whether the first message reflects", _tabulate_repairs(runs)),
        ("All operators: more tries, and the benchmark's own rule", _tabulate_depths(runs)),
        ("pass^1 of the taught kinds, without and behind a mistake", _tabulate_mistakes(runs)),
        (f"Less the arm {CONTROL}", _tabulate_differences(runs)),
        ("pass^1 without a mistake less the base, by kind", _tabulate_kinds(runs, settings)),
        ("Goals", _tabulate_goals(runs, settings)),
    ]
    return "\n\n".join(f"{title}\n\n{body}" if title else body for title, body in sections) + "\n"


def _check_settings(results: Sequence[ArmRun], settings: Settings) -> None:
    for result in results:
        if result.source.settings != settings.digest:
            raise OtherSettings(
                f"{result.key.name} was made with the settings {result.source.settings[:12]}, not "
                f"{settings.digest[:12]}; use another folder"
            )


def _provenance(results: Sequence[ArmRun], runs: Runs) -> str:
    commits = ", ".join(sorted({result.source.commit[:12] for result in results}))
    dirty = sum(not result.source.clean for result in results)
    whole = [seed for seed in SEEDS if all(seed in runs.get(arm, {}) for arm in ARMS)]
    settings = results[0].source.settings[:12]
    lines = [
        f"Settings {settings}, commits {commits}; {len(whole)} of {len(SEEDS)} seeds have all arms."
    ]
    if dirty:
        lines.append(f"{dirty} results were made with changed files.")
    if any(result.key.development for result in results):
        lines.append("Development seeds: no figure to report.")
    return "\n".join(lines)


def _tabulate_costs(runs: Runs) -> str:
    rows = [
        ["arm", "seeds", "references", "written tokens", "rollouts", "without an adapter",
         "seconds of a processor"]
    ]  # fmt: skip
    for arm, own in runs.items():
        figures = (
            fmean(run.references for run in own.values()),
            fmean(run.reference_tokens for run in own.values()),
            fmean(run.rollouts for run in own.values()),
            sum(run.adapter is None for run in own.values()),
            fmean(run.processor_seconds for run in own.values()),
        )
        seeds = ", ".join(map(str, sorted(own)))
        rows.append([f"`{arm}`: {ARMS[arm].title}", seeds, *(f"{value:,.0f}" for value in figures)])
    return format_table(rows)


def _tabulate_repairs(runs: Runs) -> str:
    rows = [["arm", *(f"`{operator}`" for operator in PERTURBATIONS), "all", "reflects"]]
    for arm, own in runs.items():
        repaired = _repair_rates(own, sorted(own), 1)
        rows.append(
            [
                f"`{arm}`",
                *(format_interval(interval(repaired, {name: 1.0})) for name in PERTURBATIONS),
                format_interval(interval(repaired, _EVERY)),
                f"{_mean_tries(own, lambda tries: tries.reflected):.3f}",
            ]
        )
    return format_table(rows)


def _tabulate_depths(runs: Runs) -> str:
    rows = [["arm", *(f"Repair@{k}" for k in _DEPTHS), "official, one try"]]
    for arm, own in runs.items():
        figures = [interval(_repair_rates(own, sorted(own), k), _EVERY) for k in _DEPTHS]
        official = _mean_tries(own, lambda tries: tries.official)
        rows.append([f"`{arm}`", *map(format_interval, figures), f"{official:.3f}"])
    return format_table(rows)


def _tabulate_mistakes(runs: Runs) -> str:
    rows = [
        [
            "arm",
            "without",
            "behind a mistake",
            "ratio",
            "repeated calls",
            "tokens, without and behind",
        ]
    ]
    for arm, own in runs.items():
        clean = interval(_clean_rates(own, sorted(own)), TAUGHT)
        behind = interval(_injected_rates(own, sorted(own)), _EVERY)
        tokens = fmean(fmean(run.clean_tokens[kind] for kind in TAUGHT) for run in own.values())
        rows.append(
            [
                f"`{arm}`",
                format_interval(clean),
                format_interval(behind),
                f"{behind.value / clean.value:.3f}" if clean.value else "",
                f"{_mean_tries(own, lambda tries: tries.repeated):.3f}",
                f"{tokens:.1f}, {_mean_tries(own, lambda tries: tries.tokens):.1f}",
            ]
        )
    return format_table(rows)


def _tabulate_differences(runs: Runs) -> str:
    rows = [
        ["arm", "seeds", "Repair@1, all operators", "pass^1 behind a mistake", "weak kinds, pass^1"]
    ]
    for arm, own in runs.items():
        seeds = sorted(set(own) & set(runs.get(CONTROL, {})))
        if arm == CONTROL or not seeds:
            continue
        other = runs[CONTROL]
        repaired = _repair_rates(own, seeds, 1) - _repair_rates(other, seeds, 1)
        behind = _injected_rates(own, seeds) - _injected_rates(other, seeds)
        clean = _clean_rates(own, seeds) - _clean_rates(other, seeds)
        rows.append(
            [
                f"`{arm}`",
                str(len(seeds)),
                format_change(interval(repaired, _EVERY)),
                format_change(interval(behind, _EVERY)),
                format_change(interval(clean, dict.fromkeys(WEAK, 1.0))),
            ]
        )
    return format_table(rows)


def _tabulate_kinds(runs: Runs, settings: Settings) -> str:
    others = [arm for arm in runs if arm != "base"]
    rows = [["kind", "base", *(f"`{arm}`" for arm in others)]]
    base = runs["base"]
    for kind in settings.kinds:
        level = interval(_clean_rates(base, sorted(base)), {kind: 1.0})
        changes = (_compare_kind(runs[arm], base, kind) for arm in others)
        name = f"**{kind}**" if kind in WEAK else kind
        rows.append(
            [name, format_interval(level), *(format_change(c) if c else "" for c in changes)]
        )
    return format_table(rows)


def _tabulate_goals(runs: Runs, settings: Settings) -> str:
    """Tabulate the goals of every trained arm."""
    rows = [["arm", "goal", "figure", "at least", "outcome"]]
    for arm in runs:
        if ARMS[arm].is_trained and arm != CONTROL:
            rows += (
                [f"`{arm}`", name, text, f"{goal:g}", judge(figure, goal)]
                for name, figure, text, goal in _judge_arm(runs, arm, settings)
            )
    return format_table(rows)


def _judge_arm(
    runs: Runs, arm: Arm, settings: Settings
) -> Iterator[tuple[str, Interval, str, float]]:
    """Yield name, figure, its text and its goal."""
    own, goals = runs[arm], settings.goals
    seeds = sorted(own)
    for operator, goal in goals.repair.items():
        figure = interval(_repair_rates(own, seeds, 1), {operator: 1.0})
        yield f"Repair@1 after `{operator}`", figure, format_interval(figure), goal
    clean = interval(_clean_rates(own, seeds), TAUGHT)
    behind = interval(_injected_rates(own, seeds), _EVERY)
    yield (
        "pass^1 behind a mistake, against .9 of that without",
        behind,
        format_interval(behind),
        round(goals.injected * clean.value, 3),
    )
    for kind in TAUGHT:
        change = _compare_kind(own, runs["base"], kind)
        if change is not None and change.value < -goals.loss:
            yield f"{kind}, less the base", change, format_change(change), -goals.loss
    shared = sorted(set(own) & set(runs.get(CONTROL, {})))
    if shared:
        ahead = interval(
            _injected_rates(own, shared) - _injected_rates(runs[CONTROL], shared), _EVERY
        )
        yield f"pass^1 behind a mistake, less `{CONTROL}`", ahead, format_change(ahead), 0.0


def _compare_kind(
    own: Mapping[int, ArmRun], other: Mapping[int, ArmRun], kind: str
) -> Interval | None:
    """Return the difference over the seeds that both arms have; None without one."""
    seeds = sorted(set(own) & set(other))
    if not seeds:
        return None
    return interval(_clean_rates(own, seeds) - _clean_rates(other, seeds), {kind: 1.0})


def _clean_rates(runs: Mapping[int, ArmRun], seeds: Sequence[int]) -> TaskRates:
    return compute_task_rates([runs[seed].clean for seed in seeds], 1)


def _injected_rates(runs: Mapping[int, ArmRun], seeds: Sequence[int]) -> TaskRates:
    """Return pass^1 of whole episodes behind a mistake."""
    return _rate_lessons(runs, seeds, lambda tries: fmean(tries.passed))


def _repair_rates(runs: Mapping[int, ArmRun], seeds: Sequence[int], k: int) -> TaskRates:
    """Return Repair@k, without bias: 1 - C(n - c, k) / C(n, k)."""

    def rate(tries: Tries) -> float:
        count, right = len(tries.repaired), sum(tries.repaired)
        return 1 - comb(count - right, k) / comb(count, k)

    return _rate_lessons(runs, seeds, rate)


def _rate_lessons(
    runs: Mapping[int, ArmRun], seeds: Sequence[int], rate: Callable[[Tries], float]
) -> TaskRates:
    return TaskRates(
        {
            operator: np.array(
                [
                    [rate(tries) for tries in runs[seed].injected[operator].values()]
                    for seed in seeds
                ]
            )
            for operator in PERTURBATIONS
        }
    )


def _mean_tries(runs: Mapping[int, ArmRun], read: Callable[[Tries], Iterable[float]]) -> float:
    """Return the mean over seeds, operators, lessons and tries, each lesson alike."""
    return fmean(
        fmean(read(tries))
        for run in runs.values()
        for lessons in run.injected.values()
        for tries in lessons.values()
    )
