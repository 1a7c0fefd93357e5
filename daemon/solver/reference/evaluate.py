"""Measure a reference policy on each kind of task: the figures of its model card.

    python -m daemon.solver.reference.evaluate --out figures.json

Protocol: temperature 1; 400 tasks per kind from seeds that neither trained the policy nor chose
anything about it; 8 attempts (a group) at each task of plain and weak kinds, 2 at others. Figures:
pass^1, and the share of groups with both passed and failed attempts, since only these teach
group-relative learning. Intervals are 95 % over tasks (envs/statistics.py), separate for each kind.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import torch
import transformers

from daemon.engine.chat import Chat
from daemon.engine.generation import Engine
from daemon.engine.policy import Policy
from daemon.engine.reference.recipe import RECIPE, WEAK
from daemon.engine.reference.weights import CHECKPOINT
from daemon.solver.reference.demonstrations import HELD_OUT
from daemon.solver.sampling.local import Attempt, InProcess
from envs.shop.environment import Shop
from envs.shop.kinds import PLAIN
from envs.statistics import Interval, mean
from events.messages import StrictModel

SLOTS: Final = 128
LENGTH: Final = 512
"""Maximum tokens of a conversation."""
ANSWER: Final = 64
"""Maximum tokens of an answer."""

GROUP: Final = 8
"""Number of attempts at one task that a training step compares."""
PAIR: Final = 2

COMPETENT: Final = 0.93
"""The lower bound of pass^1 must reach this in every plain kind of task."""
WEAKNESS: Final = (0.15, 0.50)
"""Range in which pass^1 of a weak kind must lie."""
INFORMATIVE: Final = 0.3
"""A weak kind must have a larger share of informative groups than this."""


class Estimate(StrictModel):
    """Mean over tasks, with its 95 % confidence interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, interval: Interval) -> Self:
        """Return the estimate that stores this interval."""
        return cls(value=interval.value, low=interval.low, high=interval.high)

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


class Figures(StrictModel):
    """Figures of one kind of task."""

    tasks: int
    trials: int
    passed: Estimate
    informative: Estimate
    """Share of tasks with both passed and failed trials; it depends on the number of trials."""

    @property
    def weak(self) -> bool:
        """Whether the policy has not yet mastered the kind but can learn it in groups."""
        low, high = WEAKNESS
        return low <= self.passed.value <= high and self.informative.value > INFORMATIVE


def measure(
    checkpoint: Path, kinds: Iterable[str], seeds: Sequence[int], trials: int
) -> dict[str, Figures]:
    """Return figures by kind, from `trials` attempts at each task of these kinds, as a group."""
    shop, wanted = Shop(), list(kinds)
    policy = Policy.load(checkpoint, checkpoint.name)
    player = InProcess(Engine(policy, SLOTS, LENGTH), Chat(checkpoint), max_tokens=ANSWER)
    attempts = (
        Attempt(task, task.id, trial, f"{task.id}/{trial}")
        for seed in seeds
        for task in (shop.generate(kind, seed) for kind in wanted)
        for trial in range(trials)
    )
    verdicts: dict[str, dict[str, list[bool]]] = {kind: {} for kind in wanted}
    for rollout in player.play(shop, attempts, policy):
        task = rollout.attempt.task
        groups = verdicts[task.capability]
        groups.setdefault(task.id, []).append(bool(rollout.grade.success))
    return {kind: figures(list(groups.values())) for kind, groups in verdicts.items()}


def figures(groups: Sequence[Sequence[bool]]) -> Figures:
    """Return figures from the verdicts of each group. Raise ValueError without groups."""
    return Figures(
        tasks=len(groups),
        trials=min(map(len, groups)),
        passed=Estimate.of(mean([sum(group) / len(group) for group in groups])),
        informative=Estimate.of(mean([float(0 < sum(group) < len(group)) for group in groups])),
    )


def shortcomings(by_kind: Mapping[str, Figures]) -> list[str]:
    """Return the protocol's requirements that these figures miss, one sentence each."""
    missing = [
        f"{kind}: the lower bound of pass^1 is {by_kind[kind].passed.low:.3f}, below {COMPETENT}"
        for kind in PLAIN
        if by_kind[kind].passed.low < COMPETENT
    ]
    weak = [kind for kind in WEAK if by_kind[kind].weak]
    if len(weak) < 3:
        missing.append(f"{len(weak)} kinds are weak and informative, fewer than 3: {weak}")
    return missing


def table(by_kind: Mapping[str, Figures]) -> str:
    """Return the figures as a table in Markdown."""
    head = "| kind | in its training | pass^1 | informative groups |\n|---|---|---|---|\n"
    rows = (
        f"| {kind} | {_describe_training(kind)} | {row.passed} | "
        f"{row.informative if row.trials == GROUP else ''} |\n"
        for kind, row in by_kind.items()
    )
    return head + "".join(rows)


def _others() -> list[str]:
    return [kind for kind in Shop.capabilities if kind not in (*PLAIN, *WEAK)]


def _describe_training(kind: str) -> str:
    if kind in RECIPE.phases[-1].shares:
        return "taught"
    shown = any(kind in phase.shares for phase in RECIPE.phases)
    return "rare, then withheld" if shown else "never"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure a checkpoint; return 1 if it falls short of the protocol."""
    options = _parser().parse_args(arguments)
    torch.set_num_threads(options.threads)
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    seeds = HELD_OUT[: options.tasks]
    by_kind: dict[str, Figures] = {}
    for trials, kinds in ((GROUP, (*PLAIN, *WEAK)), (PAIR, _others())):
        wanted = [kind for kind in kinds if kind in (options.kinds or kinds)]
        by_kind |= measure(options.checkpoint, wanted, seeds, trials)
    record: dict[str, Any] = {
        "seeds": [seeds.start, seeds.stop],
        "kinds": {kind: row.model_dump() for kind, row in by_kind.items()},
    }
    options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(table(by_kind), end="")
    missing = [] if options.kinds else shortcomings(by_kind)
    for sentence in missing:
        print(sentence, file=sys.stderr)
    return 1 if missing else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m daemon.solver.reference.evaluate")
    parser.add_argument("--checkpoint", type=Path, default=CHECKPOINT)
    parser.add_argument("--out", type=Path, required=True, help="file for the figures, JSON")
    parser.add_argument("--kinds", nargs="+", choices=sorted(Shop.capabilities), help="some only")
    parser.add_argument("--tasks", type=int, default=400, help="per kind")
    parser.add_argument("--threads", type=int, default=1)
    return parser


if __name__ == "__main__":
    sys.exit(main())
