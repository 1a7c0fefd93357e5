"""How often a comparison selects a skill that is planted, and one that is not, and how fast it is.

    python -m ops.bench.skills [--count N] [--seed N]

Method. Agents are made up: a share of their failures and of their successes loops, other failures
go wrong at one of three tools. Each is compared by the program itself (daemon/controller/
skill_discovery.py, consumers/diagnosis/skills.py), `--count` agents a row. `drawn` is the rule of
the product: each of ten labellings draws the tasks anew. `whole` is TRACE's rule where rules label,
so that its ten labellings are one. `looks`: the share of agents whose skill was selected at least
once in twenty comparisons of fresh rollouts. In the rows `repeated` each task was tried four times
with one outcome: traffic that repeats says less than its number. In the rows with `errors` a model
labels: of each labelling that share of the labels of the planted skill is wrong, each by chance.
`whole` is TRACE's rule there, ten labellings of the same rollouts. Then 10,000 rollouts are
compared, in seconds of processor time.

    {"benchmark": "skills", "rows": [{"rollouts", "lacking", "contrast", "repeated", "errors",
      "drawn", "whole", "looks_drawn", "looks_whole"}], "rollouts", "seconds"}
"""

import argparse
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Final

from consumers.diagnosis.round_counts import Pair
from consumers.diagnosis.skills import LEAST_SELECTED, SkillState, is_chosen, measure_skills
from consumers.reads.skills import ContrastRollout
from daemon.controller.skill_discovery import describe_contrast
from daemon.controller.skill_labels import LABELLINGS, LOOP, Label, Labelling, label_by_rule
from events.learning import SkillLabels

PAIR: Final = Pair("agent", "base")
SIZES: Final = (20, 40, 128, 512)
"""Rollouts of one comparison, half of them failed."""
LACKING: Final = ((0.3, 0.3), (0.3, 0.2), (0.5, 0.2), (0.8, 0.1))
"""Share of failures, and of successes, that lack the planted skill."""
TOOLS: Final = ("cancel_order", "return_item", "exchange_item")
SKILL: Final = LOOP
LOOKS: Final = 20
TRIALS: Final = 4
ERRORS: Final = 0.15
"""Share of a model's labels that are wrong."""


def main() -> None:
    """Print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=400, help="agents of a row")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chance = Random(options.seed)
    rows = [
        _measure_row(size, shares, trials, errors, options.count, chance)
        for trials, errors in ((1, 0.0), (TRIALS, 0.0), (1, ERRORS))
        for size in SIZES
        for shares in LACKING
    ]
    rollouts = make_rollouts(10_000, LACKING[2], 1, chance)
    began = time.process_time()
    describe_contrast(PAIR, 0, 0, label_by_rule(rollouts))
    seconds = time.process_time() - began
    document = {
        "benchmark": "skills", "rows": rows, "rollouts": len(rollouts), "seconds": round(seconds, 2)
    }  # fmt: skip
    print(json.dumps(document, indent=2))


def make_rollouts(
    count: int, shares: Sequence[float], trials: int, chance: Random
) -> list[ContrastRollout]:
    """Return the rollouts of a made-up agent, half of them failed: `trials` of each task."""
    rollouts = []
    for number in range(count):
        if number % trials == 0:
            failed = (number // trials) % 2 == 0
            loops = chance.random() < shares[not failed]
            tool = chance.choice(TOOLS)
        category, pivot = (SKILL, "*") if loops else ("wrong_entity", tool)
        rollouts.append(
            ContrastRollout(
                rollout=f"rollout-{number}",
                task=f"task-{number // trials}",
                failed=failed,
                pattern=f"{category}|{pivot}" if failed else None,
                has_loop=loops,
                tools=frozenset({tool}),
            )
        )
    return rollouts


def _measure_row(
    size: int,
    shares: tuple[float, float],
    trials: int,
    errors: float,
    count: int,
    chance: Random,
) -> dict[str, object]:
    drawn, whole, looks_drawn, looks_whole = 0, 0, 0, 0
    looked = max(1, count // LOOKS)
    for agent in range(count):
        looks = LOOKS if agent < looked else 1
        outcomes = [
            _compare(make_rollouts(size, shares, trials, chance), errors, n, chance)
            for n in range(looks)
        ]
        drawn += outcomes[0][0]
        whole += outcomes[0][1]
        if looks > 1:
            looks_drawn += any(outcome[0] for outcome in outcomes)
            looks_whole += any(outcome[1] for outcome in outcomes)
    return {
        "rollouts": size,
        "lacking": list(shares),
        "contrast": round(shares[0] - shares[1], 2),
        "repeated": trials > 1,
        "errors": errors,
        "drawn": round(drawn / count, 3),
        "whole": round(whole / count, 3),
        "looks_drawn": round(looks_drawn / looked, 2),
        "looks_whole": round(looks_whole / looked, 2),
    }


def _compare(
    rollouts: Sequence[ContrastRollout], errors: float, number: int, chance: Random
) -> tuple[bool, bool]:
    """Whether the skill is selected with the draws, and by labellings of all rollouts at once."""
    labelled = label_by_rule(rollouts)
    if errors:
        labellings = tuple(_mislabel(own, errors, chance) for own in labelled.labellings)
        labelled = replace(labelled, labellings=labellings)
    data = describe_contrast(PAIR, 0, number, labelled)
    if SKILL not in {item.skill for item in data.skills}:
        return False, False
    is_selected = measure_skills(data)[SKILL].state is SkillState.SELECTED
    chosen = sum(is_chosen(_count_all(rollouts, own)) for own in labelled.labellings)
    return is_selected, chosen >= LEAST_SELECTED * LABELLINGS


def _mislabel(labelling: Labelling, errors: float, chance: Random) -> Labelling:
    """Return a labelling in which that share of the planted skill's labels is the other one."""
    other = {Label.LACKING: Label.PRESENT, Label.PRESENT: Label.LACKING}
    own = (
        {
            rollout: other[name] if chance.random() < errors else name
            for rollout, name in labelling.labels[SKILL].items()
        }
        if SKILL in labelling.labels
        else {}
    )
    return Labelling({**labelling.labels, SKILL: own} if own else labelling.labels)


def _count_all(rollouts: Sequence[ContrastRollout], labelling: Labelling) -> SkillLabels:
    labels = labelling.labels[SKILL]
    counts = Counter((item.failed, labels[item.rollout] is Label.LACKING) for item in rollouts)
    return SkillLabels(
        failures=counts[True, True] + counts[True, False],
        lacking_failures=counts[True, True],
        present_failures=counts[True, False],
        lacking_successes=counts[False, True],
        present_successes=counts[False, False],
    )


if __name__ == "__main__":
    main()
