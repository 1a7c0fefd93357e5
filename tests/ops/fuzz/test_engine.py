"""The fuzz driver of the embedded engine, at a small part of its count. Long runs:
`python -m ops.fuzz.engine --requests 100000`."""

import json
from pathlib import Path

import pytest

from daemon.engine.wire import ChatRequest, CompletionRequest
from ops.fuzz import engine


@pytest.mark.processes
def test_no_request_and_no_adapter_ends_the_engine(tmp_path: Path) -> None:
    outcome = engine.run(600, 0, tmp_path)
    assert not outcome["wrong"], json.dumps(outcome, indent=1)
    assert outcome["requests"] == 600
    assert {200, 400, 404} <= outcome["statuses"].keys()
    assert outcome["adapters"]["refused"] > 0


def test_a_seed_makes_its_requests_again() -> None:
    assert [*engine.requests(3, 50)] == [*engine.requests(3, 50)] != [*engine.requests(4, 50)]


@pytest.mark.parametrize("model", [ChatRequest, CompletionRequest])
def test_every_number_of_a_request_is_attacked(model: type[ChatRequest]) -> None:
    attacked = {*engine.NUMBERS, *engine.LISTS}
    for name, field in model.model_json_schema()["properties"].items():
        if '"integer"' in json.dumps(field) or '"number"' in json.dumps(field):
            assert name in attacked
