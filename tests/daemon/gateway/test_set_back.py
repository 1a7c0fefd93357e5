"""A gateway whose database is set back: restored from a copy, or a replica that took over late."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from daemon.roles.route_follower import follow_routes
from producers.gateway.metrics.registry import Metrics
from producers.gateway.routing.routes import Policy
from producers.gateway.routing.routing import Routing
from tests.daemon.gateway.test_following import Control, controlling, wait_for


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Control]:
    with controlling(tmp_path / "home") as found:
        yield found


def copied(source: Path, target: Path) -> None:
    """As it is at one moment, whoever reads and writes it."""
    with closing(sqlite3.connect(source)) as there, closing(sqlite3.connect(target)) as here:
        there.backup(here)


def answerer(routing: Routing) -> Policy:
    """Who would answer a new session."""
    with routing.begin("agent", "s", goes_on=False) as use:
        return use.choice.policy


def reported(control: Control) -> list[int]:
    return [one.position for one in control.reports()]


def test_routes_do_not_go_back_with_their_database(
    control: Control, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    live, copy = Path(str(control.app.engine.url.database)), tmp_path / "copy.db"
    copied(live, copy)
    routing = Routing("agent")
    with follow_routes(control.app, routing, Metrics()):
        assert answerer(routing) == "one"
        control.route("rollback", None)
        assert wait_for(lambda: answerer(routing) is None)
        copied(copy, live)
        assert wait_for(lambda: "the database was set back" in caplog.text)
        assert answerer(routing) is None, "what was taken back must not answer again"
        assert wait_for(lambda: reported(control) == [routing.table.position])
        control.app.settle()
        control.route("operator", "two")
        assert wait_for(lambda: answerer(routing) == "two")
    assert "the routes are followed again" in caplog.text
