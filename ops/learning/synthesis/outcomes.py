"""What jobs on accepted tasks came to, in Markdown (pure): pass^1 of held-out tasks beside the base
and the writer without faults.

Figures are means over seeds with 95 % intervals by the hierarchical bootstrap
(ops/learning/bootstrap.py); only seeds that have the base and every arm enter.
"""

from collections.abc import Sequence
from statistics import fmean

from daemon.engine.reference.recipe import WEAK
from ops.learning.bootstrap import TaskRates, compute_task_rates, interval
from ops.learning.report import format_change, format_interval, format_table
from ops.learning.results import check_settings
from ops.learning.synthesis.settings import TRAINED, JobSettings
from ops.learning.synthesis.training import BASE, TrainedRun


def write_outcomes(results: Sequence[TrainedRun], jobs: JobSettings) -> str:
    """Return the table. Raises NothingToReport."""
    check_settings(results, jobs.digest)
    names = [BASE, *(arm.name for arm in TRAINED)]
    runs = {name: {run.seed: run for run in results if run.arm == name} for name in names}
    runs = {name: own for name, own in runs.items() if own}
    seeds = sorted(set.intersection(*(set(own) for own in runs.values())))
    if not seeds:
        return f"No seed has all of {', '.join(runs)} yet.\n"
    rates = {
        name: compute_task_rates([own[seed].outcomes for seed in seeds], 1)
        for name, own in runs.items()
    }
    kinds = dict.fromkeys(next(iter(rates.values())).values, 1.0)
    weak = dict.fromkeys(WEAK, 1.0)
    clean = TRAINED[0].name
    rows = [["arm", "tasks", "informative", "weak kinds", "all kinds", "less `base`",
             f"less `{clean}`"]]  # fmt: skip
    for name, own in rates.items():
        chosen = [runs[name][seed] for seed in seeds]
        rows.append(
            [
                f"`{name}`",
                f"{fmean(run.tasks for run in chosen):.0f}",
                f"{fmean(run.informative for run in chosen):.0%}",
                format_interval(interval(own, weak)),
                format_interval(interval(own, kinds)),
                _format_difference(own, rates.get(BASE), kinds),
                _format_difference(own, rates.get(clean), kinds),
            ]
        )
    listed = ", ".join(map(str, seeds))
    head = f"pass^1 of held-out tasks, seeds {listed}; differences of all kinds"
    if any(run.development for run in results):
        head = f"Development seeds: no figure to report. {head}"
    return f"{head}\n\n{format_table(rows)}\n"


def _format_difference(own: TaskRates, other: TaskRates | None, kinds: dict[str, float]) -> str:
    return "" if other is None or own is other else format_change(interval(own - other, kinds))
