"""Measure how often a reference policy repairs a refused call, by kind of wrong call (operator).

    python -m daemon.methods.lessons.reference.repairs --checkpoint DIR --out repairs.json

Protocol: temperature 1; 100 lessons of each operator, in equal parts of the taught kinds, from
seeds that neither trained nor chose the policy; 8 whole episodes each. An episode is right as in
`kintsugi eval --inject`: the first message makes the lesson's calls or, if it has to speak, none
and the task succeeds (envs/lessons/observation.py). Intervals: 95 % over lessons.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Final

import torch
import transformers

from daemon.engine.chat import Chat
from daemon.engine.generation import Engine
from daemon.engine.policy import Policy
from daemon.engine.reference.recipe import RECIPE
from daemon.methods.lessons.reference.training import REFLECTING
from daemon.solver.reference.demonstrations import HELD_OUT
from daemon.solver.reference.evaluate import GROUP, LENGTH, SLOTS, Estimate, Figures, figures
from daemon.solver.sampling.local import Attempt, InProcess, Rollout
from envs.lessons.checks import get_lesson
from envs.lessons.making import make_lessons
from envs.lessons.observation import observe
from envs.shop.environment import Shop
from envs.statistics import mean
from envs.task import Operator, TaskDefinition
from events.messages import StrictModel

ANSWER: Final = 96
"""Most tokens of an answer, which holds a reflection and a call."""


class RepairFigures(StrictModel):
    """A policy's results on the lessons with one kind of wrong call."""

    repaired: Figures
    """Repair@1 and the share of informative groups."""
    reflected: Estimate
    """Share of attempts whose first message has a reflection."""


def make_held_out_lessons(shop: Shop, seeds: range, count: int) -> tuple[TaskDefinition, ...]:
    """Return lessons of the kinds that trained the policy, made of tasks with these seeds."""
    kinds = sorted(RECIPE.phases[-1].shares)
    tasks = (shop.generate(kind, seed) for seed, kind in product(seeds, kinds))
    return make_lessons(shop, tasks, count, seeds.start).lessons


def measure_repairs(
    checkpoint: Path, lessons: Sequence[TaskDefinition], trials: int
) -> dict[Operator, RepairFigures]:
    """Attempt each lesson `trials` times; the trials of one lesson are a group."""
    policy = Policy.load(checkpoint, checkpoint.name)
    player = InProcess(Engine(policy, SLOTS, LENGTH), Chat(checkpoint), max_tokens=ANSWER)
    attempts = (
        Attempt(lesson, lesson.id, trial, f"{lesson.id}/{trial}")
        for lesson in lessons
        for trial in range(trials)
    )
    shop = Shop()
    return compute_repair_figures(shop, player.play(shop, attempts, policy))


def compute_repair_figures(
    shop: Shop, rollouts: Iterable[Rollout]
) -> dict[Operator, RepairFigures]:
    """Return kind of wrong call -> figures, computed from rollouts of lessons."""
    repaired: dict[Operator, dict[str, list[bool]]] = {}
    reflected: dict[Operator, dict[str, list[bool]]] = {}
    for rollout in rollouts:
        task = rollout.attempt.task
        lesson = get_lesson(task)
        operator = lesson.operator
        seen = observe(shop, lesson, rollout.episode.messages, bool(rollout.grade.success))
        repaired.setdefault(operator, {}).setdefault(task.id, []).append(bool(seen.repaired))
        reflected.setdefault(operator, {}).setdefault(task.id, []).append(reflects(rollout))
    return {
        operator: RepairFigures(
            repaired=figures(list(groups.values())),
            reflected=Estimate.of(
                mean([sum(group) / len(group) for group in reflected[operator].values()])
            ),
        )
        for operator, groups in sorted(repaired.items())
    }


def reflects(rollout: Rollout) -> bool:
    """Return whether the policy's first message has a reflection."""
    written = (
        message
        for message in rollout.episode.messages
        if message.role == "assistant" and message.sampled is not False
    )
    first = next(written, None)
    return first is not None and first.reflection is not None


def tabulate_repairs(by_operator: Mapping[Operator, RepairFigures]) -> str:
    """Return the figures as a Markdown table."""
    head = (
        "| operator | lessons | Repair@1 | informative groups | reflects |\n|---|---|---|---|---|\n"
    )
    rows = (
        f"| `{operator}` | {row.repaired.tasks} | {row.repaired.passed} | "
        f"{row.repaired.informative} | {row.reflected} |\n"
        for operator, row in by_operator.items()
    )
    return head + "".join(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure a checkpoint and write the figures to a file."""
    options = _parser().parse_args(arguments)
    torch.set_num_threads(options.threads)
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    lessons = make_held_out_lessons(Shop(), HELD_OUT, options.lessons)
    by_operator = measure_repairs(options.checkpoint, lessons, GROUP)
    record = {
        "seeds": [HELD_OUT.start, HELD_OUT.stop],
        "operators": {name: row.model_dump() for name, row in by_operator.items()},
    }
    options.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(tabulate_repairs(by_operator), end="")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m daemon.methods.lessons.reference.repairs")
    parser.add_argument("--checkpoint", type=Path, default=REFLECTING)
    parser.add_argument("--out", type=Path, required=True, help="file for the figures, JSON")
    parser.add_argument("--lessons", type=int, default=400, help="of all operators together")
    parser.add_argument("--threads", type=int, default=1)
    return parser


if __name__ == "__main__":
    sys.exit(main())
