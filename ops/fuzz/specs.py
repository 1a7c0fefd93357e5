"""Give the learner job specs that no real daemon would write.

    python -m ops.fuzz.specs [--specs 100000] [--jobs 200] [--seed 0] [--folder DIR]

`--specs` mutants of valid specs go through the reader and all checks in this process. Each must be
accepted, or refused with one sentence. `--jobs` accepted mutants run as jobs of one step on the
reference policy, each in its own process. The last line that a job prints must be its outcome. A
job that still runs after a second update, or after a minute, is told to stop. Prints one line of
JSON with what became of them and what was wrong; exit code 1 if anything was.
"""

import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from itertools import islice
from pathlib import Path
from typing import Any, Final

from daemon.config.job_ranges import RANGES
from daemon.config.presets import PRESETS
from daemon.jobs.attempts import last_lines
from daemon.jobs.runner import result_of
from daemon.solver.kinds import KINDS, check_supported
from daemon.solver.spec import (
    BadSpec,
    NothingPlayable,
    NotSupported,
    digest,
    drop_tasks,
    list_tasks,
    parse_spec,
)
from events.jobs import JobSpec
from ops.command_line import run_command
from ops.faults.job_scene import PLAIN, POOL, name_tasks, run_job

Json = dict[str, Any]
Location = tuple[str | int, ...]
"""Keys and indices that lead to a value of a document."""

SLOW_SECONDS: Final = 30.0
"""Limit on the processor time of a spec's checks; the slowest spec takes a tenth."""
_HUGE: Final = "<1e999>"
"""Placeholder for the number 1e999, which Python would write as Infinity."""


_WARM: Final[Json] = {
    "warm_start": {"mode": "always", "sft": {"optimizer": {"lr": 1e-3}, "batch_tokens": 512}},
    "sampler": PLAIN["sampler"] | {"rollouts": 4},
}
_OPTIONS: Final[list[Json]] = [
    {"skill": "cancel", "label": "A", "token": 40, "description": "cancels orders"},
    {"label": "B", "token": 41, "description": "none of these"},
]
_ROUTER_POOLS: Final[list[Json]] = [
    {"name": "cancel", "skill": "cancel", "tasks": name_tasks("cancel", 1, 6)},
    {"name": "others", "tasks": name_tasks("question", 1, 6)},
]
_ROUTER: Final[Json] = {
    "teaches": "router",
    "pools": _ROUTER_POOLS,
    "router": {"options": _OPTIONS},
    "sampler": {"groups": 1, "size": 4, "rollouts": 4},
}

TRAINED: Final[tuple[Json, ...]] = (
    PLAIN,
    PLAIN | _WARM,
    PLAIN | _WARM | {
        "teaches": "user",
        "grpo": False,
        "pools": [POOL | {"tasks": name_tasks("cancel", 1, 2)}],
    },
    PLAIN | _ROUTER,
    PLAIN | _ROUTER | {
        "router": {"form": "head", "options": _OPTIONS},
        "lora": {"rank": 2, "alpha": 2, "targets": ["lm_head"]},
    },
)  # fmt: skip

_USER: Final[Json] = {"url": "http://127.0.0.1:9/v1", "model": "small", "candidates": 2}
_ELSEWHERE: Final[Json] = {"source": {"kind": "endpoint", "url": "http://x/v1", "model": "m"}}
_ADAPTER: Final[Json] = {"adapter": "ada", "folder": "/ada", "sha256": "0" * 64}
_PATTERN: Final[Json] = {
    "pattern": "a|b", "recurrence": 1, "streak": 1, "absent": 0, "pass_rate": 0.5, "attempts": 4,
    "passes": 2, "learnability": 1, "status": "active", "anchors": {"write": 1.0},
}  # fmt: skip
_ROUNDS: Final[Json] = {
    "count": 2, "cycle": "c", "alias": "agent", "history": 1, "tasks": 2, "explore": 0.5,
    "replay": 0.1, "patterns": [_PATTERN], "known": ["shop/cancel/70"],
}  # fmt: skip

READ: Final[tuple[Json, ...]] = (
    *TRAINED,
    *(
        PLAIN | {"algorithm": preset.algorithm.model_dump(mode="json")}
        for preset in PRESETS.values()
    ),
    PLAIN | {"rounds": _ROUNDS, "sampler": PLAIN["sampler"] | {"rollouts": 8}},
    PLAIN | {"pools": [POOL | {"user": _USER}], "sampler": _ELSEWHERE},
    PLAIN | {"pools": [POOL | {"user": _ADAPTER}]},
    PLAIN | {"sampler": _ELSEWHERE},
    PLAIN | {"sampler": {"source": {"kind": "vllm", "arguments": ["--seed=1"]}}},
)

_EDGES: Final = sorted({edge for ranges in RANGES.values() for r in ranges.values() for edge in r})
_NUMBERS: Final[tuple[Any, ...]] = (
    0, -0.0, -1, 1, 2, 0.5, 1.5, 100, 1e-320, 1e-300, 1e-12, 1e30, 1e300, 1.7976931348623157e308,
    float("nan"), float("inf"), -float("inf"), _HUGE, 2**31 - 1, 2**31, 2**53, 2**63 - 1, 2**63,
    -(2**63), -(2**63) - 1, 2**64, 10**400, *_EDGES,
)  # fmt: skip
_TEXTS: Final[tuple[str, ...]] = (
    "", " ", "\0", "a\0b", "\ud800", "x" * 5_000, "a\nb", "\u2028", "é" * 200, "../../etc", "/",
    "cpu", "cuda:99999999999999999999", "cuda:0", "shop", "NaN", "wandb:x", "trackio:\0", "always",
)  # fmt: skip
_OTHERS: Final[tuple[Any, ...]] = (None, True, False, "1", [], {}, [[]], {"a": 1}, [0], ["x"])


def build_specs(seed: int, bases: tuple[Json, ...]) -> Iterator[bytes]:
    """Yield mutants of the specs `bases` for ever, the same for the same seed."""
    chance = random.Random(f"specs {seed}")
    whole = [json.loads(JobSpec.model_validate(base).model_dump_json()) for base in bases]
    while True:
        place = chance.randrange(len(bases))
        document = deepcopy(chance.choice((bases[place], whole[place])))
        for _ in range(chance.choice((1, 1, 1, 2, 3))):
            _mutate(document, chance)
        content = _write(document)
        yield _damage(content, chance) if chance.random() < 0.05 else content


def _mutate(document: Json, chance: random.Random) -> None:
    *path, key = chance.choice(list(_list_paths(document)))
    holder: Any = document
    for step in path:
        holder = holder[step]
    kind, value = chance.random(), holder[key]
    if kind < 0.05:
        del holder[key]
    elif kind < 0.08 and isinstance(holder, dict):
        holder["unknown"] = value
    elif kind < 0.11:
        holder[key] = _nest(value, chance.choice((1, 50, 99, 100, 101, 250)))
    elif kind < 0.15 and isinstance(value, list):
        holder[key] = value * chance.choice((2, 200, 2_000))
    else:
        holder[key] = _replace(value, chance)


def _list_paths(value: Any, before: Location = ()) -> Iterator[Location]:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        yield (*before, key)
        if isinstance(item, dict | list):
            yield from islice(_list_paths(item, (*before, key)), 400)


def _replace(value: Any, chance: random.Random) -> Any:
    if chance.random() < 0.15:
        return chance.choice(_OTHERS)
    if isinstance(value, str) and chance.random() < 0.7:
        return chance.choice(_TEXTS)
    if isinstance(value, int | float) and not isinstance(value, bool) and chance.random() < 0.3:
        return value * chance.choice((2, 10, 1000, -1))
    return chance.choice(_NUMBERS)


def _nest(value: Any, levels: int) -> Any:
    for _ in range(levels):
        value = [value]
    return value


def _write(document: Json) -> bytes:
    text = json.dumps(document)
    return text.replace(f'"{_HUGE}"', "1e999").encode()


def _damage(content: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(content))
    more = chance.choice(
        (b"", b"\xff", b"[" * 100_000, b'{"a":' * 5_000, b"9" * 5_000, b"\0", b",")
    )
    return content[:place] + more + content[place + chance.randrange(2) :]


def check_spec(content: bytes) -> str:
    """Run all checks before a job; return `accepted` or the kind of the refusal."""
    try:
        spec = parse_spec(content)
        check_supported(spec)
    except (BadSpec, NotSupported) as refusal:
        return type(refusal).__name__
    if JobSpec.model_validate_json(spec.model_dump_json()) != spec:
        raise ValueError("it is stored otherwise than it was read")
    digest(spec)
    with suppress(NothingPlayable):
        drop_tasks(spec, list_tasks(spec)[:1])
    return "accepted"


def check_specs(seed: int, count: int) -> tuple[Counter[str], list[str], float]:
    """Check `count` specs; return counts by result, errors, and the slowest one's seconds."""
    results: Counter[str] = Counter()
    wrong: list[str] = []
    slowest = 0.0
    for content in islice(build_specs(seed, READ), count):
        began = time.process_time()
        try:
            results[check_spec(content)] += 1
        # Any exception is a finding; continue with the next spec.
        except Exception as error:
            wrong.append(f"{type(error).__name__}: {error!s:.200}: {content[:2_000]!r}")
        seconds = time.process_time() - began
        slowest = max(slowest, seconds)
        if seconds > SLOW_SECONDS:
            wrong.append(f"it took {seconds:.1f} s: {content[:2_000]!r}")
    return results, wrong, slowest


def run_jobs(seed: int, count: int, folder: Path) -> tuple[Counter[str], list[str]]:
    """Run `count` jobs; return their outcomes and errors."""
    # Import once here, because each job is a fork of this process.
    for kind in KINDS.values():
        kind.load_run()
    results: Counter[str] = Counter()
    wrong: list[str] = []
    accepted = (c for c in build_specs(seed, TRAINED) if _is_accepted(c))
    for number, content in enumerate(islice(accepted, count)):
        place = folder / str(number)
        place.mkdir(parents=True)
        (place / "job.json").write_bytes(content)
        code = run_job(place)
        result = result_of(last_lines(place / "stdout"))
        if result is None:
            wrong.append(f"job {number} ended with {code} and no outcome: {content.decode()}")
            continue
        results[result.outcome] += 1
        if "has the traceback" in (result.reason or ""):
            results["failed with a traceback"] += 1
    return results, wrong


def _is_accepted(content: bytes) -> bool:
    try:
        return check_spec(content) == "accepted"
    except Exception:  # `check_specs` reports it
        return False


def run(specs: int, jobs: int, seed: int, folder: Path) -> dict[str, Any]:
    """Check specs and run jobs; return the results."""
    results, wrong, slowest = check_specs(seed, specs)
    outcomes, failures = run_jobs(seed, jobs, folder)
    return {
        "specs": dict(sorted(results.items())),
        "slowest": round(slowest, 2),
        "jobs": dict(sorted(outcomes.items())),
        "wrong": wrong + failures,
    }


if __name__ == "__main__":
    run_command(__doc__, run, specs=2_000, jobs=0, seed=0)
