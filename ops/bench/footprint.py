"""Memory of the embedded engine while texts of all lengths and adapters come and go.

    python -m ops.bench.footprint [--seconds 120] [--clients 5] [--slots 16] [--seed 0]

Method. One `python -m daemon.engine` over the reference checkpoint. Each client asks, again and
again, a sentence that was not sent before, 1 to 50 times over, for at most 64 tokens. About every
second one of three adapters is loaded under a new name, or a loaded one leaves; up to three are
there at once, and clients ask them and the base alike.

`memory_mib`: memory of the process's own (anonymous pages), before the first call, at most, and the
median of each third of the time. `cpu_ms_per_call` is the process's, both of all its threads.
"""

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any, Final

import httpx2

from daemon.engine.reference.weights import CHECKPOINT
from ops.bench.engine import NAME, embedded
from ops.random_adapters import SPREAD, Maker
from ops.soak.sampling import process

LONGEST: Final = 50
"""Sentences of one text."""
ANSWER: Final = 64
MOST: Final = 3
"""Adapters at once."""
EVERY: Final = 1.0
"""Seconds between two looks at the memory, and about between two changes of the adapters."""


class Traffic:
    """Clients, and who can be asked."""

    def __init__(self, url: str, seed: int) -> None:
        self.calls = 0
        self.loads = 0
        self._url = url
        self._seed = seed
        self._loaded: list[str] = []
        self._failures: list[BaseException] = []
        self._stop = threading.Event()
        self._lock = threading.Lock()

    @contextmanager
    def run(self, clients: int, folders: list[Path]) -> Iterator[None]:
        """Everybody at work, until the end of the block; raises what one of them died of."""
        threads = [
            threading.Thread(
                target=self._run_client, args=(self._ask, Random(f"{self._seed} {number}"))
            )
            for number in range(clients)
        ]
        change = (self._change, Random(self._seed), folders)
        threads.append(threading.Thread(target=self._run_client, args=change))
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()
        if self._failures:
            raise self._failures[0]

    def _run_client(self, work: Any, *arguments: Any) -> None:
        try:
            with httpx2.Client(base_url=self._url, timeout=120) as client:
                work(client, *arguments)
        except BaseException as error:
            self._failures.append(error)
            self._stop.set()

    def _ask(self, client: httpx2.Client, chance: Random) -> None:
        while not self._stop.is_set():
            sentence = f"Where is W{chance.getrandbits(24)}? "
            text = sentence * int(LONGEST ** chance.random())
            body = {
                "model": chance.choice([NAME, *self._loaded]),
                "messages": [{"role": "user", "content": text}],
                "max_tokens": chance.randint(1, ANSWER),
                "logprobs": chance.random() < 0.5,
            }
            answer = client.post("/chat/completions", json=body)
            # An adapter may have left meanwhile.
            if answer.status_code != 404:
                answer.raise_for_status()
                with self._lock:
                    self.calls += 1

    def _change(self, client: httpx2.Client, chance: Random, folders: list[Path]) -> None:
        while not self._stop.wait(chance.expovariate(1 / EVERY)):
            if self._loaded and (len(self._loaded) == MOST or chance.random() < 0.5):
                name = self._loaded.pop(chance.randrange(len(self._loaded)))
                body = {"lora_name": name}
                client.post("/unload_lora_adapter", json=body).raise_for_status()
                continue
            name, folder = f"adapter-{self.loads}", chance.choice(folders)
            body = {"lora_name": name, "lora_path": str(folder)}
            client.post("/load_lora_adapter", json=body).raise_for_status()
            self._loaded.append(name)
            self.loads += 1


def main() -> None:
    """Print one JSON document."""
    options = _parser().parse_args()
    with tempfile.TemporaryDirectory() as place:
        maker = Maker(CHECKPOINT)
        folders = [maker.write(Path(place) / str(n), SPREAD, seed=n) for n in range(MOST)]
        with embedded(CHECKPOINT, options.slots, length=None) as (url, pid):
            traffic, before = Traffic(url, options.seed), _memory(pid)
            began, readings = _processor_seconds(pid), []
            with traffic.run(options.clients, folders):
                until = time.monotonic() + options.seconds
                while time.monotonic() < until:
                    time.sleep(EVERY)
                    readings.append(_memory(pid))
            spent = _processor_seconds(pid) - began
    third = max(1, len(readings) // 3)
    thirds = [statistics.median(readings[n * third : (n + 1) * third]) for n in range(3)]
    document = {
        "calls": traffic.calls,
        "adapters_loaded": traffic.loads,
        "memory_mib": {
            "before": round(before, 1),
            "most": round(max(readings), 1),
            "thirds": [round(value, 1) for value in thirds],
        },
        "cpu_ms_per_call": round(1000 * spent / traffic.calls, 1),
    }
    print(json.dumps(document, indent=2))


def _memory(pid: int) -> float:
    reading = process(pid)
    assert reading is not None, "the engine ended"
    return reading.memory


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--clients", type=int, default=5)
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    return parser


if __name__ == "__main__":
    main()
