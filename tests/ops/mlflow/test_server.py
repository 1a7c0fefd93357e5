"""MLflow takes our spans: one trace from a client's request, as MLflow itself gives it back."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ops.isolated import InstallError
from ops.mlflow.server import EXPERIMENT, Mlflow
from producers.spans import conventions as names
from tests.conftest import missing
from tests.daemon.commands import spawn
from tests.ops.sessions import SESSIONS, talk

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mlflow]:
    """The module's MLflow."""
    try:
        with Mlflow(tmp_path_factory.mktemp("mlflow")) as started:
            yield started
    except InstallError as error:
        missing(str(error))


def value(told: dict[str, Any], name: str) -> Any:
    """An attribute in its type."""
    ((kind, found),) = told["attributes"][name].items()
    return int(found) if kind == "int_value" else found


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_every_trace_is_there_with_its_spans_below_the_clients(
    server: Mlflow, tmp_path: Path, compression: str
) -> None:
    home = tmp_path / "home"
    clients = talk(home, compression)
    sent = spawn(
        ["trace", "--once", "--from-start", "--json"],
        tmp_path,
        {
            "KINTSUGI_HOME": str(home),
            "KINTSUGI_TRACING__ENDPOINT": f"{server.url}/v1/traces",
            "KINTSUGI_TRACING__HEADERS": json.dumps(EXPERIMENT),
            "KINTSUGI_TRACING__COMPRESSION": compression,
        },
    )
    assert sent.code == 0, sent.err
    told = {name: sent.json[name] for name in ("taken", "rejected", "refused")}
    assert told == {"taken": 2 * SESSIONS, "rejected": 0, "refused": 0}
    for number, client in enumerate(clients):
        spans = {span["name"]: span for span in server.spans(client.trace)}
        assert set(spans) == {"chat agent", "invoke_agent agent"}
        assert {span["parent_span_id"] for span in spans.values()} == {client.span}
        assert {span["trace_id"] for span in spans.values()} == {client.trace}
        chat = spans["chat agent"]
        assert value(chat, names.OPERATION) == "chat"
        assert value(chat, names.CONVERSATION) == f"talk-{number}"
        assert (value(chat, names.INPUT_TOKENS), value(chat, names.OUTPUT_TOKENS)) == (5, 3)
        assert (value(chat, names.RESPONSE_MODEL), value(chat, names.STATUS)) == ("base", 200)
