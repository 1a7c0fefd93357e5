"""`kill -9` of random processes every few seconds during whole loops, from customers to the route.

    python -m ops.faults.loop_kill --count 20 [--log sqlite|kafka] [--seed N] [--folder F]

Each loop has a home of its own (loop_scene.py) with gateway, engine, consume, schedule, work, and
on Kafka ship as processes. Every few seconds one of them or the running job is killed and started
again, sometimes two at once. Every third loop runs under `kintsugi up`, which restarts its roles;
it is killed too, alone or together with all roles. Passes when the cycle ends and loop_audit.py
finds no violation. The first loop that fails ends the run.
"""

import json
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from ops.command_line import add_folder, build_parser, open_folder
from ops.faults.folding import create_tables, postgres
from ops.faults.loop_audit import outcome, wrong
from ops.faults.loop_scene import Backends, Scene, scene
from ops.kafka.broker import Broker
from ops.postgres.server import Postgres

LogKind = Literal["sqlite", "kafka"]
LOGS: Final[tuple[LogKind, ...]] = ("sqlite", "kafka")

LOOP_SECONDS: Final = 900.0
SETTLE_SECONDS: Final = 300.0
PAUSES: Final = (0.3, 1.5)
"""Least and most time between kills, as multiples of the starting time. With fixed times, nothing
would start on a busy machine between kills. Some programs are killed while they start."""
AWAY_SECONDS: Final = 1.0
TWO: Final = 0.2
UP_EVERY: Final = 3

_LOOK_SECONDS: Final = 0.3


@dataclass(frozen=True, slots=True)
class Servers:
    broker: Broker
    database: Postgres

    def fresh(self) -> Backends:
        """Empty the broker, create a database, and return their addresses."""
        self.broker.wipe()
        self.broker.start()
        return Backends(self.broker.bootstrap, create_tables(self.database))


def run(count: int, folder: Path, seed: int = 0, logs: Sequence[LogKind] = LOGS) -> dict[str, Any]:
    """Run `count` loops on each kind of log."""
    results: dict[str, Any] = {kind: _on(kind, count, folder / kind, seed) for kind in logs}
    passed = all(result["passed"] for result in results.values())
    return {"fault": "kill -9 during whole loops", "seeds": [seed], **results, "passed": passed}


def _on(kind: LogKind, count: int, folder: Path, seed: int) -> dict[str, Any]:
    loops = list[dict[str, Any]]()
    with servers_of(kind, folder) as servers:
        for number in range(seed, seed + count):
            backing = Backends() if servers is None else servers.fresh()
            loops.append(one_loop(folder / str(number), number, backing))
            print(json.dumps({"log": kind, **loops[-1]}), file=sys.stderr, flush=True)
            if loops[-1]["wrong"]:
                break
    return _sum_loops(loops)


def one_loop(folder: Path, seed: int, backing: Backends) -> dict[str, Any]:
    """Run one loop while processes are killed; `wrong` is empty if everything holds."""
    chance, kills, began = random.Random(seed), Counter[str](), time.monotonic()
    whole = seed % UP_EVERY == UP_EVERY - 1
    folder.mkdir(parents=True, exist_ok=True)
    with scene(folder, seed, backing, whole=whole) as stage:
        figures: dict[str, Any] = {"seed": seed, "up": whole}
        try:
            stage.wait_for_an_answer(LOOP_SECONDS)
            starting = time.monotonic() - began
            figures["starting_seconds"] = round(starting, 1)
            _fire(stage, chance, kills, starting, began + LOOP_SECONDS)
            figures["settled_seconds"] = round(_settle(stage), 1)
            problems = []
        except TimeoutError as error:
            problems = [str(error)]
        problems += stop_all(stage)
        heard = stage.customers.heard
        problems += wrong(stage.app, stage.place, heard)
        figures |= {
            "seconds": round(time.monotonic() - began, 1),
            "outcome": outcome(stage.app),
            "kills": dict(sorted(kills.items())),
            "ended": dict(stage.processes.ended),
            "acknowledged": len(heard.acknowledged),
            "answers": dict(heard.by),
            "wrong": problems,
        }
        if problems:
            figures["said"] = {name: stage.log_end(name) for name in stage.processes.names}
    return figures


def _fire(
    stage: Scene, chance: random.Random, kills: Counter[str], starting: float, until_when: float
) -> None:
    while not stage.is_over():
        if time.monotonic() > until_when:
            raise TimeoutError(f"the cycle has not ended within {LOOP_SECONDS:g} s")
        struck = time.monotonic() + starting * chance.uniform(*PAUSES)
        while time.monotonic() < struck and not stage.is_over():
            stage.processes.revive()
            time.sleep(_LOOK_SECONDS)
        names = chance.sample(stage.processes.targets, 2 if chance.random() < TWO else 1)
        kills.update(stage.processes.strike(*names))
        time.sleep(chance.uniform(0, AWAY_SECONDS))
    stage.processes.revive()


def _settle(stage: Scene) -> float:
    began = time.monotonic()
    while not stage.is_in_sync():
        if time.monotonic() > began + SETTLE_SECONDS:
            routed, allowed = stage.read_adapter_bounds()
            raise TimeoutError(
                f"the engine holds {stage.read_engine_adapters()}, the routes name {routed}, and "
                "no more than "
                f"{allowed} may be there, after {SETTLE_SECONDS:g} s"
            )
        stage.processes.revive()
        time.sleep(_LOOK_SECONDS)
    return time.monotonic() - began


def stop_all(stage: Scene) -> Iterator[str]:
    """Stop the customers first, then the programs in order; yield errors."""
    stage.customers.leave()
    for name, code in stage.processes.stop().items():
        # A program that is still starting is ended by the signal itself.
        if code not in (0, -signal.SIGTERM):
            yield f"{name} was told to stop, and ended with {code}"


@contextmanager
def servers_of(kind: LogKind, folder: Path) -> Iterator[Servers | None]:
    """Yield a started broker and database for loops on Kafka; None for SQLite."""
    folder.mkdir(parents=True, exist_ok=True)
    if kind == "sqlite":
        yield None
        return
    with postgres() as database, Broker(folder / "broker") as broker:
        yield Servers(broker, database)


def _sum_loops(loops: Sequence[dict[str, Any]]) -> dict[str, Any]:
    kills, outcomes, ended = Counter[str](), Counter[str](), Counter[str]()
    for loop in loops:
        kills.update(loop["kills"])
        ended.update(loop["ended"])
        outcomes[loop["outcome"]] += 1
    problems = [f"seed {loop['seed']}: {problem}" for loop in loops for problem in loop["wrong"]]
    return {
        "loops": len(loops),
        "kills": dict(sorted(kills.items())),
        "outcomes": dict(outcomes),
        "ended_by_themselves": dict(ended),
        "acknowledged": sum(loop["acknowledged"] for loop in loops),
        "longest_seconds": max(loop["seconds"] for loop in loops),
        "wrong": problems,
        "passed": not problems and bool(kills),
    }


def main() -> int:
    """Run the command line."""
    parser = build_parser(__doc__)
    parser.add_argument("--count", type=int, default=20, help="loops on each kind of log")
    parser.add_argument("--log", choices=LOGS, help="only on this kind")
    parser.add_argument("--seed", type=int, default=0, help="of the first loop")
    add_folder(parser)
    options = parser.parse_args()
    logs = LOGS if options.log is None else (options.log,)
    with open_folder(options.folder) as folder:
        figures = run(options.count, folder, options.seed, logs)
    print(json.dumps(figures))
    return 0 if figures["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
