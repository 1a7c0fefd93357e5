"""Rewards of a file of completions (envs/reflection/reward.py), without torch."""

import json
import reprlib
from collections.abc import Iterator
from pathlib import Path

from envs.reflection.parse import Parts, parse
from envs.reflection.reward import compute_reward
from events.algorithm import RepairForm
from events.errors import KintsugiError


class BadLine(KintsugiError):
    """A line of the file is no completion with its gold."""


def compute_rewards(path: Path, form: RepairForm) -> list[float]:
    """Return the reward of each line {"completion": str, "gold": str} of a file of JSON Lines.

    Other fields are ignored and so are empty lines. Raises BadLine, which names the line, and
    OSError.
    """
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
