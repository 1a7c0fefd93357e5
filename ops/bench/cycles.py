"""Simulated chains of promotions: what one kind of task loses over 20 cycles.

    simulate_chains(change, count, seed)     chains that end below the margin, and their promotions
    count_promotions(change, count, seed)    the candidates that are promoted

Each cycle has a candidate that changes the kind by `change` (drawn evenly between two bounds) from
its incumbent, and lifts its target surely. It is played at all looks that the gate may take at the
kind (sizes of daemon/evaluation/sample_size.py for a kind that is passed as often as `MEAN` says,
four trials a task), and promoted when the gate's checks of the kind pass: against the incumbent,
and against the best policy that daemon/evaluation/best_policies.py finds in the reports. The loss
is the true difference to the best policy that was ever the incumbent. `best=False` is the rule of
earlier versions, against the incumbent alone. Bounds are those of looks.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
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
from ops.bench.looks import bound
from ops.bench.pieces import Json
from ops.bench.simulation import CONCENTRATION, MEAN, SPREAD

CYCLES: Final = 20
KIND: Final = "kind"
_BASE: Final = "base"
_WITHIN: Final = 0.274
"""Variance of one trial's difference of such a kind (simulation.spread)."""
_MARGIN: Final = GateSettings().slice_margin


@dataclass(frozen=True, slots=True)
class _Policy:
    """A policy that answers or did."""

    name: str
    level: float
    """Its true pass rate, less the base's."""


def simulate_chains(
    change: tuple[float, float], count: int, seed: int, *, best: bool = True
) -> Json:
    """Of `count` chains those whose last incumbent lies below the margin of the best one, those of
    which any did, promotions, tasks of the kind per candidate, and rollouts of a third player."""
    chance = np.random.default_rng([round(1000 * edge) + 1000 for edge in change] + [seed])
    figures = {"passed": 0, "ever": 0, "promoted": 0, "tasks": 0, "third": 0}
    for _ in range(count):
        loss, ever = _run_chain(chance, change, best, figures)
        figures["passed"] += loss > _MARGIN
        figures["ever"] += ever > _MARGIN
    return {"count": count, **figures}


def count_promotions(
    change: tuple[float, float], count: int, seed: int, *, best: bool = True
) -> Json:
    """Of the candidates of so many chains those that are promoted, and tasks per candidate."""
    figures = simulate_chains(change, count, seed, best=best)
    return {**figures, "count": CYCLES * count, "passed": figures["promoted"]}


def _run_chain(
    chance: np.random.Generator, change: tuple[float, float], best: bool, figures: dict[str, int]
) -> tuple[float, float]:
    """The loss at the end, and the largest loss of any incumbent."""
    incumbent = _Policy(_BASE, 0.0)
    policies = {_BASE: incumbent}
    promotions: list[AdapterRow] = []
    highest, worst = 0.0, 0.0
    for number in range(CYCLES):
        candidate = _Policy(f"adapter-{number}", incumbent.level + chance.uniform(*change))
        answering = None if incumbent.name == _BASE else incumbent.name
        found = find_best(promotions, answering, (KIND,)).get(KIND) if best else None
        name = None
        if found is not None:
            name = _BASE if found.adapter is None else found.adapter.adapter
        third = None if name is None else policies[name]
        checks = _play(chance, candidate, incumbent, third, figures)
        if all(check.verdict == "PASS" for check in checks):
            promotions.append(_row(candidate.name, answering, checks))
            policies[candidate.name] = incumbent = candidate
            figures["promoted"] += 1
        highest = max(highest, incumbent.level)
        worst = max(worst, highest - incumbent.level)
    return highest - incumbent.level, worst


def _play(
    chance: np.random.Generator, candidate: _Policy, incumbent: _Policy, third: _Policy | None,
    figures: dict[str, int],
) -> list[Check]:  # fmt: skip
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
    figures["tasks"] += size
    figures["third"] += 0 if third is None else size * trial.trials
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
    low = bound(tuple(differences.tolist()), level)
    return Check(
        name=name, verdict="PASS" if low > -_MARGIN else "EXTEND",
        value=float(differences.mean()), limit=-_MARGIN, low=low, level=level,
        tasks=len(differences), against=against if name.startswith("best") else None,
    )  # fmt: skip


def _row(name: str, incumbent: str | None, checks: Sequence[Check]) -> AdapterRow:
    report = GateReport(
        decision="PROMOTE", test="sign_flip", alpha=0.05, tasks=1, checks=tuple(checks)
    )
    return AdapterRow(
        adapter=name, alias="agent", base=_BASE, sha256="0" * 64, path=name, capability="target",
        job=None, origin="job", state=State.PROMOTED, reason="", replicas=(), distance=None,
        from_base=None, incumbent=incumbent, gate=report, since=None, cause="", offset=0,
    )  # fmt: skip
