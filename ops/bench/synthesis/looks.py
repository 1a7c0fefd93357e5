"""Which revisions of plans stay, by what they do, and what they leave of a writer's faults.

    python -m ops.bench.synthesis.looks [--runs N]

Method. Writers are simulated. A plan has a rate of its own for each of six kinds of faults, Beta
distributed around the kind's, as in ops/learning/synthesis/planted; all but every second wrong gold
value fail their check. The tries, one for each place, come in four parts, and three rounds look at
them with the functions of the engine (daemon/synthesis/reflection). What a rule of a plan does:

    good      its kinds of faults are left out in nine of ten tries
    none      nothing
    harmful   nothing against faults, and a tenth of the tries fails another check

Between parts, all plans' rates are multiplied by 1 - `drift` to 1 + `drift`.

    {"benchmark": "synthesis.looks", "runs", "rows": [{"plans", "tries", "rate", "effect", "drift",
      "seen", "stays", "less", "lost"}, ...]}

`seen`: failed tries of the first part, all that a first round can go by. `stays`: share of the
plans that are another in the end: errors where the effect is none, harm where it is harmful.
`less`: by how much the rate of faults is lower in the end, of what it was. `lost`: acceptance that
harmful revisions cost, a mean over all plans.
"""

import argparse
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from random import Random
from statistics import fmean
from typing import Final, Literal

from daemon.synthesis.reflection import (
    Arm,
    Evidence,
    Key,
    Trial,
    choose_arm,
    choose_checks,
    decide_trials,
    find_least_gain,
    is_hopeless,
    measure_gain,
)
from events.synthesis.plans import MOST_ROUNDS

Effect = Literal["good", "none", "harmful"]
KINDS: Final[Mapping[str, str]] = {
    "wrong_gold": "trajectory",
    "contradiction": "trajectory",
    "leak": "leak",
    "unknowable": "provenance",
    "unsolvable": "solvable",
    "near_duplicate": "novelty",
}
"""Kind of faults -> the check that fails by it, and whose rule helps."""
_HARMED: Final = "synthesis"
_HARM: Final = 0.1
_COMPLIANCE: Final = 0.9
_CONCENTRATION: Final = 8.0
_UNSEEN: Final = 0.5
"""Share of the wrong gold values that no check finds."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one simulated set."""

    seen: float
    stays: float
    less: float
    lost: float


@dataclass(frozen=True, slots=True)
class Row:
    """A set of plans that is simulated."""

    plans: int
    tries: int
    rate: float
    """Share of the tries in which the writer errs."""
    effect: Effect
    drift: float = 0.0

    def measure(self, runs: int) -> Outcome:
        """Return the means over simulated sets."""
        outcomes = [_Run(self, Random(f"looks {self} {run}")).play() for run in range(runs)]
        names = ("seen", "stays", "less", "lost")
        return Outcome(*(fmean(getattr(item, name) for item in outcomes) for name in names))


ROWS: Final = tuple(
    Row(plans, tries, rate, effect)
    for plans in (4, 64)
    for tries in (256, 512, 1024)
    for rate in (0.05, 0.2, 0.4, 0.6)
    for effect in ("good", "none", "harmful")
) + tuple(
    Row(64, 1024, rate, effect, 0.5)
    for rate in (0.05, 0.4)
    for effect in ("good", "none", "harmful")
)
"""Sets by what revisions do, without drift and with it."""


class _Plan:
    """A plan with its rules, and what became of its tries."""

    def __init__(self, row: Row, chance: Random) -> None:
        mean = 1 - (1 - row.rate) ** (1 / len(KINDS))
        weight = _CONCENTRATION
        self.rates = {
            kind: chance.betavariate(mean * weight, (1 - mean) * weight) for kind in KINDS
        }
        self.rules: frozenset[Key] = frozenset()
        self.arm = Arm()
        self.own: Counter[Key] = Counter()
        self.refused: list[frozenset[Key]] = []


@dataclass(slots=True)
class _Change:
    """A change of a plan that is tried."""

    rules: frozenset[Key]
    trial: Trial
    number: int


class _Run:
    """One simulated set."""

    def __init__(self, row: Row, chance: Random) -> None:
        self._row, self._chance = row, chance
        self._plans = [_Plan(row, chance) for _ in range(row.plans)]
        self._common: Counter[Key] = Counter()
        self._evidence = Evidence()
        self._drift = 1.0

    def play(self) -> Outcome:
        """Return what became of the set."""
        before = self._measure_faults()
        size = self._row.tries // (MOST_ROUNDS + 1)
        self._fill(range(size), {})
        seen = self._common.total()
        is_over = False
        for number in range(1, MOST_ROUNDS + 1):
            self._drift = self._chance.uniform(1 - self._row.drift, 1 + self._row.drift)
            changes = {} if is_over else self._open()
            self._fill(range(number * size, (number + 1) * size), changes)
            is_over = is_over or self._close(changes)
        changed = sum(bool(plan.rules) for plan in self._plans) / self._row.plans
        after = self._measure_faults()
        lost = changed * _HARM if self._row.effect == "harmful" else 0.0
        return Outcome(seen, changed, 1 - after / before, lost)

    def _open(self) -> dict[int, _Change]:
        changes: dict[int, _Change] = {}
        for place, plan in enumerate(self._plans):
            rules = plan.rules
            chosen = choose_checks(plan.own, plan.arm.tries, self._common, rules)
            for key in chosen:
                if rules | {key} not in plan.refused:
                    rules |= {key}
            if rules != plan.rules:
                checks = tuple(check for _, check in chosen if ("writing", check) in rules)
                changes[place] = _Change(rules, Trial(checks), len(changes))
        return changes

    def _close(self, changes: Mapping[int, _Change]) -> bool:
        """Decide a round, and return whether it is the last."""
        trials = [change.trial for change in changes.values()]
        for trial in trials:
            self._evidence.add(trial)
        kept = decide_trials(trials, self._evidence)
        is_settled = True
        for (place, change), is_kept in zip(changes.items(), kept, strict=True):
            plan = self._plans[place]
            if is_kept:
                after = change.trial.after
                plan.rules, plan.arm, plan.refused = change.rules, after, []
                plan.own = Counter({("writing", check): n for check, n in after.failed.items()})
            elif is_hopeless(change.trial, self._evidence):
                plan.refused.append(change.rules)
            else:
                is_settled = False
        gain = measure_gain(trials, len(self._plans))
        return bool(trials) and is_settled and gain < find_least_gain(trials)

    def _fill(self, places: range, changes: Mapping[int, _Change]) -> None:
        for place in places:
            lap, number = divmod(place, len(self._plans))
            plan, change = self._plans[number], changes.get(number)
            if change is not None and choose_arm(change.number + lap):
                change.trial.after += self._try(plan, change.rules)
                continue
            arm = self._try(plan, plan.rules)
            plan.arm += arm
            failed: Counter[Key] = Counter({("writing", check): 1 for check in arm.failed})
            plan.own += failed
            self._common += failed
            if change is not None:
                change.trial.before += arm

    def _try(self, plan: _Plan, rules: frozenset[Key]) -> Arm:
        check = self._fail(plan, rules)
        return Arm(1, 1) if check is None else Arm(1, 0, Counter((check,)))

    def _fail(self, plan: _Plan, rules: frozenset[Key]) -> str | None:
        """Return the check that a try fails."""
        chance, effect = self._chance, self._row.effect
        if effect == "harmful" and rules and chance.random() < _HARM:
            return _HARMED
        for kind, check in KINDS.items():
            if chance.random() >= plan.rates[kind] * self._drift:
                continue
            is_good = effect == "good" and ("writing", check) in rules
            if is_good and chance.random() < _COMPLIANCE:
                continue
            is_unseen = kind == "wrong_gold" and chance.random() < _UNSEEN
            return None if is_unseen else check
        return None

    def _measure_faults(self) -> float:
        """Return the rate of faults by the plans as they are, without drift."""
        total = 0.0
        for plan in self._plans:
            sound = 1.0
            for kind, check in KINDS.items():
                is_good = self._row.effect == "good" and ("writing", check) in plan.rules
                sound *= 1 - plan.rates[kind] * (1 - _COMPLIANCE if is_good else 1)
            total += 1 - sound
        return total / len(self._plans)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=100, help="simulated sets of a row")
    options = parser.parse_args(arguments)
    rows = []
    for row in ROWS:
        outcome = {name: round(n, 3) for name, n in asdict(row.measure(options.runs)).items()}
        rows.append({**asdict(row), **outcome})
    document = {"benchmark": "synthesis.looks", "runs": options.runs, "rows": rows}
    print(json.dumps(document, indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
