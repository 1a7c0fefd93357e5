"""Bytes that were stored once are read for ever, and a released version never changes."""

import json
from pathlib import Path
from typing import Any

import pytest

from events.codec import arrays_of, decode
from events.envelope import to_headers
from events.jobs import JobSpec
from events.log import Record
from events.registry import REGISTRY
from events.rollouts import EventData
from tests.replay.samples import ARRAYS, SAMPLES
from tests.replay.schemas import plain_schema, schema_of
from tests.replay.write_golden import GOLDEN, JOB_SPEC, SCHEMAS, envelope_of, name_of

TYPES = list(REGISTRY.types.values())


def golden_record(path: Path) -> Record:
    """The record of a `.bin` file of the corpus."""
    headers = json.loads(path.with_suffix(".headers.json").read_text())
    stream = REGISTRY.types[path.name.split(".")[0]].STREAM
    pairs = tuple((name, value.encode()) for name, value in headers)
    return Record(stream, 0, 0, "golden", 0, "key", pairs, path.read_bytes(), 1)


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.bin")), ids=lambda path: path.stem)
def test_stored_bytes_of_every_version_are_read_as_the_newest(path: Path) -> None:
    event = decode(golden_record(path))
    name, version = path.stem.split(".")[:2]
    assert (event.envelope.type, event.envelope.version) == (name, int(version.removeprefix("v")))
    assert type(event.data) is REGISTRY.types[name]


@pytest.mark.parametrize("number", range(len(SAMPLES)), ids=lambda n: SAMPLES[n].TYPE)
def test_the_newest_version_is_read_as_its_sample(number: int) -> None:
    data = SAMPLES[number]
    record = golden_record(GOLDEN / f"{name_of(type(data))}.bin")
    event = decode(record)
    assert event.data == data
    assert event.envelope == envelope_of(data, number + 1)
    assert to_headers(event.envelope, dict(record.headers)["content-type"].decode()) == (
        record.headers
    )
    if data.STREAM == "rollouts":
        assert arrays_of(record.value) == ARRAYS.get(data.TYPE, {})


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.v*.*.bin")), ids=lambda path: path.stem)
def test_bytes_from_before_a_version_gained_a_field_say_what_they_said(path: Path) -> None:
    name = name_of(REGISTRY.types[path.name.split(".")[0]])
    older, newest = (
        dump_whole(decode(golden_record(each)).data) for each in (path, GOLDEN / f"{name}.bin")
    )
    assert older != newest, f"{path.name} sets what the newest sample sets: it is no older form"
    assert said_by(older, newest)


def dump_whole(data: EventData) -> dict[str, Any]:
    """What an event sets, its content included, which its head leaves out."""
    content = getattr(data, "content", None)
    parts = {} if content is None else content.model_dump(mode="json", exclude_unset=True)
    return {**data.model_dump(mode="json", exclude_unset=True), "content": parts}


def said_by(older: Any, newest: Any) -> bool:
    """Whether what the older form says, the newest says too."""
    if isinstance(older, dict):
        return older.keys() <= newest.keys() and all(
            said_by(value, newest[name]) for name, value in older.items()
        )
    if isinstance(older, list):
        return len(older) == len(newest) and all(map(said_by, older, newest))
    return bool(older == newest)


@pytest.mark.parametrize("data", SAMPLES, ids=lambda data: data.TYPE)
def test_a_sample_sets_every_field(data: EventData) -> None:
    assert data.model_fields_set == set(type(data).model_fields)


@pytest.mark.parametrize("data_type", TYPES, ids=lambda data_type: data_type.TYPE)
def test_every_version_of_every_type_is_in_the_corpus(data_type: type[EventData]) -> None:
    for version in range(1, data_type.VERSION + 1):
        name = f"{data_type.TYPE}.v{version}"
        files = (GOLDEN / f"{name}.bin", SCHEMAS / f"{name}.json")
        missing = [path.name for path in files if not path.exists()]
        assert not missing, "add a sample and run: python -m tests.replay.write_golden"


@pytest.mark.parametrize("data_type", TYPES, ids=lambda data_type: data_type.TYPE)
def test_a_released_version_keeps_its_schema(data_type: type[EventData]) -> None:
    frozen = json.loads((SCHEMAS / f"{name_of(data_type)}.json").read_text())
    assert schema_of(data_type) == frozen, (
        f"{name_of(data_type)} differs from what was released. If it only gained an optional field "
        "with a default, delete its frozen schema and run python -m tests.replay.write_golden; "
        "anything else is a new version with an upcaster from this one."
    )


def test_a_jobs_spec_keeps_its_schema() -> None:
    frozen = json.loads(JOB_SPEC.read_text())
    assert plain_schema(JobSpec) == frozen, (
        "the spec of a job differs from what was released. If it only gained an optional field "
        "with a default, delete its frozen schema and run python -m tests.replay.write_golden"
    )
