"""Whatever is done to a file, reading it never raises, and good and bad records add up."""

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from events.blobs import BlobStore
from events.codec import decode
from events.memory import MemoryLog
from producers.importers.importer import FORMATS, append_rollouts
from tests.producers.importers.test_importer import stored
from tests.producers.samples import (
    bfcl_result,
    openai_record,
    read,
    tau2_results,
    tau2_simulation,
    tau_bench_run,
)

COUNT = 4
DOCUMENTS: dict[str, str] = {
    "tau-bench": json.dumps([tau_bench_run(trial=trial) for trial in range(COUNT)]),
    "tau2": json.dumps(
        tau2_results(simulations=[tau2_simulation(trial=trial) for trial in range(COUNT)])
    ),
    "openai": "\n".join(json.dumps(openai_record(trial=trial)) for trial in range(COUNT)),
    "bfcl": "\n".join(json.dumps(bfcl_result(id=f"a_{trial}")) for trial in range(COUNT)),
}
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3)
    ),
    max_leaves=5,
)


def import_bytes(content: bytes, **options: Any) -> tuple[int, int]:
    """How many records were imported and how many rejected; what was imported can be read back."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.json")
        path.write_bytes(content)
        rollouts, rejections = read(path, **options)
        log = MemoryLog()
        result = append_rollouts(log, BlobStore(Path(folder, "blobs")), rollouts, lambda _: set())
    assert len([decode(record) for record in stored(log)]) == result.imported
    assert result.imported + result.duplicates + len(result.rejected) == len(rollouts)
    assert all(one.position and one.reason for one in rejections)
    return len(rollouts), len(rejections)


@pytest.mark.parametrize("name", DOCUMENTS)
@given(st.data())
@settings(max_examples=30, deadline=None)
def test_a_file_cut_anywhere_gives_its_leading_records_and_names_the_rest(
    name: str, data: st.DataObject
) -> None:
    text = DOCUMENTS[name]
    cut = data.draw(st.integers(0, len(text) - 1))
    good, bad = import_bytes(text[:cut].encode())
    ends = [text.index(f'"trial": {n}') + 10 for n in range(COUNT)] if '"trial"' in text else []
    assert good >= sum(end < cut for end in ends) - 1
    assert good + bad > 0
    # A cut between two lines cannot be seen, and one behind the last record costs nothing.
    assert bad > 0 or name in ("openai", "bfcl") or good == COUNT


@pytest.mark.parametrize("name", DOCUMENTS)
@given(st.data())
@settings(max_examples=30, deadline=None)
def test_bytes_changed_anywhere_never_raise(name: str, data: st.DataObject) -> None:
    content = bytearray(DOCUMENTS[name].encode())
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(content)))
        length = data.draw(st.integers(0, 30))
        content[start : start + length] = data.draw(st.binary(max_size=6))
    good, bad = import_bytes(bytes(content))
    assert good + bad > 0


@pytest.mark.parametrize("name", DOCUMENTS)
@given(st.data())
@settings(max_examples=40, deadline=None)
def test_values_of_any_type_anywhere_cost_at_most_their_record(
    name: str, data: st.DataObject
) -> None:
    document: Any = (
        [json.loads(line) for line in DOCUMENTS[name].splitlines()]
        if name in ("openai", "bfcl")
        else json.loads(DOCUMENTS[name])
    )
    records = document["simulations"] if name == "tau2" else document
    spot: Any = records[1]
    while isinstance(spot, dict | list) and spot:
        key: Any = data.draw(
            st.sampled_from(sorted(spot) if isinstance(spot, dict) else range(len(spot)))
        )
        if not isinstance(spot[key], dict | list) or not spot[key] or data.draw(st.booleans()):
            spot[key] = data.draw(JSON_VALUES)
            break
        spot = spot[key]
    text = (
        "\n".join(map(json.dumps, records)) if name in ("openai", "bfcl") else json.dumps(document)
    )
    good, bad = import_bytes(text.encode())
    assert good + bad == COUNT
    assert bad <= 1


@given(
    st.binary(max_size=200) | JSON_VALUES.map(lambda value: json.dumps(value).encode()),
    st.sampled_from(["auto", *FORMATS]),
)
@settings(max_examples=100, deadline=None)
def test_any_bytes_in_any_format_never_raise(content: bytes, name: str) -> None:
    import_bytes(content, format=name)
