"""Figures on what the Controller follows and what the Proposer accepts, without a model.

    python -m ops.learning.written_tasks examples     share of a pattern's examples that are of the
                                                      planted weakness, by rule
    python -m ops.learning.written_tasks rephrasings  verdicts on tasks in other words

Examples are drawn from simulated rounds: `ROLLOUTS` rollouts of an environment's kinds, of which
one fails with the weakness's rate and every other with the noise's. Kinds are told apart by what a
perfect agent calls, as in the Controller; the environment's own label says only which failures
were planted.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from itertools import product
from random import Random
from statistics import mean
from typing import Final

from consumers.reads.evidence import RoundRollout, TaskRate
from daemon.controller.directive import find_mastered_tasks, leave_out_mastered
from daemon.controller.sampling import Candidate, sample_failures
from daemon.proposer import candidate as candidates
from daemon.proposer.verification import verify
from envs.airline.environment import Airline
from envs.environment import Environment
from envs.retail.environment import Retail
from envs.shop.environment import Shop
from envs.task import TaskDefinition

ROLLOUTS: Final = 400
ROUNDS: Final = 20
TASKS: Final = 12
EXAMPLES: Final = 8
SETTINGS: Final = ((0.03, 1.0, 0.8), (0.1, 1.0, 0.8), (0.03, 0.3, 0.8), (0.1, 0.3, 0.8),
                   (0.05, 1.0, 0.5), (0.05, 0.3, 0.5))  # fmt: skip
"""Failure rate of the other kinds, how often the planted kind comes beside another, and its rate
of failure."""

Round = tuple[list[RoundRollout], list[TaskRate], dict[str, str]]
"""Failures, rates of tasks, and the label of each task."""


def main() -> None:
    """Print the figures that the first argument names."""
    printers = {"examples": print_examples, "rephrasings": print_rephrasings}
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in printers:
        sys.exit(f"{name!r} is no figure; give one of {', '.join(printers)}")
    printers[name]()


def print_examples() -> None:
    """For each setting: the share by both rules, and in how many rounds the weakness is lost."""
    for environment, (noise, share, rate) in product((Shop(), Retail()), SETTINGS):
        tasks = {
            kind: [environment.generate(kind, seed) for seed in range(TASKS)]
            for kind in environment.capabilities
        }
        pairs = [
            pair
            for planted, seed in product(tasks, range(ROUNDS))
            if (pair := compare_rules(environment, tasks, planted, (noise, share, rate), seed))
        ]
        lost = sum(new == 0 < old for old, new in pairs)
        print(
            f"{environment.name} noise {noise} share {share} weakness {rate}: all "
            f"{mean(old for old, _ in pairs):.3f}, without mastered "
            f"{mean(new for _, new in pairs):.3f}; better in "
            f"{sum(new > old for old, new in pairs)}, worse in "
            f"{sum(new < old for old, new in pairs)}, lost in {lost} of {len(pairs)}",
            flush=True,
        )


def compare_rules(
    environment: Environment,
    tasks: dict[str, list[TaskDefinition]],
    planted: str,
    setting: tuple[float, float, float],
    seed: int,
) -> tuple[float, float] | None:
    """Share of the examples that are planted, of all failures and without those of mastered kinds,
    in the pattern that has most of the planted failures; None where none failed."""
    failures, rates, labels = draw_round(environment, tasks, planted, setting, seed)
    planted_failures = Counter(
        failure.pivot for failure in failures if labels[failure.task_key] == planted
    )
    if not planted_failures:
        return None
    pivot = max(sorted(planted_failures), key=lambda name: planted_failures[name])
    own = [failure for failure in failures if failure.pivot == pivot]
    kept = leave_out_mastered(own, find_mastered_tasks(rates))

    def share(chosen: Sequence[RoundRollout]) -> float:
        drawn = [Candidate(failure.rollout, failure.task_key) for failure in chosen]
        sample = sample_failures(drawn, str(seed), EXAMPLES)
        return mean(labels[example.task] == planted for example in sample)

    return share(own), share(kept)


def draw_round(
    environment: Environment,
    tasks: dict[str, list[TaskDefinition]],
    planted: str,
    setting: tuple[float, float, float],
    seed: int,
) -> Round:
    """A round of traffic in which one kind fails more often than the others."""
    noise, often, rate = setting
    chance = Random(f"written tasks {environment.name} {planted} {setting} {seed}")
    weights = [often if kind == planted else 1.0 for kind in tasks]
    failures: list[RoundRollout] = []
    attempts: Counter[str] = Counter()
    passes: Counter[str] = Counter()
    labels: dict[str, str] = {}
    definitions: dict[str, TaskDefinition] = {}
    for number in range(ROLLOUTS):
        kind = chance.choices(list(tasks), weights)[0]
        task = chance.choice(tasks[kind])
        labels[task.id], definitions[task.id] = kind, task
        attempts[task.id] += 1
        if chance.random() < (rate if kind == planted else noise):
            pivot = _find_pivot(environment, task)
            failures.append(RoundRollout(f"r{number}", task.id, 0.0, "tool_loop", pivot))
        else:
            passes[task.id] += 1
    rates = [
        TaskRate(name, definitions[name].criteria.gold_actions, count, passes[name])
        for name, count in sorted(attempts.items())
    ]
    return failures, rates, labels


def _find_pivot(environment: Environment, task: TaskDefinition) -> str:
    gold = task.criteria.gold_actions or ()
    return next(
        (action.name for action in reversed(gold) if action.name in environment.writes), "*"
    )


def print_rephrasings(seeds: int = 20) -> None:
    """For each environment: how many tasks in other words pass every check but the sampled one."""
    for environment in (Shop(), Retail(), Airline()):
        verdicts: Counter[str] = Counter()
        for kind, seed in product(environment.capabilities, range(seeds)):
            source = environment.generate(kind, 1000 + seed)
            phrasing = Random(f"{kind} {seed}").randrange(1 << 16)
            other = environment.rephrase(source, phrasing)
            if other is None:
                verdicts["no such words"] += 1
                continue
            examined = candidates.CandidateFacts(
                environment, candidates.Candidate(other, "inherit", source)
            )
            verdicts[verify(examined).failed or "accepted"] += 1
        print(f"{environment.name}: {dict(verdicts)}", flush=True)


if __name__ == "__main__":
    main()
