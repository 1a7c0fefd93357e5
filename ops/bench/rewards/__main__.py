"""How fast repairs are rewarded.

    python -m ops.bench.rewards [--golds N] [--rounds N]

Method. One process. Gold is a reflection of 35 words and a gold call of a task that `shop`
generates. Each has six completions: gold, the same with another reflection, the call alone,
another argument, gold with a final answer, and words alone. A round rewards them all; the median of
the rounds is reported, in rewards per second of processor time.

    {"benchmark": "rewards", "completions", "characters", "rewards_per_second",
      "rewards_per_second_gold_parsed_once"}

The first figure parses completion and gold for each reward, the second gold once, as
training does for a group.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from itertools import islice
from typing import Any, Final

from envs.reflection.parse import Parts, parse
from envs.reflection.reward import compute_reward, reward_text
from envs.shop.environment import Shop

_REFLECTION: Final = (
    "The call of {name} failed: the tool answered that {key} is invalid, because it was null. The "
    "customer named it in the first message, and it must be given as written there, so the call "
    "is made again with {key} {value}."
)
_OTHER: Final = (
    "{name} was refused since {key} was missing. The message of the customer holds {value}, which "
    "is what the tool needs, so I call it again with that value and change nothing else about it."
)


def main() -> None:
    """Print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--golds", type=int, default=500, help="gold calls of shop")
    parser.add_argument("--rounds", type=int, default=7, help="times that all are rewarded")
    options = parser.parse_args()
    pairs = [pair for gold in _make_golds(options.golds) for pair in _make_pairs(**gold)]
    golds = {gold: parse(gold) for _, gold in pairs}
    parsed = [(completion, golds[gold]) for completion, gold in pairs]

    def from_texts() -> None:
        for completion, gold in pairs:
            reward_text(completion, gold)

    def from_parts() -> None:
        for completion, gold in parsed:
            _reward(completion, gold)

    document = {
        "benchmark": "rewards",
        "completions": len(pairs),
        "characters": round(statistics.mean(len(completion) for completion, _ in pairs)),
        "rewards_per_second": _measure(from_texts, len(pairs), options.rounds),
        "rewards_per_second_gold_parsed_once": _measure(from_parts, len(pairs), options.rounds),
    }
    print(json.dumps(document, indent=2))


def _reward(completion: str, gold: Parts) -> float:
    return compute_reward(parse(completion), gold)


def _measure(work: Callable[[], None], count: int, rounds: int) -> int:
    """Return the median of the rounds, in rewards per second of processor time."""
    rates = []
    for _ in range(rounds):
        began = time.process_time()
        work()
        rates.append(count / (time.process_time() - began))
    return round(statistics.median(rates))


def _make_golds(count: int) -> list[dict[str, Any]]:
    """Return name and arguments of so many gold calls of generated tasks."""
    environment = Shop()
    called = (action for task in environment.tasks() for action in task.criteria.gold_actions or ())
    usable = (action for action in called if action.arguments)
    return [
        {"name": action.name, "arguments": action.arguments} for action in islice(usable, count)
    ]


def _make_pairs(name: str, arguments: dict[str, Any]) -> list[tuple[str, str]]:
    """Return (completion, gold) for each of the six completions."""
    key = next(iter(arguments))
    words = {"name": name, "key": key, "value": arguments[key]}
    reflect, other = (
        f"<reflect>\n{text.format(**words)}\n</reflect>\n\n" for text in (_REFLECTION, _OTHER)
    )
    call, wrong = (
        f"<tool_call>\n{json.dumps({'name': name, 'arguments': made})}\n</tool_call>"
        for made in (arguments, {**arguments, key: None})
    )
    gold = reflect + call
    return [
        (completion, gold)
        for completion in (
            gold,
            other + call,
            call,
            reflect + wrong,
            f"{gold}\n<final>It is done; is there anything else?</final>",
            "I am sorry, I cannot help with that order.",
        )
    ]


if __name__ == "__main__":
    main()
