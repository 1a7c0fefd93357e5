"""What the rules for faults of users and tasks find, and whom they blame for nothing.

    python -m ops.bench.attribution [--tasks 120] [--environments shop,retail,airline,telecom]
                                       [--recordings FILE ... --benchmarks FOLDER]

Method. Each task is played once per kind of fault with the oracle as the agent and a user that is
exact but for that fault (faulty_user.py); `found` counts those of the `planted` that are named,
`rules` by which rule. `exact` plays the exact user with the oracle and with an agent that does
nothing; every fault that is named there is a false one. `milliseconds` is the processor time of one
transcript, on average. `faulty_tasks` are the same tasks with a fault of their own
(faulty_task.py), and `found` those that are named. `examined` plays the exact user once more and
asks whose fault each rollout is: the oracle's are accepted, the others are the agent's. One JSON
document; everything follows from --seed. With --recordings, of simulations that tau2-bench recorded
with a model as the user, nothing is planted; `which` names every fault of a user and `tasks` every
fault of a task: whether it is one has to be read.
"""

import argparse
import json
import os
import time
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any, Final

from envs.agents import Agent
from envs.attribution.examination import examine
from envs.attribution.task_faults import find_task_fault
from envs.attribution.user_faults import UserFault, find_user_fault
from envs.environment import Environment
from envs.episode import Episode, play
from envs.grading import grade
from envs.registry import open_environment
from envs.task import TaskDefinition
from envs.users import User
from ops.bench.attribution.faulty_task import TASK_FAULTS, TaskFaultKind, plant_task_fault
from ops.bench.attribution.faulty_user import FAULTS, FaultKind, FaultyUser
from ops.bench.attribution.recordings import measure_recordings

ENVIRONMENTS: Final = "shop,retail,airline,telecom"


def main() -> None:
    """Print one JSON document."""
    options = _parser().parse_args()
    if options.recordings:
        recordings = {
            file.name: measure_recordings(file, options.benchmarks) for file in options.recordings
        }
        print(json.dumps({"benchmark": "attribution", "recordings": recordings}, indent=2))
        return
    results = {
        name: measure(open_environment(name), options.tasks, options.seed)
        for name in options.environments.split(",")
    }
    print(json.dumps({"benchmark": "attribution", "environments": results}, indent=2))


def measure(environment: Environment, count: int, seed: int) -> dict[str, Any]:
    """Return the figures of one environment over its first `count` tasks."""
    tasks = list(islice(environment.tasks(), count))
    return {
        "tasks": len(tasks),
        "exact": measure_exact(environment, tasks),
        "planted": {fault: measure_fault(environment, tasks, fault, seed) for fault in FAULTS},
        "faulty_tasks": {
            fault: measure_task_fault(environment, tasks, fault, seed) for fault in TASK_FAULTS
        },
        "examined": measure_examination(environment, tasks),
    }


def measure_exact(environment: Environment, tasks: list[TaskDefinition]) -> dict[str, Any]:
    """Return how often the exact user is blamed."""
    faults, spent, count = 0, 0.0, 0
    for task in tasks:
        for agent in (environment.oracle(task), environment.idle_agent(task)):
            fault, seconds = _examine(environment, task, agent, environment.user(task))
            faults += fault is not None
            spent += seconds
            count += 1
    milliseconds = round(1000 * spent / max(count, 1), 1)
    return {"rollouts": count, "faults": faults, "milliseconds": milliseconds}


def measure_fault(
    environment: Environment, tasks: list[TaskDefinition], fault: FaultKind, seed: int
) -> dict[str, Any]:
    """Return how many faults of one kind were planted, and how many of them are named."""
    planted, rules = 0, Counter[str]()
    for task in tasks:
        user = FaultyUser(environment, task, fault, seed)
        named, _ = _examine(environment, task, environment.oracle(task), user)
        planted += user.planted is not None
        if user.planted is not None and named is not None:
            rules[named.rule] += 1
    return {"planted": planted, "found": sum(rules.values()), "rules": dict(rules)}


def measure_task_fault(
    environment: Environment, tasks: list[TaskDefinition], fault: TaskFaultKind, seed: int
) -> dict[str, Any]:
    """Return how many tasks could have a fault of one kind, and how many of them are named."""
    planted, rules = 0, Counter[str]()
    for task in tasks:
        faulty = plant_task_fault(environment, task, fault, seed)
        if faulty is None:
            continue
        planted += 1
        named = find_task_fault(environment, faulty)
        if named is not None:
            rules[named.rule] += 1
    return {"planted": planted, "found": sum(rules.values()), "rules": dict(rules)}


def measure_examination(environment: Environment, tasks: list[TaskDefinition]) -> dict[str, Any]:
    """Return whose fault rollouts with the exact user are, and what one examination costs."""
    faults, spent = Counter[str](), 0.0
    for task in tasks:
        for agent in (environment.oracle(task), environment.idle_agent(task)):
            episode = play(Episode(environment, task), agent, environment.user(task))
            verdict = grade(environment, task, episode.messages, episode.termination)
            start = time.process_time()
            fault = examine(environment, task, episode.messages, episode.termination, verdict)
            spent += time.process_time() - start
            faults["accepted" if fault is None else fault.fault] += 1
    milliseconds = round(1000 * spent / max(faults.total(), 1), 1)
    return {"faults": dict(faults), "milliseconds": milliseconds}


def _examine(
    environment: Environment, task: TaskDefinition, agent: Agent, user: User
) -> tuple[UserFault | None, float]:
    """Play a task; return the fault that is named, and the seconds of processor time it took."""
    episode = play(Episode(environment, task), agent, user)
    start = time.process_time()
    fault = find_user_fault(environment, task, episode.messages)
    return fault, time.process_time() - start


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=120, help="of each environment")
    parser.add_argument("--environments", default=ENVIRONMENTS)
    parser.add_argument("--seed", type=int, default=0, help="of the faults")
    parser.add_argument("--recordings", type=Path, nargs="+", help="results files of tau2-bench")
    parser.add_argument(
        "--benchmarks",
        type=Path,
        default=os.environ.get("KINTSUGI_BENCHMARKS"),
        help="with the tasks of the recordings (default: KINTSUGI_BENCHMARKS)",
    )
    return parser


if __name__ == "__main__":
    main()
