"""Send an embedded engine requests and adapters that no real client would send.

    python -m ops.fuzz.engine [--requests 100000] [--seed 0] [--folder DIR]

Numbers in requests take values at, over and far beyond the limits of their types. Other values
change at any depth of a body. Every fiftieth input is an adapter directory that is damaged or
changed. After each input, an ordinary call must be answered with the same text as the first time.
Prints one line of JSON with the statuses that came back and what was wrong; exit code 1 if anything
was.
"""

import json
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

import httpx2

from ops.adapter_damages import DAMAGES, change_anything
from ops.command_line import run_command
from ops.faults.gateway_upstream_kill import RealEngine
from ops.fuzz.requests import BODIES, Json, change_values, write_request
from ops.fuzz.sockets import send_all
from ops.processes import read_end

_BATCH: Final = 49
_SECONDS: Final = 60.0
_SHOWN: Final = 20
_LENGTH: Final = 192
"""Context length in tokens: little more than a conversation with a tool needs."""

_CHAT: Final[Json] = BODIES[0][1] | {"model": "fuzzed", "max_tokens": 1, "top_k": 40}
_TEXT: Final[Json] = {"prompt": [[1, 2], [3]], "max_tokens": 1, "logprobs": 1, "seed": 3, "n": 1}
_ORDINARY: Final[Json] = {"prompt": "Hello", "max_tokens": 2, "temperature": 0}

_BODIES: Final[tuple[tuple[str, Json], ...]] = (
    ("/v1/chat/completions", _CHAT),
    ("/v1/chat/completions", _CHAT | {"stream": False, "stream_options": None}),
    ("/v1/completions", _TEXT),
    ("/v1/completions", {"prompt": "Hello", "max_tokens": 1, "stop": ["a"], "stream": True}),
    ("/tokenize", {"model": "fuzzed", "prompt": "Hello", "add_special_tokens": False}),
    ("/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "/nowhere"}),
    ("/v1/unload_lora_adapter", {"lora_name": "a", "lora_int_id": 1}),
)

NUMBERS: Final = (
    "temperature", "top_p", "top_k", "min_p", "seed", "n", "best_of", "max_tokens", "logprobs",
    "max_completion_tokens", "min_tokens", "top_logprobs", "frequency_penalty", "presence_penalty",
    "repetition_penalty", "length_penalty", "prompt_logprobs", "truncate_prompt_tokens",
    "lora_int_id", "priority", "stop",
)  # fmt: skip
LISTS: Final = ("prompt", "stop_token_ids", "logprob_token_ids", "stop")
_EDGES: Final = (0, 1, 7, 8, 15, 16, 24, 31, 32, 52, 53, 62, 63, 64, 127, 128, 255, 1023, 1024)
_ODD: Final = (
    "NaN", "Infinity", "-Infinity", "true", "false", "null", '"1"', '""', "[]", "{}", "[1]", "0.0",
    "-0", "-0.0", "1e-5", "1e-20", "1e-30", "1e-38", "1e-45", "1e-300", "5e-324", "1e-400", "1e38",
    "3.5e38", "1e308", "1e309", "1e999", "-1e999", "0.1", "0.999999999999999999", "1.5", "2.0",
    "9" * 401, "-" + "9" * 401, "9" * 5000, "1" + "0" * 308, "0" + ".3" + "3" * 5000, "01", "+1",
    "1_000", "0x10", "1e", ".5",
)  # fmt: skip
_USUAL: Final = ("null", "0", "1", "2", "3", "0.5", "1e-9", "1e-300", "1.0")
_NAMES: Final = (
    '""', '"../x"', '"a/../b"', '"a\\nb"', '"a\\u0000b"', '"\\ud800"', '"fuzzed"', '"/"', '"."',
    '"' + "a" * 70_000 + '"', "null", "5", '["a"]', '"\\u202e"', '"a\\r\\n\\r\\nHTTP/1.1 200 OK"',
)  # fmt: skip
_PATHS: Final = (
    '""', '"."', '"/"', '"/dev"', '"/dev/zero"', '"/proc/self/fd"', '"/proc/self/root"', '"~"',
    '"nowhere"', '"../../../../etc"', '"a\\u0000b"', '"\\ud800"', '"' + "a/" * 20_000 + '"',
    '"' + "a" * 300 + '"', "null", "5", '"http://127.0.0.1/x"', '"someone/adapter"',
)  # fmt: skip


def requests(seed: int, count: int) -> Iterator[bytes]:
    """Yield `count` hostile requests, the same for the same seed."""
    chosen = random.Random(seed)
    change_bodies = partial(change_values, bodies=_BODIES)
    ways = (change_numbers, change_numbers, change_numbers, change_command, change_bodies)
    for _ in range(count):
        yield chosen.choice(ways)(chosen)


def change_numbers(chosen: random.Random) -> bytes:
    """Return a request in which a few numbers are replaced by extreme ones."""
    path, body = chosen.choice(_BODIES[:5])
    names = chosen.sample(NUMBERS, chosen.choice((1, 1, 1, 2)))
    texts = {name: _choose_number(chosen) for name in names}
    if chosen.random() < 0.2:
        ids = ", ".join(_choose_number(chosen) for _ in range(chosen.randint(0, 3)))
        texts[chosen.choice(LISTS)] = chosen.choice((f"[{ids}]", f"[[{ids}]]"))
    if chosen.random() < 0.1:
        key, value = _choose_number(chosen), _choose_number(chosen)
        texts["logit_bias"] = "{" + json.dumps(key) + ": " + value + "}"
    return write_request(chosen, "POST", path, _write_body(body, texts))


def change_command(chosen: random.Random) -> bytes:
    """Return a command to load or unload an adapter, with its name or path changed."""
    path, body = chosen.choice(_BODIES[5:])
    texts = {chosen.choice(("lora_name", "lora_name", "x")): chosen.choice(_NAMES)}
    if "lora_path" in body and chosen.random() < 0.7:
        texts["lora_path"] = chosen.choice(_PATHS)
    if "lora_int_id" in body:
        texts["lora_int_id"] = _choose_number(chosen)
    headers = [("content-type", "application/json")]
    return write_request(chosen, "POST", path, _write_body(body, texts), headers)


def _choose_number(chosen: random.Random) -> str:
    kind = chosen.random()
    if kind < 0.6:
        return chosen.choice(_ODD if kind < 0.3 else _USUAL)
    power: int = 2 ** chosen.choice(_EDGES)
    return str(chosen.choice((1, -1)) * (power + chosen.choice((-1, 0, 1))))


def _write_body(body: Json, texts: dict[str, str]) -> bytes:
    members = {name: json.dumps(value) for name, value in body.items()} | texts
    inside = ", ".join(f"{json.dumps(name)}: {text}" for name, text in members.items())
    return f"{{{inside}}}".encode("utf-8", "surrogatepass")


@dataclass(slots=True)
class Outcome:
    """Counts of the engine's answers, and the errors that were found."""

    requests: int = 0
    callers: int = 0
    adapters: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def to_document(self) -> dict[str, Any]:
        """Return the outcome as JSON values."""
        return {
            "requests": self.requests,
            "callers": self.callers,
            "adapters": dict(sorted(self.adapters.items())),
            "statuses": dict(sorted(self.statuses.items())),
            "wrong": self.wrong[:_SHOWN],
            "wrong_count": len(self.wrong),
        }


class Fuzzer:
    """Sends hostile inputs to an engine and checks it after each."""

    def __init__(self, engine: RealEngine, adapter: Path, folder: Path, seed: int) -> None:
        """`adapter` fits the engine's base. Damaged copies of it are made in `folder`."""
        self._engine = engine
        self._adapter = adapter
        self._folder = folder
        self._chance = random.Random(seed)
        self._client = httpx2.Client(
            base_url=engine.url.removesuffix("/v1"), timeout=_SECONDS, trust_env=False
        )
        self._usual = self._ask("fuzzed").json()["choices"][0]["text"]
        self.outcome = Outcome()

    def try_batch(self, batch: tuple[bytes, ...]) -> None:
        """Send requests, then an adapter; after each, check that an ordinary call is answered."""
        replies = send_all(self._engine.port, batch, self._check_next_caller)
        self.outcome.requests += len(batch)
        self.outcome.statuses += replies.statuses
        self.outcome.wrong += replies.wrong
        try:
            self._try_adapter()
            self._check_models()
        except (httpx2.HTTPError, ValueError, KeyError) as error:
            self.outcome.wrong.append(f"no answer after a batch: {type(error).__name__}: {error}")
        if why := self._check_next_caller():
            self.outcome.wrong.append(f"{why}: after an adapter")

    def _check_next_caller(self) -> str | None:
        try:
            answer = self._ask("fuzzed")
            text = answer.json()["choices"][0]["text"] if answer.status_code == 200 else None
        except (httpx2.HTTPError, ValueError, KeyError) as error:
            return f"the next caller got none: {type(error).__name__}: {error}"
        self.outcome.callers += 1
        if text != self._usual:
            return f"the next caller got {answer.status_code}: {answer.text[:500]}"
        return None

    def _check_models(self) -> None:
        names = [card["id"] for card in self._client.get("/v1/models").json()["data"]]
        if names != ["fuzzed"]:
            self.outcome.wrong.append(f"the engine serves {names}")

    def _try_adapter(self) -> None:
        folder = self._folder / "changed"
        shutil.copytree(self._adapter, folder)
        name = self._chance.choice((None, *DAMAGES))
        if name is None or self._chance.random() < 0.5:
            name = f"changed with seed {(seed := self._chance.randrange(2**32))}"
            change_anything(folder, random.Random(seed))
        else:
            DAMAGES[name](folder)
        command = {"lora_name": "changed", "lora_path": str(folder)}
        answer = self._client.post("/v1/load_lora_adapter", json=command)
        if answer.status_code == 200 and name in DAMAGES:
            self.outcome.wrong.append(f"the engine serves {name}")
        if answer.status_code == 200:
            self.outcome.adapters["served"] += 1
            if (asked := self._ask("changed")).status_code != 200:
                self._complain(f"an adapter, {name}", asked)
            self._client.post("/v1/unload_lora_adapter", json={"lora_name": "changed"})
        elif 400 <= answer.status_code < 500 and answer.json()["error"]["message"]:
            self.outcome.adapters["refused"] += 1
        else:
            self._complain(f"the load of {name}", answer)
        shutil.rmtree(folder)

    def _ask(self, model: str) -> httpx2.Response:
        return self._client.post("/v1/completions", json=_ORDINARY | {"model": model})

    def _complain(self, who: str, answer: httpx2.Response) -> None:
        self.outcome.wrong.append(f"{who} got {answer.status_code}: {answer.text[:500]}")

    def check_end(self) -> None:
        """Check that the engine runs, has logged no traceback, and stops."""
        if not self._engine.runs():
            self.outcome.wrong.append(f"the engine ended: {read_end(self._engine.output)}")
            return
        if (status := self._engine.stop()) != 0:
            self.outcome.wrong.append(f"the engine ended with {status}")
        output = self._engine.output.read_text(errors="replace")
        if "Traceback" in output:
            at = output.index("Traceback")
            self.outcome.wrong.append(f"the engine said {output[max(0, at - 500) : at + 3000]}")


@contextmanager
def stage(folder: Path, seed: int) -> Iterator[Fuzzer]:
    """Start an engine over the reference policy, and make an adapter of it."""
    # torch takes seconds to import; a wrong command line should not wait for it.
    from daemon.engine.reference.weights import CHECKPOINT
    from ops.random_adapters import SPREAD, Maker, bare

    folder.mkdir(parents=True, exist_ok=True)
    whole = Maker(CHECKPOINT).write(folder / "whole", SPREAD)
    engine = RealEngine(folder / "engine.log", "fuzzed", "--length", str(_LENGTH))
    try:
        engine.start()
        yield Fuzzer(engine, bare(whole, folder / "bare"), folder, seed)
    finally:
        engine.kill()


def run(count: int, seed: int, folder: Path) -> dict[str, Any]:
    """Return the answers and the errors. Raise OSError or RuntimeError."""
    with stage(folder, seed) as fuzzer:
        made = requests(seed, count)
        while batch := tuple(islice(made, _BATCH)):
            fuzzer.try_batch(batch)
        fuzzer.check_end()
    return fuzzer.outcome.to_document()


if __name__ == "__main__":
    run_command(
        __doc__,
        lambda requests, seed, folder: run(requests, seed, folder),
        requests=10_000,
        seed=0,
    )
