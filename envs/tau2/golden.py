"""Replay of recorded tool calls: output, error flag and state hash, each compared.

A row of a JSON Lines file is one sequence of calls on a fresh database of the real tasks:

    {"calls": [...], "initial_db_hash", "gold_db_hash"}     hash before the first and after the last
    {"calls": [{..., "db_hash_after"}]}                     hash after each call; its beginning is
                                                            enough
    call: {"name", "arguments", "error", "output"}, a long output as "output_sha256",
          "output_len" and "output_head"

If the user acts too (telecom), a call may have "requestor": "user". The user's side then has hashes
of its own ("initial_user_db_hash", "gold_user_db_hash", "user_db_hash_after"). A row with a
"task_id" begins in that task's state. The task is a real one or, with an id by content
(ENVIRONMENT/=SHA256, or =SHA256), one of any environment.

Only the fields that a row has are compared; both kinds may be mixed. A malformed row is a mismatch
by itself. The version in links of pydantic's errors is ignored, because it depends on the
installation.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, get_args

from envs.database import Database
from envs.environment import Environment, UnknownTask
from envs.task import is_content_id
from envs.tau2.environment import Tau2Environment
from envs.tools import ToolAccess, ToolResult
from events.messages import Requestor

_CALL: Final = "an object with name and arguments; a requestor is assistant or user"
_LINK: Final = re.compile(r"https://errors\.pydantic\.dev/[0-9.]+/")


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A value that differs from the recording."""

    row: int
    """Number of the line in the file, from 0."""
    call: int | None
    """Position of the call in the row, from 0; None for the row as a whole."""
    what: str
    expected: Any
    actual: Any


@dataclass(slots=True)
class ReplayReport:
    """Counts and mismatches of replaying a file."""

    rows: int = 0
    calls: int = 0
    equal: int = 0
    """Number of calls without any mismatch."""
    mismatches: list[Mismatch] = field(default_factory=list)


class _InvalidRecord(Exception):
    """A row or a call has a wrong form."""


def replay(environment: Environment, lines: Iterable[str]) -> ReplayReport:
    """Replay every row. Raise NoBenchmark or InvalidBenchmark if a row needs the real tasks."""
    report = ReplayReport()
    for number, line in enumerate(lines):
        if line.strip():
            report.rows += 1
            _replay_row(environment, number, line, report)
    return report


def _open_row(environment: Environment, row: Mapping[str, Any]) -> tuple[Database, ToolAccess]:
    """Return the state in which a row begins, and the tools that act on it. Raise _InvalidRecord
    for an unknown task, and for a row without a task in an environment without real tasks."""
    name = str(row.get("task_id"))
    for task_id in (name, f"{environment.name}/{name}"):
        if is_content_id(task_id):
            try:
                known = environment.task(task_id)
            except UnknownTask as error:
                raise _InvalidRecord(str(error)) from error
            database = environment.reset(known)
            return database, environment.open_tools(known, database)
    if not isinstance(environment, Tau2Environment):
        raise _InvalidRecord(f"{environment.name} has no real tasks, and the row names no other")
    task = environment.benchmark.tasks.get(f"{environment.name}/{row.get('task_id')}")
    if task is not None:
        database = environment.reset(task)
        return database, environment.open_tools(task, database)
    database = environment.benchmark.database.fork()
    user = environment.user_toolset
    tools = ToolAccess(environment.toolset(database), None if user is None else user(database))
    return database, tools


def _replay_row(environment: Environment, number: int, line: str, report: ReplayReport) -> None:
    try:
        row = _row(line)
        database, tools = _open_row(environment, row)
    except _InvalidRecord as error:
        report.mismatches.append(Mismatch(number, None, "row", "an object with calls", str(error)))
        return
    names = tuple(environment.digests(database))

    def check(place: int | None, record: Mapping[str, Any], form: str) -> list[Mismatch]:
        """Compare the hashes that a record has."""
        expected = {form.format(name): name for name in names if form.format(name) in record}
        digests = environment.digests(database) if expected else {}
        return [
            mismatch
            for what, name in expected.items()
            for mismatch in _hash(number, place, what, record[what], digests[name])
        ]

    report.mismatches += check(None, row, "initial_{}")
    for place, call in enumerate(row["calls"]):
        report.calls += 1
        try:
            name, arguments, requestor = _call(call)
        except _InvalidRecord as error:
            report.mismatches.append(Mismatch(number, place, "call", _CALL, str(error)))
            continue
        result = tools.call(name, arguments, requestor)
        differing = [
            *_compare_call(number, place, call, result),
            *check(place, call, "{}_after"),
        ]
        report.equal += not differing
        report.mismatches += differing
    report.mismatches += check(None, row, "gold_{}")


def _row(line: str) -> Mapping[str, Any]:
    try:
        row = json.loads(line, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise _InvalidRecord(f"no JSON: {error}") from error
    if not isinstance(row, dict) or not isinstance(row.get("calls"), list):
        raise _InvalidRecord(line.strip()[:200])
    return row


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _call(call: Any) -> tuple[str, Mapping[str, Any], Requestor]:
    if isinstance(call, dict):
        name, arguments = call.get("name"), call.get("arguments")
        requestor = call.get("requestor", "assistant")
        if (
            isinstance(name, str)
            and isinstance(arguments, dict)
            and requestor in get_args(Requestor)
        ):
            return name, arguments, requestor
    raise _InvalidRecord(repr(call)[:200])


def _compare_call(
    row: int, place: int, call: Mapping[str, Any], result: ToolResult
) -> Iterator[Mismatch]:
    is_now: dict[str, Any] = {
        "error": result.error,
        "output": result.content,
        "output_sha256": hashlib.sha256(result.content.encode()).hexdigest(),
        "output_len": len(result.content),
    }
    if isinstance(call.get("output_head"), str):
        is_now["output_head"] = result.content[: len(call["output_head"])]
    compared = [what for what in is_now if what in call]
    if not {"output", "output_sha256"} & set(compared) or "error" not in compared:
        yield Mismatch(row, place, "call", "an output and an error flag", sorted(call))
    for what in compared:
        if _normalize(call[what]) != _normalize(is_now[what]):
            yield Mismatch(row, place, what, call[what], is_now[what])


def _hash(row: int, place: int | None, what: str, expected: Any, digest: str) -> Iterator[Mismatch]:
    if not isinstance(expected, str) or not expected or not digest.startswith(expected):
        yield Mismatch(row, place, what, expected, digest)


def _normalize(value: Any) -> Any:
    return _LINK.sub("https://errors.pydantic.dev/", value) if isinstance(value, str) else value
