"""How often a revision of a plan stays that is no better, and one that is.

    python -m ops.bench.synthesis.looks [--runs N]

Method. Writers are simulated: each plan has an acceptance of its own, uniform within `spread` of
the mean, and a revision adds `gain` to it, or nothing. The places of a quota, three tries each,
come in four parts, and three rounds look at them as the engine does (daemon/synthesis/reflection).
A plan is revised as soon as a try of it has failed, and again while no revision stayed.

    {"benchmark": "synthesis.looks", "runs", "rows": [{"plans", "tasks", "acceptance", "gain",
      "stays"}, ...]}

`stays` is the share of the revised plans whose revision stays in the end: errors where the gain is
0, successes elsewhere.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Final

from daemon.proposer.proposer import TRIES
from daemon.synthesis.reflection import (
    SURE,
    Arm,
    Evidence,
    Trial,
    choose_arm,
    decide_trials,
)
from events.synthesis.plans import MOST_ROUNDS

_CHECK: Final = "check"


@dataclass(frozen=True, slots=True)
class Row:
    """A set of plans that is simulated."""

    plans: int
    tasks: int
    acceptance: float
    gain: float
    spread: float = 0.15

    def measure(self, runs: int) -> float:
        """Return the share of the revised plans whose revision stays."""
        revised = stays = 0
        for run in range(runs):
            counts = _Run(self, Random(f"looks {self} {run}")).play()
            revised, stays = revised + counts[0], stays + counts[1]
        return stays / max(1, revised)


ROWS: Final = tuple(
    Row(plans, tasks, acceptance, gain)
    for plans, tasks in ((4, 128), (4, 256), (16, 256), (64, 256), (64, 512))
    for acceptance, gain in ((0.5, 0.0), (0.8, 0.0), (0.5, 0.3), (0.3, 0.3), (0.7, 0.2))
)
"""Sets with and without a gain."""


class _Run:
    """One simulated set."""

    def __init__(self, row: Row, chance: Random) -> None:
        self._row, self._chance = row, chance
        low, high = row.acceptance - row.spread, row.acceptance + row.spread
        self._rates = [chance.uniform(low, high) for _ in range(row.plans)]
        self._failed = [False] * row.plans
        self._stays = [False] * row.plans
        self._evidence = Evidence()

    def play(self) -> tuple[int, int]:
        """Return how many plans were revised, and of how many the revision stays."""
        size = self._row.tasks // (MOST_ROUNDS + 1)
        for place in range(size):
            self._fill(place % self._row.plans, is_changed=False)
        for number in range(1, MOST_ROUNDS + 1):
            self._look(range(number * size, (number + 1) * size))
        return sum(self._failed), sum(self._stays)

    def _look(self, places: range) -> None:
        plans = self._row.plans
        open_plans = [n for n in range(plans) if self._failed[n] and not self._stays[n]]
        numbers = {plan: number for number, plan in enumerate(open_plans)}
        trials = {plan: Trial(_CHECK) for plan in open_plans}
        is_proven = self._evidence.compute_chance(_CHECK) >= SURE
        for place in places:
            lap, plan = divmod(place, plans)
            trial = trials.get(plan)
            if trial is None:
                self._fill(plan, is_changed=self._stays[plan])
            elif choose_arm(numbers[plan] + lap, is_proven):
                trial.after += self._fill(plan, is_changed=True)
            else:
                trial.before += self._fill(plan, is_changed=False)
        for trial in trials.values():
            self._evidence.add(trial)
        decisions = decide_trials(list(trials.values()), self._evidence)
        for plan, stays in zip(trials, decisions, strict=True):
            self._stays[plan] = stays

    def _fill(self, plan: int, *, is_changed: bool) -> Arm:
        """Return the tries of one place."""
        rate = self._rates[plan] + (self._row.gain if is_changed else 0.0)
        for number in range(1, TRIES + 1):
            if self._chance.random() < rate:
                return Arm(number, 1)
            self._failed[plan] = True
        return Arm(TRIES, 0)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200, help="simulated sets of a row")
    options = parser.parse_args(arguments)
    rows = [{**asdict(row), "stays": round(row.measure(options.runs), 3)} for row in ROWS]
    document = {"benchmark": "synthesis.looks", "runs": options.runs, "rows": rows}
    print(json.dumps(document, indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
