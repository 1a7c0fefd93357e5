"""A real OpenTelemetry Collector between us and others: what goes through it arrives as it was."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ops.collector.server import Collector, otelcol
from ops.golang import ProgramUnavailable
from producers.gateway.privacy.keys import ClientKey, hash_key
from producers.spans import conventions as names
from tests.conftest import missing
from tests.daemon.commands import Result, spawn
from tests.daemon.conftest import clean, home
from tests.daemon.gateway.conftest import fronting
from tests.daemon.gateway.receiver import Receiver, receiving, told
from tests.daemon.gateway.spans import Agent
from tests.ops.sessions import SESSIONS, talk

__all__ = ["clean", "home"]

pytestmark = pytest.mark.long

NOBODY = "http://127.0.0.1:9"
"""No engine: whoever sends spans asks another."""


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    """The program, or why it is not there."""
    try:
        otelcol()
    except ProgramUnavailable as error:
        missing(str(error))


@contextmanager
def before(folder: Path, most: int | None = None) -> Iterator[tuple[Collector, Receiver]]:
    """A Collector, and what it sends on to."""
    with receiving() as receiver, Collector(folder, receiver.url, most=most) as collector:
        yield collector, receiver


def traced(home: Path, url: str, compression: str) -> Result:
    """Send the spans of a home."""
    return spawn(
        ["trace", "--once", "--from-start", "--json"],
        home.parent,
        {
            "KINTSUGI_HOME": str(home),
            "KINTSUGI_TRACING__ENDPOINT": url,
            "KINTSUGI_TRACING__COMPRESSION": compression,
        },
    )


def counts(sent: Result) -> dict[str, Any]:
    """What the receiver said to the spans."""
    return {name: sent.json[name] for name in ("taken", "rejected", "refused")}


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_our_spans_arrive_below_the_clients(tmp_path: Path, compression: str) -> None:
    clients = talk(tmp_path / "home", compression)
    with before(tmp_path) as (collector, receiver):
        sent = traced(tmp_path / "home", collector.url, compression)
    assert sent.code == 0, sent.err
    assert counts(sent) == {"taken": 2 * SESSIONS, "rejected": 0, "refused": 0}
    for number, client in enumerate(clients):
        spans = [one for one in receiver.spans.values() if one.trace_id.hex() == client.trace]
        assert {span.name for span in spans} == {"chat agent", "invoke_agent agent"}
        assert {span.parent_span_id.hex() for span in spans} == {client.span}
        (chat,) = (told(span) for span in spans if span.name == "chat agent")
        assert (chat[names.CONVERSATION], chat[names.INPUT_TOKENS]) == (f"talk-{number}", 5)


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_what_it_finds_too_large_comes_in_parts(tmp_path: Path, compression: str) -> None:
    clients = talk(tmp_path / "home", f"large {compression}")
    most = 4_000
    with before(tmp_path, most) as (collector, receiver):
        sent = traced(tmp_path / "home", collector.url, compression)
    assert sent.code == 0, sent.err
    assert counts(sent) == {"taken": 2 * SESSIONS, "rejected": 0, "refused": 0}
    assert {one.trace_id.hex() for one in receiver.spans.values()} == {one.trace for one in clients}
    assert len(receiver.spans) == 2 * SESSIONS
    assert len(receiver.bodies) > 1, "it was too large for one"


def test_an_agents_spans_become_calls(home: Path, tmp_path: Path) -> None:
    agent = Agent()
    agent.talk("talk-1")
    home.mkdir()
    keys = [ClientKey("shop", hash_key("kg-a"), frozenset(("call",)))]
    bearer = {"authorization": "Bearer kg-a"}
    with fronting(home, [NOBODY], keys, proven=False) as front:
        with Collector(tmp_path, f"{front.url}/v1/traces", bearer) as collector:
            base = collector.url.removesuffix("/v1/traces")
            assert agent.sent(base, gzip=True)
            assert agent.sent(base)
        first, second = sorted(front.started(), key=lambda one: one.parent_messages)
        assert (first.session, first.alias, first.policy) == ("talk-1", "agent", "gpt-x-2026")
        assert (first.client, second.parent) == ("shop", first.call)
        counter = "kintsugi_gateway_spans_total"
        assert front.gateway.metrics.value(counter, result="repeated") == 2
