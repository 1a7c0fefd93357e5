"""The real tasks of tau2-bench, from the operator's folder.

    $KINTSUGI_BENCHMARKS/tau2/<domain>/db.json            the state in which every task begins
                                      /tasks.json         the tasks
                                      /split_tasks.json   split -> task ids
                                      /policy.md          the system prompt
                                      /tools.json         {"assistant": [OpenAI schemas], ...}

Guarantee: the tables are canonical, so their digest is the original's database hash. A missing or
malformed folder or file raises `NoBenchmark` or `InvalidBenchmark` with its path. Telecom has other
files (envs/telecom/benchmark.py). Not covered: tasks with `initialization_data` or
`message_history`, which no domain here has.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from envs.database import Database, Tables
from envs.environment import UnknownTask
from envs.task import Assertion, Criteria, Scenario, StateCall, TaskDefinition
from events.errors import KintsugiError
from events.messages import Action

VARIABLE: Final = "KINTSUGI_BENCHMARKS"
"""The environment variable that names the operator's folder."""

BASE: Final = "base"
"""The split that holds every task."""

NO_CHANGE: Final = "benchmark_no_change"
ONE_CHANGE: Final = "benchmark_one_change"
SEVERAL_CHANGES: Final = "benchmark_several_changes"
"""Capabilities of real tasks, by the number of writes in their gold actions. A passive agent gains
in the first and loses in the others, so reports separate them."""


class NoBenchmark(UnknownTask):
    """The folder or a file of the benchmark is missing, so its tasks are unknown."""


class InvalidBenchmark(KintsugiError):
    """A file of the benchmark has a wrong form or content."""


@dataclass(frozen=True)
class Benchmark:
    """The real tasks of one domain, with their state, policy and tools."""

    database: Database
    """The pristine state. Fork it before changing it."""
    tasks: Mapping[str, TaskDefinition]
    """Task id -> task, in the order of the file."""
    tickets: Mapping[str, str]
    """Task id -> the written request for an agent that works alone."""
    splits: Mapping[str, Sequence[str]]
    """Split -> ids of its tasks."""
    policy: str
    schemas: Sequence[Mapping[str, Any]]
    user_schemas: Sequence[Mapping[str, Any]]
    """Schemas of the user's tools, if the user has any."""


@dataclass(frozen=True)
class DomainFiles:
    """The files in a domain's folder, and the functions that read them."""

    domain: str
    writes: frozenset[str]
    """Tools of either party that change the state."""
    read_tables: Callable[[Path], Tables]
    """Reads the state from a folder, with every field and type of the original's models. For
    another shape it raises KeyError, TypeError, ValueError or AttributeError."""
    read_policy: Callable[[Path], str]
    state: str = "db.json"
    """Name of the state's file, for error texts."""
    tasks: tuple[str, ...] = ("tasks.json",)
    """Names of the files with tasks. All but the first may be absent."""
    optional_splits: frozenset[str] = frozenset()
    """Splits that are left out if the files lack some of their tasks."""
    find_capability: Callable[[str], str | None] = lambda number: None
    """Returns the capability for a task's id in the file, or None: the number of writes decides."""
    has_setup: bool = False
    """Whether a task may have calls that set up its own first state."""


def folder(benchmarks: Path, domain: str) -> Path:
    """Return the folder of a domain's files."""
    return benchmarks / "tau2" / domain


def load(benchmarks: Path | None, files: DomainFiles) -> Benchmark:
    """Read a domain's real tasks. Raise NoBenchmark or InvalidBenchmark."""
    domain = files.domain
    place = _find_folder(benchmarks, domain)
    records = _read_records(place, files)
    splits = _read_splits(place, files, records)
    tasks = _read_tasks(records, splits, files)
    for split, ids in splits.items():
        unknown = [task_id for task_id in ids if task_id not in tasks]
        if unknown:
            raise InvalidBenchmark(
                f"{place}: split {split} names {unknown[0]}, no task has that id"
            )
    database, policy = _read_database(place, files), files.read_policy(place)
    tools = read_json(place / "tools.json")
    return Benchmark(
        database=database,
        tasks=tasks,
        tickets=_read_tickets(records, domain),
        splits=splits,
        policy=policy,
        schemas=_part(tools, "assistant", place / "tools.json"),
        user_schemas=_part(tools, "user", place / "tools.json") or (),
    )


def _find_folder(benchmarks: Path | None, domain: str) -> Path:
    if benchmarks is None:
        raise NoBenchmark(
            f"no folder of real {domain} tasks is named; set {VARIABLE} to the folder that holds "
            f"tau2/{domain}"
        )
    place = folder(benchmarks, domain)
    if not place.is_dir():
        raise NoBenchmark(
            f"{place} is no folder; put tau2-bench's {domain} data there or let {VARIABLE} name "
            f"the folder that holds tau2/{domain}"
        )
    return place


def _read_database(place: Path, files: DomainFiles) -> Database:
    try:
        return Database(files.read_tables(place))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        path = place / files.state
        raise InvalidBenchmark(f"{path} is no such database: {error!r}") from error


_Records = Sequence[tuple[str, Mapping[str, Any]]]
"""For each task, a description of its place in the files, and its record."""


def _read_records(place: Path, files: DomainFiles) -> _Records:
    paths = [place / name for name in files.tasks]
    there = [path for path in paths if path is paths[0] or path.is_file()]
    return [
        (f"{path}, task at {position}", raw)
        for path in there
        for position, raw in enumerate(read_json(path))
    ]


def _read_splits(place: Path, files: DomainFiles, records: _Records) -> dict[str, list[str]]:
    path = place / "split_tasks.json"
    splits = read_json(path)
    if not isinstance(splits, dict) or BASE not in splits:
        raise InvalidBenchmark(f"{path} has no split {BASE!r}")
    known = {str(raw.get("id")) for _, raw in records if isinstance(raw, dict)}
    return {
        str(split): [f"{files.domain}/{number}" for number in ids]
        for split, ids in splits.items()
        if split not in files.optional_splits or known.issuperset(map(str, ids))
    }


def _read_tasks(
    records: _Records, splits: Mapping[str, Sequence[str]], files: DomainFiles
) -> dict[str, TaskDefinition]:
    narrowest: dict[str, str] = {}
    for split in sorted(splits, key=lambda name: -len(splits[name])):
        narrowest |= dict.fromkeys(splits[split], split)
    tasks: dict[str, TaskDefinition] = {}
    for where, raw in records:
        try:
            task_id = f"{files.domain}/{raw['id']}"
            if task_id in narrowest:
                tasks[task_id] = task_definition(raw, files, narrowest[task_id])
        except (KeyError, TypeError, ValidationError, InvalidBenchmark) as error:
            raise InvalidBenchmark(f"{where}: {error!r}") from error
    return tasks


def _read_tickets(records: _Records, domain: str) -> dict[str, str]:
    return {f"{domain}/{raw['id']}": raw["ticket"] for _, raw in records if raw.get("ticket")}


def task_definition(raw: Mapping[str, Any], files: DomainFiles, split: str) -> TaskDefinition:
    """Convert a record of tasks or results to a task. Raise KeyError, TypeError or ValidationError
    for another shape, and InvalidBenchmark for a setup that the domain does not support."""
    criteria = _criteria(raw.get("evaluation_criteria") or {})
    return TaskDefinition(
        id=f"{files.domain}/{raw['id']}",
        environment=files.domain,
        capability=files.find_capability(str(raw["id"])) or _capability(criteria, files.writes),
        split=split,
        scenario=_scenario(raw["user_scenario"]),
        criteria=criteria,
        setup=_setup(raw, files.has_setup),
    )


def _setup(raw: Mapping[str, Any], supported: bool) -> tuple[StateCall, ...]:
    state = raw.get("initial_state")
    if not state:
        return ()
    if not supported:
        raise InvalidBenchmark(f"task {raw['id']} has an initial_state, which is not supported")
    for part in ("initialization_data", "message_history"):
        if state.get(part):
            raise InvalidBenchmark(f"task {raw['id']} has {part}, which is not supported")
    return tuple(StateCall(**_call(call)) for call in state.get("initialization_actions") or ())


def _call(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": raw["func_name"], "arguments": raw["arguments"], "side": raw["env_type"]}


def _criteria(raw: Mapping[str, Any]) -> Criteria:
    actions = raw.get("actions")
    options: dict[str, Any] = {}
    if raw.get("reward_basis"):
        options["reward_basis"] = tuple(raw["reward_basis"])
    return Criteria(
        gold_actions=None if actions is None else tuple(map(_action, actions)),
        outputs=tuple(raw.get("communicate_info") or ()),
        nl_assertions=tuple(raw.get("nl_assertions") or ()),
        assertions=tuple(
            Assertion(**_call(call), expected=call.get("assert_value", True))
            for call in raw.get("env_assertions") or ()
        ),
        **options,
    )


def _action(raw: Mapping[str, Any]) -> Action:
    compared = raw.get("compare_args")
    return Action(
        name=raw["name"],
        arguments=raw["arguments"],
        requestor=raw.get("requestor") or "assistant",
        compare=None if compared is None else tuple(compared),
    )


def _scenario(raw: Mapping[str, Any]) -> Scenario:
    instructions = raw["instructions"]
    if isinstance(instructions, str):
        instructions = {"reason_for_call": "", "task_instructions": instructions}
    fields = {
        name: instructions.get(name) or ""
        for name in ("reason_for_call", "known_info", "unknown_info", "task_instructions")
    }
    return Scenario(**fields, persona=raw.get("persona") or "")


def _capability(criteria: Criteria, writes: frozenset[str]) -> str:
    changes = sum(action.name in writes for action in criteria.gold_actions or ())
    return (NO_CHANGE, ONE_CHANGE, SEVERAL_CHANGES)[min(changes, 2)]


def _part(raw: Any, key: str, path: Path) -> Any:
    if not isinstance(raw, dict) or key not in raw:
        raise InvalidBenchmark(f"{path} has no {key!r}")
    return raw[key]


def read_json(path: Path) -> Any:
    """Return the content of a JSON file. Raise NoBenchmark or InvalidBenchmark."""
    try:
        return json.loads(read_text(path))
    except ValueError as error:
        raise InvalidBenchmark(f"{path} is no JSON: {error}") from error


def read_text(path: Path) -> str:
    """Return a file's text. Raise NoBenchmark."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise NoBenchmark(
            f"{path} cannot be read ({error.strerror}); {VARIABLE} names the folder above it"
        ) from error
