"""How many episodes of shop the embedded engine plays in a minute, and how many vLLM's CPU build.

    python -m ops.bench.engine [--episodes 600] [--rounds 3] [--checkpoint DIR] [--without-vllm]

Method. The same checkpoint, tasks and sampling settings (temperature 1, at most 64 tokens per
answer) for all; `--concurrency` episodes open at once; after a round that counts for nothing,
rounds in turn. Both servers are processes of their own with the cores to themselves while it is
their turn (the other one idles), driven over HTTP by the client that `kintsugi eval` uses.

    in_process   daemon/solver/sampling/local.py: the client and the model in one thread
    embedded     `python -m daemon.engine`, two threads
    vllm         vLLM's CPU build, its own choice of threads

`ratio`: episodes per minute over those of vLLM in the same round, medians. `passed` is the share of
episodes that pass, which has to be alike.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, aclosing, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final

import torch

from daemon.engine.chat import Chat
from daemon.engine.generation import Engine
from daemon.engine.policy import Policy
from daemon.engine.reference.weights import CHECKPOINT
from daemon.solver.sampling.local import Attempt, InProcess
from envs.endpoint import Endpoint, Sampling
from envs.evaluation import Setup, make_environment_user, play_all
from envs.players import ModelAgent
from envs.shop.environment import Shop
from envs.shop.kinds import PLAIN
from envs.task import TaskDefinition
from ops.vllm.server import Vllm

ANSWER: Final = 64
LENGTH: Final = 512
WARM_UP: Final = 64
"""Episodes before the first round: vLLM compiles for minutes where the reference has nothing to."""
NAME: Final = "reference"

Side = Callable[[Sequence[TaskDefinition], int], list[bool]]
"""Plays tasks with a seed; returns their verdicts."""


def main() -> None:
    """Print one JSON document."""
    options = _parser().parse_args()
    tasks = list(islice(Shop().mixture(dict.fromkeys(PLAIN, 1.0), seed=1), options.episodes))
    with ExitStack() as stack:
        sides = {"in_process": _in_process(options.checkpoint, options.concurrency)}
        served, _ = stack.enter_context(embedded(options.checkpoint, options.concurrency, LENGTH))
        sides["embedded"] = _over_http(served, options.concurrency)
        if not options.without_vllm:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            flags = (f"--max-model-len={LENGTH}", f"--max-num-seqs={options.concurrency}")
            vllm = stack.enter_context(Vllm(options.checkpoint, NAME, folder, flags=flags))
            sides["vllm"] = _over_http(vllm.url, options.concurrency)
        for side in sides.values():
            side(tasks[:WARM_UP], 0)
        rounds = [_round(sides, tasks, number) for number in range(1, options.rounds + 1)]
    print(json.dumps(_summary(rounds), indent=2))


def _round(
    sides: dict[str, Side], tasks: Sequence[TaskDefinition], number: int
) -> dict[str, tuple[float, float]]:
    """Side -> its episodes per minute and the share that passed."""
    figures = {}
    for name, side in sides.items():
        start = time.perf_counter()
        verdicts = side(tasks, number)
        minutes = (time.perf_counter() - start) / 60
        figures[name] = len(verdicts) / minutes, sum(verdicts) / len(verdicts)
        print(f"round {number}: {name} {figures[name][0]:,.0f} episodes/min", file=sys.stderr)
    return figures


def _summary(rounds: Sequence[dict[str, tuple[float, float]]]) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for name in rounds[0]:
        figures[name] = {
            "episodes_per_minute": round(statistics.median(row[name][0] for row in rounds)),
            "passed": round(statistics.mean(row[name][1] for row in rounds), 4),
        }
        if "vllm" in rounds[0]:
            ratios = [row[name][0] / row["vllm"][0] for row in rounds]
            figures[name]["ratio"] = round(statistics.median(ratios), 2)
    return figures


def _in_process(checkpoint: Path, concurrency: int) -> Side:
    policy = Policy.load(checkpoint, NAME)
    player = InProcess(Engine(policy, concurrency, LENGTH), Chat(checkpoint), max_tokens=ANSWER)

    def play(tasks: Sequence[TaskDefinition], seed: int) -> list[bool]:
        torch.set_num_threads(1)
        attempts = (Attempt(t, t.id, seed + n, str(n)) for n, t in enumerate(tasks))
        return [bool(r.grade.success) for r in player.play(Shop(), attempts, policy)]

    return play


@contextmanager
def embedded(checkpoint: Path, slots: int, length: int | None) -> Iterator[tuple[str, int]]:
    """The server's base URL and its process; it listens before it says so. `length` None: as many
    tokens as it takes by itself."""
    command = [sys.executable, "-m", "daemon.engine", "--model", str(checkpoint), "--name", NAME]
    command += ["--port", "0", "--slots", str(slots)]
    command += [] if length is None else ["--length", str(length)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "http://" in line)
        url = next(word for word in line.replace(",", " ").split() if word.startswith("http://"))
        yield url, process.pid
    finally:
        process.terminate()
        process.wait(30)


def _over_http(url: str, concurrency: int) -> Side:
    return lambda tasks, seed: asyncio.run(_play_tasks(url, tasks, seed, concurrency))


async def _play_tasks(
    url: str, tasks: Sequence[TaskDefinition], seed: int, concurrency: int
) -> list[bool]:
    shop, sampling = Shop(), Sampling(temperature=1.0, max_tokens=ANSWER)
    async with Endpoint(url, NAME, concurrency=concurrency) as endpoint:

        def agent(task: TaskDefinition, episode_seed: int) -> ModelAgent:
            return ModelAgent(endpoint, shop.schemas(task), episode_seed, sampling)

        setup = Setup(shop, agent, make_environment_user(shop), seed=seed)
        plan = ((task, 0) for task in tasks)
        async with aclosing(play_all(setup, plan, concurrency=concurrency)) as finished:
            return [bool(attempt.success) async for attempts in finished for attempt in attempts]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", type=Path, default=CHECKPOINT)
    parser.add_argument("--episodes", type=int, default=600, help="per round and side")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--concurrency", type=int, default=64, help="episodes open at once")
    parser.add_argument("--without-vllm", action="store_true", help="ours alone, without ratios")
    return parser


if __name__ == "__main__":
    main()
