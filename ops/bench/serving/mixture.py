"""Tokens per second of one adapter, and of several at once, on each engine.

    python -m ops.bench.serving.mixture [--adapters 8] [--requests 256] [--rounds 5]
                                        [--without-vllm]

Method. One engine at a time over the reference policy, a process of its own, with the adapters
loaded. In each round the same requests (200 random tokens, at most 64 tokens of answer, 64 open at
once) go first to one adapter, then in turn to all of them, as a panel's traffic does. `ratio` is
the tokens per second of the second over those of the first, the median of the rounds; bare figures
say how fast this machine is.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any, Final

import httpx2

from daemon.engine.reference.weights import CHECKPOINT
from ops.bench.engine import embedded
from ops.random_adapters import SPREAD, Maker
from ops.vllm.server import Vllm

OPEN: Final = 64
"""Requests at once."""
LENGTH: Final = 512
PROMPT: Final = 200
ANSWER: Final = 64
NAME: Final = "reference"
_SECONDS: Final = 300.0


def main() -> None:
    """Print one JSON document."""
    options = _parser().parse_args()
    with ExitStack() as stack, warnings.catch_warnings():
        # Of PEFT: about what transformers will do.
        warnings.simplefilter("ignore")
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        adapters = _make_adapters(folder, options.adapters)
        results = {"embedded": _measure_embedded(options, adapters)}
        if not options.without_vllm:
            results["vllm"] = _measure_vllm(options, adapters, folder)
    document = {"benchmark": "mixture", "adapters": options.adapters, **results}
    print(json.dumps(document, indent=2))


def _make_adapters(folder: Path, count: int) -> dict[str, Path]:
    maker = Maker(CHECKPOINT)
    return {
        f"member-{seed}": maker.write(folder / f"member-{seed}", SPREAD, seed=seed)
        for seed in range(count)
    }


def _measure_embedded(options: argparse.Namespace, adapters: dict[str, Path]) -> dict[str, Any]:
    with embedded(CHECKPOINT, OPEN, LENGTH) as (url, _):
        return _measure(url, adapters, options)


def _measure_vllm(
    options: argparse.Namespace, adapters: dict[str, Path], folder: Path
) -> dict[str, Any]:
    flags = (
        f"--max-loras={len(adapters)}",
        f"--max-cpu-loras={len(adapters)}",
        f"--max-model-len={LENGTH}",
        f"--max-num-seqs={OPEN}",
    )
    with Vllm(CHECKPOINT, NAME, folder, flags=flags) as server:
        return _measure(server.url, adapters, options)


def _measure(url: str, adapters: dict[str, Path], options: argparse.Namespace) -> dict[str, Any]:
    for name, path in adapters.items():
        body = {"lora_name": name, "lora_path": str(path)}
        httpx2.post(f"{url}/load_lora_adapter", json=body, timeout=_SECONDS).raise_for_status()
    names = list(adapters)
    sides = {"one": names[:1], "all": names}
    for side in sides.values():
        asyncio.run(_play(url, side, OPEN * 2, 0))
    rounds = []
    for number in range(1, options.rounds + 1):
        speeds = {
            side: asyncio.run(_play(url, models, options.requests, number))
            for side, models in sides.items()
        }
        rounds.append(speeds)
        print(f"{url} round {number}: {speeds}", file=sys.stderr)
    return {
        "tokens_per_second": {
            side: round(statistics.median(speeds[side] for speeds in rounds)) for side in sides
        },
        "ratio": round(statistics.median(speeds["all"] / speeds["one"] for speeds in rounds), 3),
        "ratios": [round(speeds["all"] / speeds["one"], 3) for speeds in rounds],
    }


async def _play(url: str, models: Sequence[str], requests: int, seed: int) -> float:
    """Return the tokens per second that the models write."""
    limits = httpx2.Limits(max_connections=OPEN)
    async with httpx2.AsyncClient(timeout=_SECONDS, limits=limits) as client:
        gate = asyncio.Semaphore(OPEN)
        start = time.perf_counter()
        counts = await asyncio.gather(
            *(_answer(client, url, body, gate) for body in _list_requests(models, requests, seed))
        )
        return round(sum(counts) / (time.perf_counter() - start), 1)


async def _answer(
    client: httpx2.AsyncClient, url: str, body: dict[str, Any], gate: asyncio.Semaphore
) -> int:
    async with gate:
        response = await client.post(f"{url}/completions", json=body)
    count: int = response.raise_for_status().json()["usage"]["completion_tokens"]
    return count


def _list_requests(models: Sequence[str], count: int, seed: int) -> Iterator[dict[str, Any]]:
    chance = Random(f"mixture {seed}")
    for number in range(count):
        yield {
            "model": models[number % len(models)],
            "prompt": [chance.randrange(10, 800) for _ in range(PROMPT)],
            "max_tokens": ANSWER,
            "seed": number,
        }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--adapters", type=int, default=8)
    parser.add_argument("--requests", type=int, default=256, help="per round and side")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--without-vllm", action="store_true", help="the embedded engine alone")
    return parser


if __name__ == "__main__":
    main()
