"""The table: pass^k of base, general and targeted, and how the gains compare.

Each policy's pass^k and interval are those of `kintsugi eval`. Differences are taken task by task,
over the tasks that every policy has all verdicts of; their intervals are a bootstrap over tasks
(ops/learning/bootstrap.py). One run has one seed of training, so the spread between trainings is
in none of these intervals.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from consumers.reads.rollouts import rollout_lines
from daemon.core.app import App
from envs.statistics import Interval
from ops.learning.bootstrap import TaskRates, compute_task_rates, interval
from ops.learning.report import format_change, format_interval, format_table
from ops.learning.sentinel.report import describe_ratio
from ops.reproduce.commands import POLICIES, Document, Folder, Policy, StageFailure, name_policy
from ops.reproduce.settings import Reproduction
from ops.reproduce.training import build_settings

_ALL: Final = "all"
_WEIGHTS: Final = {_ALL: 1.0}
_COMPARED: Final[tuple[tuple[Policy, Policy], ...]] = (
    ("general", "base"), ("targeted", "base"), ("targeted", "general"),
)  # fmt: skip

Verdicts = Mapping[str, Sequence[bool]]
"""Task -> whether each trial passed."""


def build_table(plan: Reproduction, folder: Folder) -> Document:
    """Return the figures, and the table as Markdown under `text`. Raises StageFailure."""
    evaluations = {policy: folder.read(f"evaluate-{policy}") for policy in POLICIES}
    powers = range(1, plan.counts.trials + 1)
    verdicts = read_verdicts(plan, folder)
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
        intervals = [interval(first - second, _WEIGHTS) for first, second in pairs]
        differences[f"{own} less {other}"] = intervals
        gains.append([f"{own} less {other}", str(len(common)), *map(format_change, intervals)])
    times = [
        describe_ratio(own - base, other - base, _WEIGHTS)
        for own, other, base in zip(rates["targeted"], rates["general"], rates["base"], strict=True)
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
    """Return the number of tasks that pass^k is of: those that need no judge."""
    return sum(int(kind["tasks"]) for kind in evaluation["per_capability"].values())


def read_verdicts(plan: Reproduction, folder: Folder) -> dict[Policy, Verdicts]:
    """Return each policy's verdicts on the tasks that it has all trials of."""
    names = {name_policy(plan, policy): policy for policy in POLICIES}
    trials: dict[Policy, dict[str, dict[int, bool]]] = {policy: {} for policy in POLICIES}
    with App(build_settings(plan, folder.evaluation)) as app:
        app.settle()
        with app.reading() as connection:
            lines = rollout_lines(connection)
    for line in lines:
        policy = names.get(line.policy)
        if policy is None or line.task is None or line.trial is None or line.success is None:
            continue
        trials[policy].setdefault(line.task, {}).setdefault(line.trial, line.success)
    return {
        policy: {
            task: [own[trial] for trial in sorted(own)]
            for task, own in tasks.items()
            if len(own) == plan.counts.trials
        }
        for policy, tasks in trials.items()
    }


def _rate(verdicts: Verdicts, tasks: Sequence[str], k: int) -> TaskRates:
    return compute_task_rates([{_ALL: {task: verdicts[task] for task in tasks}}], k)


def _cells(evaluation: Mapping[str, Any], powers: Sequence[int]) -> list[str]:
    pass_hat = evaluation["pass_hat"]
    return [
        format_interval(Interval(**part)) if (part := pass_hat.get(str(k))) else "" for k in powers
    ]
