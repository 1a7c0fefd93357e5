"""Unnamed customers say the same words at the same time, and the gateway is killed in between.

    python -m ops.faults.gateway_alike --count 100

`count` customers, ten at a time, say the same words and hear the same answers for two turns; each
third turn is their own. Half of the calls are streams. Unanswered calls are sent again unchanged.
Passes when no session in the log has calls of two customers and every acknowledged call is in the
log once.
"""

import random
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

from ops.command_line import run_command
from ops.faults.gateway_audit import read
from ops.faults.gateway_load import CallAttempt, Client, ask_until_answer
from ops.faults.gateway_scene import Scene, scene
from ops.waits import run_threads

AT_ONCE: Final = 10
TURNS: Final = ("Hello", "Yes, please", "I am customer {}", "Bye")
KILLS: Final = 2
LIFE_SECONDS: Final = 1.0
_PATIENCE_SECONDS: Final = 600.0


def run(count: int, folder: Path, seed: int = 0) -> dict[str, Any]:
    """Run `count` customers, and check that no session mixes the calls of two."""
    kills = 0
    with scene(folder) as stage:
        for first in range(0, count, AT_ONCE):
            names = range(first, min(first + AT_ONCE, count))
            threads = [threading.Thread(target=_converse, args=(stage, n, seed)) for n in names]
            with run_threads(threads):
                for _ in range(KILLS):
                    time.sleep(random.Random(seed + kills).uniform(0, LIFE_SECONDS))
                    if not any(thread.is_alive() for thread in threads):
                        break
                    stage.gateway.relaunch()
                    kills += 1
        result = stage.stop_and_audit()
        sessions = _customers(stage)
    mixed = sum(len(customers) > 1 for customers in sessions.values())
    unfinished = count * len(TURNS) - len({attempt.mark for attempt in stage.ledger.list_acks()})
    return {
        "fault": "customers who say the same", "customers": count, "kills": kills, "seeds": [seed],
        "sessions": len(sessions), "mixed_sessions": mixed, "unfinished": unfinished,
        **result.report(), "passed": result.sound and not mixed and not unfinished,
    }  # fmt: skip


def _converse(stage: Scene, name: int, seed: int) -> None:
    chance = random.Random(1_000_003 * seed + name)
    messages: list[dict[str, Any]] = []
    with stage.client() as client:
        for turn, words in enumerate(TURNS):
            messages.append({"role": "user", "content": words.format(name)})
            seen = _turn(client, messages, f"{seed}.{name}.{turn}", chance)
            if not seen.has_answer:
                return
            messages.append({"role": "assistant", "content": seen.answers[0].text})
            time.sleep(chance.uniform(0, 0.2))


def _turn(
    client: Client, messages: list[dict[str, Any]], mark: str, chance: random.Random
) -> CallAttempt:
    stream = chance.random() < 0.5
    script = {"mark": mark, "words": 5, "pace_ms": 5}
    history = list(messages)
    return ask_until_answer(
        lambda: client.ask(history, script, stream=stream), threading.Event(), _PATIENCE_SECONDS
    )


def _customers(stage: Scene) -> dict[str, set[str]]:
    started = read(stage.gateway.home).started
    customers: dict[str, set[str]] = defaultdict(set)
    for seen in stage.ledger.seen:
        for call in started.get(seen.call or "", ()):
            customers[call.session].add(seen.mark.rpartition(".")[0])
    return customers


if __name__ == "__main__":
    run_command(__doc__, run, count=100)
