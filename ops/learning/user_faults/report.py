"""What users that err cost, what attribution recovers of it, and what users that an adapter plays
cost.

Differences are taken task by task within a seed; intervals are over seeds, then tasks
(ops/learning/bootstrap.py).
"""

from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from statistics import fmean
from typing import Final

from envs.statistics import Interval
from events.errors import KintsugiError
from ops.learning.bootstrap import TaskRates, average, compute_task_rates, interval
from ops.learning.user_faults.run import Result
from ops.learning.user_faults.settings import ARMS, BASE, BUDGETS, CLEAN, PLAYERS, TRAFFIC

_COLUMNS: Final = (
    "arm", "seeds", "all traffic", "weak kinds", "less than clean, weak kinds",
    "informative groups", "not judged", "more than silent, weak kinds", "recovered",
)  # fmt: skip


class NothingToReport(KintsugiError):
    """A folder without a seed that has base and clean arm."""


def read(folder: Path) -> list[Result]:
    """All results of a folder, by name."""
    return [Result.model_validate_json(file.read_bytes()) for file in sorted(folder.glob("*.json"))]


def describe(results: Sequence[Result]) -> str:
    """Return the table, one row per arm, over the seeds that have the arm, the clean one and the
    base. Raises NothingToReport."""
    by_arm: dict[str, dict[int, Result]] = {}
    for result in results:
        by_arm.setdefault(result.arm, {})[result.seed] = result
    shared = set(by_arm.get(BASE, {})) & set(by_arm.get(CLEAN, {}))
    if not shared:
        raise NothingToReport(
            f"no seed has results of both {BASE} and {CLEAN}; run these arms first"
        )
    lines = [f"| {' | '.join(_COLUMNS)} |", "|---" * len(_COLUMNS) + "|"]
    for arm in (BASE, *ARMS, *BUDGETS, *PLAYERS):
        seeds = sorted(shared & set(by_arm.get(arm, {})))
        if seeds:
            lines.append(_describe_arm(arm, seeds, by_arm))
    return "\n".join([*lines, *_describe_all_rates(shared, by_arm)]) + "\n"


def _describe_arm(
    arm: str, seeds: Sequence[int], by_arm: Mapping[str, Mapping[int, Result]]
) -> str:
    own = [by_arm[arm][seed] for seed in seeds]
    rates = compute_task_rates([result.outcomes for result in own], 1)
    clean = compute_task_rates([by_arm[CLEAN][seed].outcomes for seed in seeds], 1)
    updates = [update for result in own for update in result.training.updates]
    rollouts = sum(result.faults.rollouts for result in own)
    unjudged = sum(result.faults.unjudged for result in own)
    gain, recovery = "", None
    same = by_arm.get(_name_silent(arm), {})
    if set(seeds) <= set(same):
        silent = compute_task_rates([same[seed].outcomes for seed in seeds], 1)
        gain = _show(interval(rates - silent, _weigh_weak()))
        recovery = compute_recovery(clean, silent, rates)
    cells = (
        arm,
        ", ".join(map(str, seeds)),
        f"{fmean(rates.by_seed(TRAFFIC.traffic)):.3f}",
        f"{fmean(rates.by_seed(_weigh_weak())):.3f}",
        _show(interval(rates - clean, _weigh_weak())),
        f"{fmean(update.informative for update in updates) if updates else 0:.0%}",
        f"{unjudged / rollouts if rollouts else 0:.1%}",
        gain,
        "" if recovery is None else f"{recovery:.0%}",
    )
    return f"| {' | '.join(cells)} |"


def _name_silent(arm: str) -> str:
    """Return the arm with the same faults and no attribution; "" where attribution has no part."""
    own = BUDGETS[arm].arm if arm in BUDGETS else arm
    return own.replace("judged", "silent") if own.startswith("judged") else ""


def _describe_all_rates(shared: Set[int], by_arm: Mapping[str, Mapping[int, Result]]) -> list[str]:
    """Return a sentence on the mean over all rates of faults, of the seeds that have all arms."""
    whole = sorted(seed for seed in shared if all(seed in by_arm.get(arm, {}) for arm in ARMS))
    if not whole:
        return []
    rates = {
        arm: compute_task_rates([by_arm[arm][seed].outcomes for seed in whole], 1) for arm in ARMS
    }
    clean = rates[CLEAN]
    silent, judged = (
        average([own for arm, own in rates.items() if arm.startswith(kind)])
        for kind in ("silent", "judged")
    )
    lost, left, gain = (
        _show(interval(difference, _weigh_weak()))
        for difference in (clean - silent, clean - judged, judged - silent)
    )
    recovery = compute_recovery(clean, silent, judged)
    share = "" if recovery is None else f", {recovery:.0%} of the loss"
    seeds = ", ".join(map(str, whole))
    sentence = (
        f"Mean over all rates of faults, weak kinds, seeds {seeds}: silent faults cost {lost}, "
        f"judged ones {left}; attribution recovers {gain}{share}."
    )
    return ["", sentence]


def _weigh_weak() -> dict[str, float]:
    """Return the weak kinds of the traffic, in equal shares: those with the smallest one."""
    least = min(TRAFFIC.traffic.values())
    return {kind: 1.0 for kind, share in TRAFFIC.traffic.items() if share == least}


def _show(gain: Interval) -> str:
    return f"{gain.value:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]"


def compute_recovery(clean: TaskRates, silent: TaskRates, judged: TaskRates) -> float | None:
    """Return the share of what silent faults cost on the weak kinds that attribution recovers; None
    where they cost nothing."""
    means = [fmean(rates.by_seed(_weigh_weak())) for rates in (clean, silent, judged)]
    cost = means[0] - means[1]
    return None if cost <= 0 else (means[2] - means[1]) / cost
