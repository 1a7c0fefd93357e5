"""How often a gate promotes a policy whose failures are excused.

    python -m ops.bench.attribution.unjudged [--tasks 350] [--trials 2] [--evaluations 400]

Method. Two policies pass each task with one chance (simulation.py), so that every promotion is a
false one, or the candidate passes it more often by `gain`. Users err by themselves in a share
`base` of both policies' rollouts, and in a share `escape` of what the candidate fails. Such trials
have no verdict. `left_out` is the share of evaluations that promote (sign-flip test at .05, a gain
of two points at least) where such trials are left out, `failed` where the candidate's surplus of
them counts as failed (gate/pairs.py, fail_surplus); `points` is the mean gain that each measures.
"""

import argparse
import json
from collections.abc import Sequence
from random import Random
from statistics import mean
from typing import Any, Final

from daemon.evaluation.gate.pairs import fail_surplus, pair_outcomes
from daemon.evaluation.gate.target_tests import sign_flip
from envs.statistics import Outcomes
from events.gate import GateSettings
from ops.bench.simulation import chances

ARMS: Final[Sequence[tuple[float, float, float]]] = (
    (0, 0, 0), (0.1, 0, 0), (0, 0.05, 0), (0, 0.1, 0), (0, 0.2, 0), (0, 0.4, 0), (0.05, 0.05, 0),
    (0.05, 0.2, 0), (0, 0, 0.05), (0.1, 0, 0.05), (0.05, 0.2, 0.05),
)  # fmt: skip
"""Share of rollouts with an erring user, share of failures that escape, true gain."""


def measure(
    tasks: int, trials: int, evaluations: int, arm: tuple[float, float, float]
) -> dict[str, Any]:
    """Return the figures of one arm."""
    base, escape, gain = arm
    settings, chance = GateSettings(), Random(f"unjudged {tasks} {trials} {arm}")
    promotions = [0, 0]
    gains: tuple[list[float], list[float]] = ([], [])
    for _ in range(evaluations):
        incumbent, candidate = _draw(chance, tasks, trials, base, escape, gain)
        for place, outcomes in enumerate(
            (candidate, fail_surplus(incumbent, candidate, list(candidate)))
        ):
            differences = _list_differences(incumbent, outcomes)
            gains[place].append(mean(differences))
            promotions[place] += (
                mean(differences) >= settings.min_gain and sign_flip(differences) <= settings.alpha
            )
    names = ("left_out", "failed")
    return {
        "base": base,
        "escape": escape,
        "gain": gain,
        **{name: promotions[place] / evaluations for place, name in enumerate(names)},
        "points": {name: round(100 * mean(gains[place]), 1) for place, name in enumerate(names)},
    }


def _draw(
    chance: Random, tasks: int, trials: int, base: float, escape: float, gain: float
) -> tuple[Outcomes, Outcomes]:
    """Draw the verdicts of incumbent and candidate; None for a trial whose user erred."""
    incumbent: dict[str, list[bool | None]] = {}
    candidate: dict[str, list[bool | None]] = {}
    for task in range(tasks):
        before, after = chances(chance, gain)
        rows = (incumbent, before, 0.0), (candidate, after if gain else before, escape)
        for outcomes, passes, escapes in rows:
            outcomes[f"t{task}"] = [_try(chance, passes, base, escapes) for _ in range(trials)]
    return incumbent, candidate


def _try(chance: Random, passes: float, base: float, escapes: float) -> bool | None:
    success = chance.random() < passes
    has_fault = chance.random() < base or (chance.random() < escapes and not success)
    return None if has_fault else success


def _list_differences(incumbent: Outcomes, candidate: Outcomes) -> list[float]:
    """Return the difference of each task with a trial that both have a verdict of."""
    slices = {
        task: "target"
        for task in candidate
        if any(None not in trial for trial in zip(incumbent[task], candidate[task], strict=True))
    }
    return [pair.difference for pair in pair_outcomes(incumbent, candidate, slices, 1)]


def main() -> None:
    """Print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=350)
    parser.add_argument("--trials", type=int, default=2)
    parser.add_argument("--evaluations", type=int, default=400)
    options = parser.parse_args()
    arms = [measure(options.tasks, options.trials, options.evaluations, arm) for arm in ARMS]
    print(json.dumps({"benchmark": "unjudged", **vars(options), "arms": arms}, indent=2))


if __name__ == "__main__":
    main()
