"""Does what the gateway says answered also answer? Greedy checks while adapters are swapped.

    piece(place, ...)     swaps under checks, prefix cache on
    control(place, ...)   the same with one name and one path for all: it must be wrong

Every prompt begins with the same 512 tokens, so an engine that keys its cache badly answers with
what another adapter computed of them. A check is one greedy answer of a few tokens, asked of the
alias; it is wrong where its log-probabilities are not those that the adapter named in the answer's
header comes to, by transformers' forward in this process. Checks go on while routes turn.
"""

import shutil
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count as count_up
from pathlib import Path
from random import Random
from typing import Final

import httpx2

from daemon.adapters.fingerprint import (
    EXACT,
    Fingerprint,
    Prompts,
    distance,
    parse_answer,
    prompts,
    question,
)
from daemon.engine.fingerprint import fingerprint
from daemon.solver.lora import save
from ops.bench.pieces import Json
from ops.bench.serving.place import ALIAS, Place
from ops.random_adapters import SPREAD, Maker

PREFIX: Final = 512
CHECKERS: Final = 4
AFTER: Final = 16
"""Checks that each adapter answers at least."""
CONTROL_SWAPS: Final = 4
_VOCABULARY: Final = 870
_SHOWN: Final = 5


def long_prompts() -> Prompts:
    """The probes behind one long beginning."""
    chance, probes = Random("prefix"), prompts(_VOCABULARY)
    lowest, highest = min(map(min, probes)), max(map(max, probes))
    prefix = tuple(chance.randint(lowest, highest) for _ in range(PREFIX))
    return tuple(prefix + probe for probe in probes)


def write_adapter(maker: Maker, folder: Path, seed: int, asked: Prompts) -> Fingerprint:
    """An adapter of chance; what it answers to the prompts."""
    with maker.open_adapter(SPREAD, seed=seed) as (adapted, provenance):
        save(adapted, folder, provenance)
        return fingerprint(adapted, asked)


@dataclass(slots=True)
class Checks:
    """What checkers saw."""

    right: int = 0
    by: Counter[str] = field(default_factory=Counter)
    """Adapter -> how many it answered."""
    farthest: float = 0.0
    """Largest distance of the right ones, in nats."""
    wrong: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def count(self) -> int:
        """All of them."""
        return self.right + len(self.wrong)

    def enough(self, adapter: str, count: int) -> bool:
        """Whether there are so many, and some of them the adapter's."""
        return self.count >= count and self.by[adapter] >= AFTER

    def add(self, adapter: str, apart: float, text: str) -> None:
        """Take one."""
        with self.lock:
            self.by[adapter] += 1
            if apart <= EXACT:
                self.right += 1
                self.farthest = max(self.farthest, apart)
            else:
                self.wrong.append(text)


class Checker:
    """Asks the alias, and compares."""

    def __init__(self, url: str, asked: Prompts, known: Mapping[str, Fingerprint]) -> None:
        self.checks = Checks()
        self._known = known
        self._asked = asked
        self._client = httpx2.Client(base_url=url, timeout=120, trust_env=False)
        self._numbers = count_up()

    def until(self, over: threading.Event) -> None:
        """Check until then. Raises what goes wrong on the way."""
        while not over.is_set():
            self.check(next(self._numbers) % len(self._asked))

    def check(self, number: int) -> None:
        """Ask for one of the prompts. Raises HTTPError, Unreadable."""
        asked = self._asked[number : number + 1]
        answer = self._client.post("/completions", json=question(ALIAS, asked))
        answer.raise_for_status()
        name = answer.headers["x-kintsugi-adapter"]
        seen = parse_answer(answer.json(), asked)
        near = {
            adapter: distance(seen, _only(reference, number))
            for adapter, reference in list(self._known.items())
        }
        nearest = min(near, key=lambda adapter: near[adapter])
        apart = near.get(name, float("inf"))
        self.checks.add(name, apart, f"{name} at {apart:.4f}, nearest is {nearest}")

    def close(self) -> None:
        """Let go of the connections."""
        self._client.close()


def _only(whole: Fingerprint, number: int) -> Fingerprint:
    return Fingerprint(answers=whole.answers[number : number + 1])


def piece(here: Place, maker: Maker, folder: Path, per_swap: int, count: int, seed: int) -> Json:
    """`count` swaps, with at least so many checks for each: those on the way to it count too."""
    asked, known = long_prompts(), dict[str, Fingerprint]()
    checker, over = Checker(here.gateway.url, asked, known), threading.Event()
    hits, queries = _cache(here)
    # No check begins before the gateway has left what is not known here.
    here.follow(_swap(here, maker, folder, 3 * 10**7 + 2 * seed, asked, known))
    with ThreadPoolExecutor(CHECKERS) as pool:
        running = [pool.submit(checker.until, over) for _ in range(CHECKERS)]
        try:
            for number in range(count):
                name = _swap(here, maker, folder, 3 * 10**7 + 2 * seed + number + 1, asked, known)
                while not (
                    checker.checks.enough(name, per_swap * (number + 1))
                    or any(future.done() for future in running)
                ):
                    over.wait(0.01)
        finally:
            over.set()
    for future in running:
        future.result()
    checker.close()
    after_hits, after_queries = _cache(here)
    checks = checker.checks
    return {
        "swaps": count,
        "checks": checks.count,
        "wrong": len(checks.wrong),
        "said": checks.wrong[:_SHOWN],
        "adapters": len(checks.by),
        "farthest_nats": checks.farthest,
        "cached_tokens": after_hits - hits,
        "asked_tokens": after_queries - queries,
    }


def _swap(
    here: Place,
    maker: Maker,
    folder: Path,
    seed: int,
    asked: Prompts,
    known: dict[str, Fingerprint],
) -> str:
    """Another adapter answers; its name. What it should say is known before it does."""
    directory = folder / f"swapped-{seed}"
    reference = write_adapter(maker, directory, seed, asked)
    name = here.push(directory)
    known[name] = reference
    here.bring(directory)
    here.flip(name)
    here.settle()
    return name


def _cache(here: Place) -> tuple[float, float]:
    """Tokens of prompts that vLLM found in its prefix cache, and those that it looked for."""
    names = ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total")
    hits, queries = (here.metric(name) for name in names)
    return hits, queries


def control(here: Place, maker: Maker, folder: Path, swaps: int = CONTROL_SWAPS) -> Json:
    """Weights are exchanged behind one name and one path, as nothing of ours does."""
    asked, place = long_prompts(), folder / "reused"
    checks = Checks()
    for number in range(swaps):
        directory = folder / f"control-{number}"
        reference = write_adapter(maker, directory, 4 * 10**7 + number, asked)
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(directory, place)
        here.replica.load("reused", place)
        seen = here.replica.score("reused", asked)
        here.replica.unload("reused")
        for index in range(len(asked)):
            apart = distance(_only(seen, index), _only(reference, index))
            checks.add("reused", apart, f"version {number} at {apart:.4f}")
    return {"swaps": swaps, "checks": checks.count, "wrong": len(checks.wrong)}


def document(pieces: Sequence[Json], reused: Json, bites: bool) -> Json:
    """All pieces as one. `bites`: whether the control arm is to be wrong (vLLM's cache is)."""
    total = {
        name: sum(item[name] for item in pieces)
        for name in ("swaps", "checks", "wrong", "cached_tokens", "asked_tokens")
    }
    asked = total.pop("asked_tokens")
    cached = total.pop("cached_tokens")
    return {
        **total,
        "said": [item for piece in pieces for item in piece["said"]][:_SHOWN],
        "adapters": sum(item["adapters"] for item in pieces),
        "farthest_nats": max(item["farthest_nats"] for item in pieces),
        "from_cache": round(cached / asked, 3) if asked else None,
        "control": reused,
        "met": total["wrong"] == 0 < total["checks"] and (reused["wrong"] > 0 or not bites),
    }
