"""Replay of recorded calls: what is equal, what differs, and rows that are none."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from envs.airline.environment import Airline
from envs.retail.environment import Retail
from envs.tau2.environment import Tau2Environment
from envs.tau2.golden import Mismatch, replay
from tests.envs.retail.records import PENDING, Json
from tests.envs.tau2.files import CANCEL, write_folder

LOOK = {"order_id": PENDING}
ADDRESS = {
    "user_id": "ada_berg_1",
    "address1": 5,
    "address2": "",
    "city": "x",
    "state": "x",
    "country": "x",
    "zip": "1",
}


@pytest.fixture
def retail(tmp_path: Path) -> Retail:
    return Retail(write_folder(tmp_path))


def recorded(retail: Retail) -> Json:
    """A row that mixes both kinds, recorded from the tools themselves."""
    database = retail.benchmark.database.fork()
    tools = retail.toolset(database)
    calls: list[Json] = []
    initial = database.digest()
    for name, arguments in (
        ("get_order_details", LOOK),
        ("cancel_pending_order", CANCEL),
        ("get_user_details", {"user_id": "nobody"}),
    ):
        result = tools.call(name, arguments)
        calls.append(
            {
                "name": name,
                "arguments": arguments,
                "error": result.error,
                "output": result.content,
                "db_hash_after": database.digest()[:16],
            }
        )
    output = calls[0].pop("output")
    calls[0] |= {
        "output_sha256": hashlib.sha256(output.encode()).hexdigest(),
        "output_len": len(output),
        "output_head": output[:20],
    }
    return {"calls": calls, "initial_db_hash": initial, "gold_db_hash": database.digest()}


def differences(retail: Retail, *rows: Any) -> list[tuple[int, int | None, str]]:
    """Where the replay of these rows differs."""
    found = replay(retail, [json.dumps(row) for row in rows])
    return [(one.row, one.call, one.what) for one in found.mismatches]


def test_what_was_recorded_is_equal(retail: Retail) -> None:
    lines = [json.dumps(recorded(retail)), "\n", json.dumps(recorded(retail))]
    found = replay(retail, lines)
    assert (found.rows, found.calls, found.equal, found.mismatches) == (2, 6, 6, [])


@pytest.mark.parametrize(
    ("call", "key", "value"),
    [
        (0, "output_sha256", "0" * 64),
        (0, "output_len", 3),
        (0, "output_head", "["),
        (1, "output", "null"),
        (1, "error", True),
        (1, "db_hash_after", "0" * 16),
        (2, "output", "Error: Order not found"),
        (2, "db_hash_after", ""),
        (None, "initial_db_hash", "0" * 64),
        (None, "gold_db_hash", None),
    ],
)
def test_each_value_that_differs_is_named(
    retail: Retail, call: int | None, key: str, value: Any
) -> None:
    row = recorded(retail)
    (row if call is None else row["calls"][call])[key] = value
    assert differences(retail, row) == [(0, call, key)]
    assert replay(retail, [json.dumps(row)]).equal == (3 if call is None else 2)


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"calls": 3}', '{"calls": [NaN]}', "[" * 100_000, '"\x00"']
)
def test_a_malformed_row_is_named_and_the_others_are_replayed(retail: Retail, line: str) -> None:
    found = replay(retail, [line, json.dumps(recorded(retail))])
    assert [(one.row, one.call, one.what) for one in found.mismatches] == [(0, None, "row")]
    assert (found.rows, found.equal) == (2, 3)


@pytest.mark.parametrize(
    "call", [3, {}, {"name": "x"}, {"name": 1, "arguments": {}}, {"name": "x", "arguments": "{}"}]
)
def test_a_malformed_call_is_named(retail: Retail, call: Any) -> None:
    assert differences(retail, {"calls": [call]}) == [(0, 0, "call")]


def test_the_version_in_pydantics_links_does_not_count(retail: Retail) -> None:
    text = retail.toolset(retail.benchmark.database.fork()).call("modify_user_address", ADDRESS)
    call = {"name": "modify_user_address", "arguments": ADDRESS, "error": True}
    other = text.content.replace("errors.pydantic.dev/2.", "errors.pydantic.dev/9.")
    assert other != text.content
    assert differences(retail, {"calls": [{**call, "output": other}]}) == []
    wrong = other.replace("string_type", "int_type")
    assert differences(retail, {"calls": [{**call, "output": wrong}]}) == [(0, 0, "output")]


@pytest.mark.benchmarks
@pytest.mark.parametrize(
    ("environment", "name", "calls"),
    [
        (Retail, "retail_gold_transcripts", 550),
        (Retail, "retail_fuzz", 1200),
        (Airline, "airline_gold_transcripts", 142),
        pytest.param(Airline, "airline_fuzz", 1200, marks=pytest.mark.long),
    ],
)
def test_the_recordings_of_the_original_are_equal(
    benchmarks: Path, environment: type[Tau2Environment], name: str, calls: int
) -> None:
    with (benchmarks / "golden" / f"{name}.jsonl").open() as lines:
        found = replay(environment(benchmarks), lines)
    assert found.mismatches == list[Mismatch]()
    assert (found.calls, found.equal) == (calls, calls)
