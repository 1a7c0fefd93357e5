"""`python -m daemon.solver reward`: compute the rewards of a file of completions, without torch."""

import json
import reprlib
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import get_args

from daemon.solver.spec import BadInput
from envs.reflection.parse import Parts, parse
from envs.reflection.reward import compute_reward
from events.algorithm import RepairForm


class BadLine(BadInput):
    """A line of the file is no completion with its gold text."""


def print_rewards(arguments: Sequence[str]) -> int:
    """Print the rewards of a file of completions; return 0. Raise BadLine, OSError."""
    options = _parser().parse_args(arguments)
    rewards = compute_rewards(options.file, options.form)
    print(json.dumps({"n": len(rewards), "rewards": rewards, "form": options.form}))
    return 0


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="python -m daemon.solver reward",
        description="Compute the rewards of repairs, as training gives them.",
    )
    parser.add_argument(
        "file", type=Path, help='JSON Lines, {"completion": "...", "gold": "..."} each'
    )
    parser.add_argument(
        "--form",
        choices=get_args(RepairForm),
        default="paper",
        help="of Structured Reflection's paper (default), or of its released program",
    )
    return parser


def compute_rewards(path: Path, form: RepairForm) -> list[float]:
    """Return the reward of each line {"completion": str, "gold": str} of a JSON Lines file. Empty
    lines and other fields are ignored. Raise OSError, and BadLine, which names the line."""
    rewards: list[float] = []
    last: tuple[str, Parts] | None = None
    for completion, gold in _read_pairs(path):
        if last is None or last[0] != gold:
            last = gold, parse(gold)
        rewards.append(compute_reward(parse(completion), last[1], form))
    return rewards


def _read_pairs(path: Path) -> Iterator[tuple[str, str]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield _read_pair(line, f"{path}, line {number}")


def _read_pair(line: bytes, where: str) -> tuple[str, str]:
    remedy = 'write {"completion": "...", "gold": "..."} on each line'
    try:
        record = json.loads(line.decode())
    except (ValueError, RecursionError) as error:
        raise BadLine(f"{where} is no JSON ({error}); {remedy}") from None
    if not isinstance(record, dict):
        raise BadLine(f"{where} is {reprlib.repr(record)} and no JSON object; {remedy}")
    for field in ("completion", "gold"):
        if field not in record:
            raise BadLine(f"{where} has no field {field!r}; {remedy}")
        if not isinstance(record[field], str):
            raise BadLine(
                f"{where}: {field!r} is {reprlib.repr(record[field])} and no text; {remedy}"
            )
    return record["completion"], record["gold"]
