"""A program that plays a plan in chunks and stores each chunk before it begins the next.

stdout is JSON Lines: heartbeats, and at the end `{"outcome": "played"}` or `{"outcome": "failed",
"reason": ...}`, with `setting` if a setting is at fault. Exit codes: 0 played, 1 failed, 2
unreadable plan. Guarantee: after a kill, only the unfinished chunk is played again.

    FOLDER/definitions.jsonl   the bodies of the plan's tasks by content (daemon/solver/journal.py)
    FOLDER/rollouts.jsonl      a head with the plan's digest, then one line per chunk: [item, ...]
"""

import json
import os
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from daemon.jobs.runner import JOURNAL
from events.errors import KintsugiError
from events.jobs import Sha256
from events.messages import StrictModel
from events.registry import first_problem

if TYPE_CHECKING:
    from envs.environment import Environment

DONE, FAILED, WRONG_USAGE = 0, 1, 2
_HEARTBEAT_SECONDS: Final = 2.0
_BEGAN: Final = time.monotonic()

Item = TypeVar("Item")
Chunk = TypeVar("Chunk")
PlanModel = TypeVar("PlanModel", bound=StrictModel)


class BadPlan(KintsugiError):
    """The folder's journal belongs to another plan, or is damaged."""


class WrongSetting(KintsugiError):
    """A wrong setting prevents the plan from being played; no player is at fault."""

    def __init__(self, setting: str, reason: str) -> None:
        """Name the setting and give the reason, with the setting's value and the remedy."""
        super().__init__(reason)
        self.setting: Final = setting


class _Head(StrictModel):
    plan: Sha256


class ChunkJournal(Generic[Item]):
    """The file in `folder` that holds the played chunks of one plan."""

    def __init__(self, folder: Path, digest: str, items: TypeAdapter[tuple[Item, ...]]) -> None:
        """Use the plan's `digest`, and `items` to read and write a chunk."""
        self._path, self._digest, self._items = folder / JOURNAL, digest, items

    def read(self) -> list[tuple[Item, ...]]:
        """Return the complete chunks. Raises BadPlan if the file is damaged or of another plan."""
        return self._read()[0]

    def fill(
        self, chunks: Sequence[Chunk], prepare: Callable[[], Callable[[Chunk], Iterable[Item]]]
    ) -> None:
        """Play and store the missing chunks. `prepare` returns the function that plays a chunk, and
        is called only if a chunk is missing. Raises BadPlan, OSError and the player's errors."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        done, end = self._read()
        if len(done) == len(chunks):
            return
        play = prepare()
        with self._path.open("ab") as file:
            file.truncate(end)
            if not end:
                file.write(_Head(plan=self._digest).model_dump_json().encode() + b"\n")
            for chunk in chunks[len(done) :]:
                file.write(self._items.dump_json(tuple(play(chunk))) + b"\n")
                file.flush()
                os.fsync(file.fileno())

    def _read(self) -> tuple[list[tuple[Item, ...]], int]:
        content = self._path.read_bytes() if self._path.exists() else b""
        end = content.rfind(b"\n") + 1
        lines = content[:end].splitlines()
        try:
            if lines and _Head.model_validate_json(lines[0]).plan != self._digest:
                raise BadPlan(f"{self._path} is of another plan; remove its folder")
            return [self._items.validate_json(line) for line in lines[1:]], end
        except ValidationError as error:
            raise BadPlan(
                f"{self._path} is damaged: {first_problem(error)}; remove its folder"
            ) from None


def open_plan_environment(
    environment: str, benchmarks: str | None, definitions: Path
) -> "Environment":
    """Open a plan's environment with the task bodies that the folder `definitions` holds. Raises
    UnknownEnvironment, EnvironmentBroken, OSError."""
    from daemon.solver.journal import read_definitions
    from envs.registry import open_place

    place = None if benchmarks is None else Path(benchmarks)
    opened = open_place(environment, benchmarks=place)
    opened.use_definitions(read_definitions(definitions).get)
    return opened


def run_program(
    program: str,
    description: str | None,
    arguments: Sequence[str] | None,
    model: type[PlanModel],
    play: Callable[[PlanModel, Path], None],
) -> int:
    """Run `PROGRAM PLAN.json --out DIR` (default: the process's arguments); return an exit code."""
    parser = ArgumentParser(prog=f"python -m {program}", description=description)
    parser.add_argument("plan", type=Path, metavar="PLAN.json")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    options = parser.parse_args(arguments)
    Heartbeat().say(phase="starting")
    try:
        plan = model.model_validate_json(options.plan.read_bytes())
        play(plan, options.out)
    except ValidationError as error:
        print(f"{options.plan} is no plan: {first_problem(error)}", file=sys.stderr)
        return WRONG_USAGE
    except (KintsugiError, OSError) as error:
        fault = {"setting": error.setting} if isinstance(error, WrongSetting) else {}
        say(outcome="failed", reason=" ".join(str(error).split()), **fault)
        return FAILED
    say(outcome="played")
    return DONE


class Heartbeat:
    """Writes heartbeats to stdout, which show that the program is alive."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def say(self, **activity: Any) -> None:
        """Write a heartbeat with this activity and the seconds since the program's start."""
        self._last = time.monotonic()
        say(heartbeat={"seconds": round(self._last - _BEGAN, 1), **activity})

    def say_when_due(self, **activity: Any) -> None:
        """Write a heartbeat if the last one is at least `_HEARTBEAT_SECONDS` old."""
        if time.monotonic() - self._last >= _HEARTBEAT_SECONDS:
            self.say(**activity)


def say(**document: Any) -> None:
    """Print a document as one line of JSON on stdout."""
    print(json.dumps(document), flush=True)
