"""The real tasks of tau2-bench, from the operator's folder.

    $KINTSUGI_BENCHMARKS/tau2/<domain>/db.json            the state in which every task begins
                                      /tasks.json         the tasks
                                      /split_tasks.json   split -> task ids
                                      /policy.md          the system prompt
                                      /tools.json         {"assistant": [OpenAI schemas], ...}

Guarantee: the tables are canonical, so that their digest is the original's database hash; policy
and schemas are as in the folder. A folder or file that is missing or is not what it should be
raises `NoBenchmark` or `InvalidBenchmark` with its path. Not covered: tasks that begin in
another state (`initial_state`), which retail and airline do not have.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from envs.database import Database, Tables
from envs.environment import UnknownTask
from envs.task import Criteria, Scenario, TaskDefinition
from events.errors import KintsugiError
from events.messages import Action

VARIABLE: Final = "KINTSUGI_BENCHMARKS"
"""The setting that names the operator's folder."""

BASE: Final = "base"
"""The split that holds every task."""

NO_CHANGE: Final = "benchmark_no_change"
ONE_CHANGE: Final = "benchmark_one_change"
SEVERAL_CHANGES: Final = "benchmark_several_changes"
"""Capabilities of real tasks, by the writes of a perfect agent: an agent that becomes passive
gains on the first and loses on the others, so the three are reported apart."""


class NoBenchmark(UnknownTask):
    """There is no such folder or file, so none of its tasks is known."""


class InvalidBenchmark(KintsugiError):
    """A file is not what it should be."""


@dataclass(frozen=True)
class Benchmark:
    """One domain's real tasks."""

    database: Database
    """Pristine: fork it."""
    tasks: Mapping[str, TaskDefinition]
    """Tasks by id, in the order of the file."""
    splits: Mapping[str, Sequence[str]]
    """Split -> ids of tasks."""
    policy: str
    schemas: Sequence[Mapping[str, Any]]


def folder(benchmarks: Path, domain: str) -> Path:
    """Where the domain's files are."""
    return benchmarks / "tau2" / domain


def load(
    benchmarks: Path | None,
    domain: str,
    canonical: Callable[[Mapping[str, Any]], Tables],
    writes: frozenset[str],
) -> Benchmark:
    """Read a domain. `canonical` gives the tables every field and type that the original's models
    would; `writes` are the tools that change the state. Raises NoBenchmark, InvalidBenchmark.
    """
    place = _find_folder(benchmarks, domain)
    splits = _read_splits(place, domain)
    tasks = _read_tasks(place, domain, splits, writes)
    for split, ids in splits.items():
        unknown = [task_id for task_id in ids if task_id not in tasks]
        if unknown:
            raise InvalidBenchmark(
                f"{place}: split {split} names {unknown[0]}, no task has that id"
            )
    return Benchmark(
        database=_read_database(place / "db.json", canonical),
        tasks=tasks,
        splits=splits,
        policy=_text(place / "policy.md"),
        schemas=_part(_json(place / "tools.json"), "assistant", place / "tools.json"),
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


def _read_database(path: Path, canonical: Callable[[Mapping[str, Any]], Tables]) -> Database:
    raw = _json(path)
    try:
        return Database(canonical(raw))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidBenchmark(f"{path} is no such database: {error!r}") from error


def _read_splits(place: Path, domain: str) -> dict[str, list[str]]:
    path = place / "split_tasks.json"
    splits = _json(path)
    if not isinstance(splits, dict) or BASE not in splits:
        raise InvalidBenchmark(f"{path} has no split {BASE!r}")
    return {str(split): [f"{domain}/{number}" for number in ids] for split, ids in splits.items()}


def _read_tasks(
    place: Path, domain: str, splits: Mapping[str, Sequence[str]], writes: frozenset[str]
) -> dict[str, TaskDefinition]:
    path = place / "tasks.json"
    narrowest = dict.fromkeys(splits[BASE], BASE)
    narrowest |= {task_id: split for split in splits if split != BASE for task_id in splits[split]}
    tasks: dict[str, TaskDefinition] = {}
    for position, raw in enumerate(_json(path)):
        try:
            task_id = f"{domain}/{raw['id']}"
            if task_id in narrowest:
                tasks[task_id] = task_definition(raw, domain, narrowest[task_id], writes)
        except (KeyError, TypeError, ValidationError, InvalidBenchmark) as error:
            raise InvalidBenchmark(f"{path}, task at {position}: {error!r}") from error
    return tasks


def task_definition(
    raw: Mapping[str, Any], domain: str, split: str, writes: frozenset[str]
) -> TaskDefinition:
    """A task from its record in the file, or in a results file that embeds it.

    Raises KeyError, TypeError or pydantic's ValidationError for a record of another shape,
    InvalidBenchmark for a task that needs a state of its own.
    """
    if raw.get("initial_state"):
        raise InvalidBenchmark(f"task {raw['id']} has an initial_state, which is not supported")
    criteria = _criteria(raw.get("evaluation_criteria") or {})
    return TaskDefinition(
        id=f"{domain}/{raw['id']}",
        environment=domain,
        capability=_capability(criteria, writes),
        split=split,
        scenario=_scenario(raw["user_scenario"]),
        criteria=criteria,
    )


def _criteria(raw: Mapping[str, Any]) -> Criteria:
    actions = raw.get("actions")
    options: dict[str, Any] = {}
    if raw.get("reward_basis"):
        options["reward_basis"] = tuple(raw["reward_basis"])
    return Criteria(
        gold_actions=None if actions is None else tuple(map(_action, actions)),
        outputs=tuple(raw.get("communicate_info") or ()),
        nl_assertions=tuple(raw.get("nl_assertions") or ()),
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


def _json(path: Path) -> Any:
    try:
        return json.loads(_text(path))
    except ValueError as error:
        raise InvalidBenchmark(f"{path} is no JSON: {error}") from error


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise NoBenchmark(
            f"{path} cannot be read ({error.strerror}); {VARIABLE} names the folder above it"
        ) from error
