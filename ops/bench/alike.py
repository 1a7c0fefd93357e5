"""What it costs that a call which may continue several conversations continues none.

    python -m ops.bench.alike [--conversations N] [--at-once K] [--openings W] [--stop P] [--most M]

Simulated customers of one key, unnamed, through the gateway's memory: `at-once` talk at any moment,
each opens with one of `openings` sentences (the n-th is said 1/n as often as the first) and goes on
with words of their own; `stop` is the probability to stop after an answer, `chance` that an answer
is unlike any other, `most` the entries that are remembered. One line of JSON: `mixed` sessions hold
two customers' calls; `split` is the share of the calls after the first that began a session,
`whole` that of the conversations in one.
"""

import argparse
import json
import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Final

from producers.gateway.capture.digests import Conversation
from producers.gateway.capture.sessions import MAX_KNOWN, Sessions

_SCOPE: Final = ("agent", None)


@dataclass
class _Customer:
    name: int
    opening: str
    history: list[Any] = field(default_factory=list)
    sessions: list[str] = field(default_factory=list)


def simulate(
    conversations: int,
    at_once: int,
    openings: int,
    stop: float,
    chance: float,
    most: int = MAX_KNOWN,
    seed: int = 0,
) -> dict[str, Any]:
    """The figures of one run."""
    draw = random.Random(seed)
    sentences = [f"Opening {number}" for number in range(openings)]
    weights = [1 / (number + 1) for number in range(openings)]
    sessions, customers, talking = Sessions(most), list[_Customer](), list[_Customer]()
    while len(customers) < conversations or talking:
        while len(talking) < at_once and len(customers) < conversations:
            customer = _Customer(len(customers), draw.choices(sentences, weights)[0])
            customers.append(customer)
            talking.append(customer)
        customer = draw.choice(talking)
        _say(sessions, customer, draw.random() < chance)
        if draw.random() < stop:
            talking.remove(customer)
    return _figures(customers)


def _say(sessions: Sessions, customer: _Customer, unlike: bool) -> None:
    turn = len(customer.sessions)
    words = customer.opening if turn == 0 else f"{customer.name}, {turn}"
    customer.history.append({"role": "user", "content": words})
    conversation, call = Conversation.of(customer.history), f"{customer.name}.{turn}"
    attribution = sessions.attribute(None, _SCOPE, conversation, call)
    answer = {"role": "assistant", "content": call if unlike else f"An answer to {words}"}
    sessions.remember_request(attribution.session, call, conversation)
    heard = conversation.digest_answer(answer)
    sessions.remember_answer(attribution.session, call, _SCOPE, conversation, heard)
    sessions.settle(attribution.claim, completed=True)
    customer.history.append(answer)
    customer.sessions.append(attribution.session)


def _figures(customers: list[_Customer]) -> dict[str, Any]:
    whose: dict[str, set[int]] = defaultdict(set)
    for customer in customers:
        for session in customer.sessions:
            whose[session].add(customer.name)
    later = sum(len(customer.sessions) - 1 for customer in customers)
    splits = sum(len(set(customer.sessions)) - 1 for customer in customers)
    whole = sum(len(set(customer.sessions)) == 1 for customer in customers)
    return {
        "conversations": len(customers),
        "calls": later + len(customers),
        "mixed": sum(len(names) > 1 for names in whose.values()),
        "split": round(splits / later, 4) if later else 0.0,
        "whole": round(whole / len(customers), 4),
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--conversations", type=int, default=2_000)
    parser.add_argument("--at-once", type=int, default=20)
    parser.add_argument("--openings", type=int, default=1_000)
    parser.add_argument("--stop", type=float, default=0.2)
    parser.add_argument("--chance", type=float, default=0.0)
    parser.add_argument("--most", type=int, default=MAX_KNOWN)
    chosen = parser.parse_args()
    figures = simulate(
        chosen.conversations,
        chosen.at_once,
        chosen.openings,
        chosen.stop,
        chosen.chance,
        chosen.most,
    )
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
