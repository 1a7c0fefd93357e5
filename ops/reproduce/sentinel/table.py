"""The table: pass^k of base, general and targeted, and the ratio of the gains.

Each policy's pass^k and interval are those of `kintsugi eval`. Differences are paired over the
tasks with all verdicts of every policy (figures.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import comb
from typing import Any, Final

from envs.statistics import Interval
from ops.reproduce.commands import Document, Folder, StageFailure
from ops.reproduce.figures import (
    format_change,
    format_interval,
    format_table,
    measure_difference,
    measure_ratio,
)
from ops.reproduce.homes import Verdicts, read_verdicts
from ops.reproduce.sentinel.settings import POLICIES, Policy, Reproduction
from ops.reproduce.sentinel.training import build_own_settings

_COMPARED: Final[tuple[tuple[Policy, Policy], ...]] = (
    ("general", "base"), ("targeted", "base"), ("targeted", "general"),
)  # fmt: skip


def build_table(plan: Reproduction, folder: Folder) -> Document:
    """Return the figures, and the table as Markdown under `text`. Raise StageFailure."""
    evaluations = {policy: folder.read(f"evaluate-{policy}") for policy in POLICIES}
    powers = range(1, plan.counts.trials + 1)
    names = {plan.name_policy(policy): policy for policy in POLICIES}
    settings = build_own_settings(plan, folder.evaluation)
    verdicts = read_verdicts(settings, names, plan.env, plan.counts.trials)
    common = sorted(set.intersection(*(set(own) for own in verdicts.values())))
    if not common:
        raise StageFailure("no task has all verdicts of all three policies; see their evaluations")
    rates = {policy: [_rate(own, common, k) for k in powers] for policy, own in verdicts.items()}
    head = ["policy", "tasks", *(f"pass^{k}" for k in powers)]
    rows = [
        [policy, str(_count_judged(evaluations[policy])), *_cells(evaluations[policy], powers)]
        for policy in POLICIES
    ]
    gains = [["difference", "tasks", *head[2:]]]
    differences: dict[str, list[Interval]] = {}
    for own, other in _COMPARED:
        pairs = zip(rates[own], rates[other], strict=True)
        intervals = [measure_difference(first, second) for first, second in pairs]
        differences[f"{own} less {other}"] = intervals
        gains.append([f"{own} less {other}", str(len(common)), *map(format_change, intervals)])
    times = [
        _describe_ratio(*values, differences["general less base"][place])
        for place, values in enumerate(
            zip(rates["targeted"], rates["general"], rates["base"], strict=True)
        )
    ]
    gains.append(["targeted gain, times the general one", str(len(common)), *times])
    return {
        "pass_hat": {policy: evaluations[policy]["pass_hat"] for policy in POLICIES},
        "unjudged_attempts": {policy: evaluations[policy]["unjudged"] for policy in POLICIES},
        "differences": {
            name: {str(k): asdict(part) for k, part in zip(powers, parts, strict=True)}
            for name, parts in differences.items()
        },
        "text": f"{format_table([head, *rows])}\n\n{format_table(gains)}",
    }


def _count_judged(evaluation: Mapping[str, Any]) -> int:
    """Return the number of tasks that count in pass^k; tasks that need a judge do not."""
    return sum(int(kind["tasks"]) for kind in evaluation["per_capability"].values())


def _rate(verdicts: Verdicts, tasks: Sequence[str], k: int) -> list[float]:
    """Return per task the chance that k of its trials, drawn without replacement, all passed."""
    return [comb(sum(verdicts[task]), k) / comb(len(verdicts[task]), k) for task in tasks]


def _describe_ratio(
    own: Sequence[float], other: Sequence[float], base: Sequence[float], gain: Interval
) -> str:
    if gain.low <= 0:
        return "none: the general gain may be 0"
    times = measure_ratio(own, other, base)
    return f"{times.value:.2f} [{times.low:.2f}, {times.high:.2f}]"


def _cells(evaluation: Mapping[str, Any], powers: Sequence[int]) -> list[str]:
    pass_hat = evaluation["pass_hat"]
    return [
        format_interval(Interval(**part)) if (part := pass_hat.get(str(k))) else "" for k in powers
    ]
