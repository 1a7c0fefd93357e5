"""Results of tau2-bench: {timestamp, info, tasks, simulations} in one file, or as a folder with
`results.json` (without simulations) and `simulations/<id>.json`. A simulation is read with the task
in its results file, not with the current task of tau2-bench, which may have changed. Both together
are its canonical record. A cut-off file gives its first simulations. Simulations of unreadable
tasks are rejected. Mapping: docs/formats.md; fields of a simulation: tau2_simulation.py."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import ValidationError

from events.registry import first_problem
from producers.importers.documents import (
    Damage,
    RawRecord,
    Shape,
    decode_at,
    items,
    members,
    read_text,
    skip_blank,
)
from producers.importers.records import Rejection, RolloutImport, Source
from producers.importers.tau2_simulation import NAME as NAME
from producers.importers.tau2_simulation import WireInfo, parse_simulation
from producers.storable import Wire

RESULTS: Final = "results.json"
SIMULATIONS: Final = "simulations"

_HIDDEN: Final = {name: re.compile(rf'"{name}"\s*:\s*(?=\[)') for name in ("tasks", SIMULATIONS)}
_SINGLE: Final = frozenset({"task_id", "messages", "termination_reason"})


class _IndexEntry(Wire):
    id: str


@dataclass(slots=True)
class _Results:
    info: WireInfo = field(default_factory=WireInfo)
    tasks: dict[str, Any] = field(default_factory=dict)
    simulations_at: int | None = None
    indexed: tuple[str, ...] = ()


def recognises(shape: Shape, keys: frozenset[str]) -> bool:
    """Return whether the keys are of a results file, even cut off, or of a single simulation."""
    whole = SIMULATIONS in keys or {"info", "tasks"} <= keys or {"timestamp", "info"} <= keys
    return keys >= _SINGLE or (whole and shape != "array")


def read(source: Source, shape: Shape) -> Iterator[RolloutImport | Rejection]:
    """Yield every simulation of the file, and for `results.json` of its folder."""
    text = read_text(source.path)
    results = _Results()
    yield from _read_head(source, text, results)
    if results.simulations_at is not None:
        yield from _read_list(source, text, results.simulations_at, results)
    if source.path.name == RESULTS:
        yield from _read_folder(source, results)


def is_record(value: Any) -> bool:
    return isinstance(value, dict) and "task_id" in value and "messages" in value


def is_task(value: Any) -> bool:
    return isinstance(value, dict) and "id" in value and "user_scenario" in value


def _read_head(source: Source, text: str, results: _Results) -> Iterator[Rejection]:
    """Fill `results` from the file's members. Yield damaged members and go on."""
    start = skip_blank(text, 0)
    is_folder = source.path.name == RESULTS
    places: dict[str, int] = {}
    if text[start : start + 1] == "{":
        for key, at in members(text, start):
            places[key] = at
            # Stop here: nothing after the simulations is needed, and they are decoded later. A
            # folder's results file has none.
            if key == SIMULATIONS and {"info", "tasks"} <= places.keys() and not is_folder:
                break
    if not places:
        reason = f"holds no tau2 results with info, tasks and simulations: it begins {text[:40]!r}"
        yield source.rejection("file", reason)
        return
    for name, pattern in _HIDDEN.items():
        if name not in places and (hidden := pattern.search(text, max(places.values()))):
            places[name] = hidden.end()
    if places.keys() >= _SINGLE:
        folder = source.path.parent.parent
        reason = f"is one simulation without its task; import {folder}, which holds {RESULTS}"
        yield source.rejection("file", reason)
        return
    yield from _read_info(source, text, places, results)
    yield from _read_tasks(source, text, places, results)
    yield from _read_index(source, text, places, results)
    results.simulations_at = places.get(SIMULATIONS)
    if results.simulations_at is None and not is_folder:
        yield source.rejection(SIMULATIONS, "is missing: the file ends before the simulations")


def _read_info(
    source: Source, text: str, places: dict[str, int], results: _Results
) -> Iterator[Rejection]:
    if "info" not in places:
        yield source.rejection("info", "is missing; the base model and the domain are not known")
        return
    item = decode_at(text, places["info"], "info")
    if isinstance(item, Damage):
        yield source.rejection("info", item.reason)
        return
    try:
        results.info = WireInfo.model_validate(item.value)
    except ValidationError as error:
        yield source.rejection("info", first_problem(error))


def _read_tasks(
    source: Source, text: str, places: dict[str, int], results: _Results
) -> Iterator[Rejection]:
    at = places.get("tasks")
    if at is None or text[at : at + 1] != "[":
        yield source.rejection("tasks", "is missing or no list; simulations need their tasks")
        return
    following = places.get(SIMULATIONS, -1)
    for item in items(text, at, "tasks", is_task, following if following > at else None):
        if isinstance(item, Damage):
            yield source.rejection(item.position, item.reason)
        elif not isinstance(item.value, dict) or "id" not in item.value:
            yield source.rejection(item.position, "is no task: it has no `id`")
        else:
            results.tasks[str(item.value["id"])] = item.value


def _read_index(
    source: Source, text: str, places: dict[str, int], results: _Results
) -> Iterator[Rejection]:
    item = decode_at(text, places["simulation_index"], "") if "simulation_index" in places else None
    if not isinstance(item, RawRecord) or not isinstance(item.value, list):
        return
    try:
        results.indexed = tuple(_IndexEntry.model_validate(entry).id for entry in item.value)
    except ValidationError as error:
        yield source.rejection("simulation_index", first_problem(error))


def _read_list(
    source: Source, text: str, at: int, results: _Results
) -> Iterator[RolloutImport | Rejection]:
    if text[at : at + 1] != "[":
        if text[at : at + 4] != "null":
            yield source.rejection(SIMULATIONS, f"is no list: {text[at : at + 40]!r}")
        return
    for item in source.track_progress(items(text, at, SIMULATIONS, is_record)):
        yield _attempt(source, item, results)


def _read_folder(source: Source, results: _Results) -> Iterator[RolloutImport | Rejection]:
    folder = source.path.parent / SIMULATIONS
    paths = sorted(folder.glob("*.json"))
    for path in paths:
        file_source = Source(path, source.alias, source.base, source.advance)
        text = read_text(path)
        yield _attempt(file_source, decode_at(text, skip_blank(text, 0), "file"), results)
        source.advance(path.stat().st_size)
    present = {path.stem for path in paths}
    for number, name in enumerate(results.indexed):
        if name not in present:
            reason = f"{SIMULATIONS}/{name}.json is missing; copy the whole folder"
            yield source.rejection(f"simulation_index[{number}]", reason)


def _attempt(
    source: Source, item: RawRecord | Damage, results: _Results
) -> RolloutImport | Rejection:
    if isinstance(item, RawRecord):
        joined = _with_task(item, results)
        if isinstance(joined, str):
            return source.rejection(item.position, joined)
        item = joined
    return source.attempt(item, lambda record: parse_simulation(source, record, results.info))


def _with_task(item: RawRecord, results: _Results) -> RawRecord | str:
    """Return a simulation and its task as one record, or the reason why that is impossible."""
    if not isinstance(item.value, dict) or "task_id" not in item.value:
        return "is no simulation: it has no `task_id`"
    name = str(item.value["task_id"])
    if name not in results.tasks:
        return f"its task {name[:80]!r} is not among the file's readable tasks"
    value = {"simulation": item.value, "task": results.tasks[name]}
    return RawRecord(item.position, value, item.end)
