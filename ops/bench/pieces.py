"""A long count in pieces: each is a line of a checkpoint file, so it may be stopped and resumed.

    pieces = Pieces(checkpoint)
    found = pieces.of("publishes", 1_000, 50, lambda count, seed: ...)

A piece is given how much it is to do, and a seed that is the count done before it. Its result is a
JSON document; a subtotal goes to stderr after each. With no file, everything is done anew.

Guarantee: a piece that was done is not done again, and one that was cut short leaves nothing.
Not covered: pieces of several machines in one file; ratios may be put together, times may not.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Json = dict[str, Any]
Work = Callable[[int, int], Json]
"""(how much, seed) -> what came of it."""


class Pieces:
    """The pieces of one benchmark."""

    def __init__(self, checkpoint: Path | None = None) -> None:
        self._file = checkpoint
        self._done = _read(checkpoint)

    def of(self, name: str, wanted: int, piece: int, work: Work) -> list[Json]:
        """What came of all pieces of `name`, the missing ones done now."""
        results = [record["found"] for record in self._done if record["name"] == name]
        done = sum(record["count"] for record in self._done if record["name"] == name)
        while done < wanted:
            count = min(piece, wanted - done)
            result = work(count, done)
            self._keep({"name": name, "count": count, "found": result})
            results.append(result)
            done += count
            print(f"{name}: {done:,} of {wanted:,} {_short(result)}", file=sys.stderr, flush=True)
        return results

    def _keep(self, piece: Json) -> None:
        self._done.append(piece)
        if self._file is None:
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a") as file:
            file.write(json.dumps(piece) + "\n")


def _read(checkpoint: Path | None) -> list[Json]:
    """A last line that a kill cut short is none."""
    if checkpoint is None or not checkpoint.exists():
        return []
    whole = checkpoint.read_text().splitlines(keepends=True)
    return [json.loads(line) for line in whole if line.endswith("\n")]


def _short(result: Json) -> str:
    """Without what is long."""
    return json.dumps({key: value for key, value in result.items() if not isinstance(value, list)})
