"""How fast the environments run without a model.

    python -m ops.bench.environments [--seconds 3] [--benchmarks FOLDER]

Method. One process, one core. Agents are the oracles, so every step is real work of the
environment; what is compared runs in turn within one round, and medians of the rounds' own ratios
are reported.

    over_retail each environment's steps per second over those of retail, in this run: the one ratio
                of two medians, measured one after the other, so it wants a quiet machine
    steps       hops of whole episodes by the turn protocol, over the tasks each environment
                generates; `tools_share`: the time of the same tool calls alone, on states reset
                alike, over the episode's (1: the protocol costs nothing)
    reset       `pickle.loads` of the same tables (the fastest way that copies) over a fork, and
                `copy.deepcopy` over a fork
    gold        the 114 retail tasks of tau2-bench by the turn protocol, each graded four times on
                fresh databases: the work of the original's runner, which took 98 s on two cores
                (a figure of another run: the one that is no ratio of this one)
    concurrent  1,000 episodes open at once in one process, each moved by one hop in turn; finished
                ones are replaced. Resident memory after ten times as many episodes, over that
                after the first thousand
"""

import argparse
import copy
import gc
import json
import os
import pickle
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final

from envs.environment import Environment
from envs.episode import Episode, Party, play
from envs.grading import grade
from envs.registry import open_environment
from envs.task import TaskDefinition
from events.messages import executed_calls

NAMES: Final = ("shop", "retail", "airline", "telecom", "toolsandbox")
ROUNDS: Final = 5
OPEN_EPISODES: Final = 1_000
TIMES: Final = 10
EVALUATIONS: Final = 4


def main() -> None:
    """Print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    folder = os.environ.get("KINTSUGI_BENCHMARKS")
    parser.add_argument("--benchmarks", type=Path, default=Path(folder) if folder else None)
    options = parser.parse_args()
    environments = [open_environment(name, benchmarks=options.benchmarks) for name in NAMES]
    document: dict[str, Any] = {
        environment.name: _measure(environment, options.seconds) for environment in environments
    }
    retail = document["retail"]["steps_per_second"]
    for name in NAMES:
        document[name]["over_retail"] = round(document[name]["steps_per_second"] / retail, 2)
    if options.benchmarks is None:
        print("gold: skipped, KINTSUGI_BENCHMARKS names no folder", file=sys.stderr)
    else:
        document["gold"] = _gold(open_environment("retail", benchmarks=options.benchmarks))
    document["concurrent"] = _concurrent(environments[0])
    print(json.dumps(document, indent=2))


def _measure(environment: Environment, seconds: float) -> dict[str, Any]:
    tasks = list(islice(environment.tasks(), 200))
    rounds = [_steps(environment, tasks, seconds / ROUNDS) for _ in range(ROUNDS)]
    medians = {key: statistics.median(row[key] for row in rounds) for key in rounds[0]}
    return {**medians, **_reset(environment, tasks[0])}


def _steps(environment: Environment, tasks: list[TaskDefinition], seconds: float) -> dict[str, Any]:
    steps = episodes = 0
    playing = tools = 0.0
    for task in cycle(tasks):
        start = time.perf_counter()
        episode = play(Episode(environment, task), environment.oracle(task), environment.user(task))
        playing += time.perf_counter() - start
        start = time.perf_counter()
        _call_again(environment, episode)
        tools += time.perf_counter() - start
        steps += episode.steps
        episodes += 1
        if playing > seconds:
            break
    return {
        "steps_per_second": round(steps / playing),
        "episodes_per_second": round(episodes / playing),
        "tools_share": round(tools / playing, 3),
    }


def _call_again(environment: Environment, episode: Episode) -> None:
    tools = environment.open_tools(episode.task, environment.reset(episode.task))
    for item in executed_calls(episode.messages):
        tools.call(item.call.name, item.call.arguments, item.requestor)


def _reset(environment: Environment, task: TaskDefinition) -> dict[str, float]:
    database = environment.reset(task)
    tables = {name: database[name] for name in database.names}
    stored = pickle.dumps(tables)
    fork = _seconds(lambda: environment.reset(task))
    return {
        "reset_pickle_over_fork": round(_seconds(lambda: pickle.loads(stored)) / fork, 1),
        "reset_deepcopy_over_fork": round(_seconds(lambda: copy.deepcopy(tables)) / fork, 1),
        "reset_microseconds": round(fork * 1e6, 2),
    }


def _seconds(work: Callable[[], Any], budget: float = 0.3) -> float:
    """Median seconds of one run, over as many as fit the budget."""
    taken: list[float] = []
    while sum(taken) < budget:
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def _gold(environment: Environment) -> dict[str, Any]:
    start = time.perf_counter()
    rewards: list[float | None] = []
    for task in environment.tasks("base"):
        episode = play(Episode(environment, task), environment.oracle(task), environment.user(task))
        for _ in range(EVALUATIONS):
            rewards.append(grade(environment, task, episode.messages, episode.termination).reward)
    return {
        "seconds": round(time.perf_counter() - start, 2),
        "tasks": len(rewards) // EVALUATIONS,
        "evaluations": len(rewards),
        "not_one_nor_open": sum(reward == 0 for reward in rewards),
    }


def _concurrent(environment: Environment) -> dict[str, Any]:
    tasks = cycle(list(environment.tasks()))
    players = (_player(environment, task) for task in tasks)
    first = _most_resident(players, OPEN_EPISODES)
    many = _most_resident(players, OPEN_EPISODES * TIMES)
    return {
        "open": OPEN_EPISODES,
        "memory_over_first_thousand": round(many / first, 3),
        "resident_mb": round(many / 2**20, 1),
    }


def _most_resident(players: Iterator[Iterator[None]], episodes: int) -> int:
    """Play this many episodes, a thousand at a time; the most bytes that were resident."""
    left = episodes
    playing = list(islice(players, OPEN_EPISODES))
    resident = 0
    while playing:
        playing = [player for player in playing if next(player, playing) is None]
        while left > OPEN_EPISODES and len(playing) < OPEN_EPISODES:
            playing.append(next(players))
            left -= 1
        resident = max(resident, _resident())
    gc.collect()
    return resident


def _player(environment: Environment, task: TaskDefinition) -> Iterator[None]:
    """Plays one episode; yields after every message."""
    episode = Episode(environment, task)
    agent, user = environment.oracle(task), environment.user(task)
    while episode.turn is not None:
        party = agent if episode.turn is Party.AGENT else user
        episode.receive(party.reply(episode.view(episode.turn)))
        yield


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
