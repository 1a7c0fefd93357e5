"""Simulated chains of promotions: what one kind of task loses over 20 cycles.

Each cycle has a candidate that changes the kind by an amount drawn evenly between two bounds from
its incumbent, and lifts its target surely. It is played at all looks that the gate may take at the
kind (daemon/evaluation/sample_size.py, four trials a task), and promoted when the gate's checks of
the kind pass: against the incumbent, and against the best policy that
daemon/evaluation/best_policies.py finds in the reports.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from consumers.reads.serving import AdapterRow
from daemon.config.settings import Trial
from daemon.evaluation.best_policies import find_best
from daemon.evaluation.gate.levels import BEST_LEVEL, level_of
from daemon.evaluation.gate.power import tasks_for
from daemon.evaluation.sample_size import BETWEEN
from events.gate import Check, GateReport, GateSettings
from events.lifecycle import State
from tests.daemon.evaluation.simulation import CONCENTRATION, MEAN, SPREAD
from tests.daemon.serving.test_desired_state import adapter

CYCLES: Final = 20
KIND: Final = "kind"
_BASE: Final = "base"
_DRAWS: Final = 4_000
_WITHIN: Final = 0.274
"""Variance of one trial's difference of such a kind."""
_MARGIN: Final = GateSettings().slice_margin


@dataclass(frozen=True, slots=True)
class _Policy:
    """A policy that answers or did."""

    name: str
    level: float
    """Its true pass rate, less the base's."""


def count_losses(change: tuple[float, float], count: int, seed: int, *, best: bool = True) -> int:
    """Count the chains of `count` whose last incumbent is worse, by more than the margin, than the
    best one that ever served. Without `best`, candidates are compared with the incumbent alone."""
    chance = np.random.default_rng([round(1000 * edge) + 1000 for edge in change] + [seed])
    return sum(_run_chain(chance, change, best) > _MARGIN for _ in range(count))


def _run_chain(chance: np.random.Generator, change: tuple[float, float], best: bool) -> float:
    """The loss at the end."""
    incumbent = _Policy(_BASE, 0.0)
    policies = {_BASE: incumbent}
    promotions: list[AdapterRow] = []
    for number in range(CYCLES):
        candidate = _Policy(f"adapter-{number}", incumbent.level + chance.uniform(*change))
        answering = None if incumbent.name == _BASE else incumbent.name
        leader = find_best(promotions, answering, (KIND,)).get(KIND) if best else None
        third = None
        if leader is not None:
            third = policies[_BASE if leader.adapter is None else leader.adapter.adapter]
        checks = _play(chance, candidate, incumbent, third)
        if all(check.verdict == "PASS" for check in checks):
            promotions.append(_promote(candidate.name, answering, checks))
            policies[candidate.name] = incumbent = candidate
    return max(policy.level for policy in policies.values()) - incumbent.level


def _play(
    chance: np.random.Generator, candidate: _Policy, incumbent: _Policy, third: _Policy | None
) -> list[Check]:
    """The checks of the kind at the look that decided, or at the last."""
    trial = Trial()
    sizes = [tasks_for(_MARGIN, BETWEEN, _WITHIN, trial.trials)]
    while sizes[-1] < trial.most_tasks:
        sizes.append(min(2 * sizes[-1], trial.most_tasks))
    players = [player for player in (candidate, incumbent, third) if player is not None]
    shares = _draw_shares(chance, [player.level for player in players], sizes[-1], trial.trials)
    for size in sizes:
        seen = [share[:size] for share in shares]
        checks = [_check(f"slice {KIND}", seen[0] - seen[1], level_of(len(sizes)), incumbent.name)]
        if third is not None:
            level = BEST_LEVEL / len(sizes)
            checks.append(_check(f"best {KIND}", seen[0] - seen[2], level, third.name))
        if all(check.verdict == "PASS" for check in checks):
            break
    return checks


def _draw_shares(
    chance: np.random.Generator, levels: Sequence[float], tasks: int, trials: int
) -> "list[np.ndarray]":
    """The share of passed trials of each task, by each player."""
    before = chance.beta(MEAN * CONCENTRATION, (1 - MEAN) * CONCENTRATION, tasks)
    shares = []
    for level in levels:
        room = before / MEAN if level < 0 else (1 - before) / (1 - MEAN)
        after = np.clip(before + level * room, 0.0, 1.0)
        stray = np.minimum(SPREAD / 2**0.5, np.minimum(after, 1 - after))
        after = np.clip(after + chance.choice((-1, 1), tasks) * stray, 0.0, 1.0)
        shares.append(chance.binomial(trials, after) / trials)
    return shares


def _check(name: str, differences: "np.ndarray", level: float, against: str) -> Check:
    low = _bound(differences, level)
    return Check(
        name=name, verdict="PASS" if low > -_MARGIN else "EXTEND",
        value=float(differences.mean()), limit=-_MARGIN, low=low, level=level,
        tasks=len(differences), against=against if name.startswith("best") else None,
    )  # fmt: skip


def _bound(differences: "np.ndarray", level: float) -> float:
    """The bound of `gate.levels.bound`, which is too slow for as many draws."""
    distinct, counts = np.unique(differences, return_counts=True)
    lows = _draw_lows(tuple(distinct.tolist()), tuple(counts.tolist()))
    return float(lows[int(_DRAWS * level)])


@lru_cache(maxsize=50_000)
def _draw_lows(values: tuple[float, ...], counts: tuple[int, ...]) -> "np.ndarray":
    chance = np.random.default_rng(len(values))
    weights = chance.gamma(np.asarray(counts)[:, None], 1.0, (len(counts), _DRAWS))
    worth = ((np.asarray(values) + 1) / 2) @ weights
    return np.sort(2 * worth / (weights.sum(axis=0) + chance.exponential(1.0, _DRAWS)) - 1)


def _promote(name: str, incumbent: str | None, checks: Sequence[Check]) -> AdapterRow:
    report = GateReport(
        decision="PROMOTE", test="sign_flip", alpha=0.05, tasks=1, checks=tuple(checks)
    )
    return adapter(name, State.PROMOTED, incumbent=incumbent, gate=report, capability="target")
