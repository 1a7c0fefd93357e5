"""Two gateways as processes follow the routes of one database: flips under load, a gateway that is
stopped across one, a database that is away.

The engine is in this process, and what is decided is appended and folded here.
"""

import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from consumers import database
from consumers.database import open_database
from consumers.reads import gateways
from daemon.config.settings import load as settings
from daemon.core.app import App
from daemon.engine.chat import Chat
from daemon.engine.policy import Policy
from events.log import Entry
from events.streams import LEARNING
from migrations.upgrade import upgrade
from ops.postgres.server import Postgres, PostgresUnavailable
from producers.gateway.routing.routes import is_held_out
from tests.conftest import missing
from tests.consumers.deciding import decision, produced, routed, staged
from tests.daemon.engine.conftest import Live, adapter, listening, other_adapter
from tests.daemon.gateway.program import Program, running
from tests.daemon.gateway.test_routing import CHAT, HELLO, load, unload

__all__ = ["adapter", "other_adapter"]

pytestmark = pytest.mark.processes

Json = dict[str, Any]
GREEDY: Json = {"messages": HELLO, "max_tokens": 24, "temperature": 0, "ignore_eos": True}
PATIENCE = 30.0
GONE_SECONDS = 30.0
"""The default of serving.gateway_timeout_seconds."""


@pytest.fixture
def engine(base: Policy, served_chat: Chat, adapter: Path, other_adapter: Path) -> Iterator[Live]:
    """An engine with the adapters `one` and `two`."""
    with listening(base, served_chat) as found:
        load(found, one=adapter, two=other_adapter)
        yield found


@dataclass
class Control:
    """Who decides: appends to the home's log and folds it."""

    app: App
    count: int = 0

    def decide(self, *decided: Any) -> int:
        """The offset of the last decision, once all are folded."""
        for data in decided:
            self.app.append([self._entry(data)])
        self.app.settle()
        return self.app.spool.end(LEARNING.name)[0] - 1

    def route(self, why: Any, adapter: str | None, **about: Any) -> int:
        """One answers all sessions from here on."""
        return self.decide(routed(why, {adapter: 1.0}, base="tiny", **about))

    def reports(self) -> list[gateways.Report]:
        """What the live gateways said last."""
        with self.app.reading() as connection:
            return [one.report for one in gateways.read_live_gateways(connection, GONE_SECONDS)]

    def known(self, decided: int, gateways: int) -> bool:
        """Whether so many gateways are past a decision."""
        return sum(one.position > decided for one in self.reports()) == gateways

    def may_unload(self, adapter: str, flipped: int) -> bool:
        """Whether everybody is past the flip that took it out, and nobody uses it."""
        return all(one.position > flipped and not one.uses(adapter) for one in self.reports())

    def _entry(self, data: Any) -> Entry:
        self.count += 1
        return decision(data, f"{self.app.home} {self.count}")


@contextmanager
def controlling(home: Path, database_url: str | None = None) -> Iterator[Control]:
    """The adapters `one` and `two`, staged, and a route to `one`."""
    home.mkdir(parents=True, exist_ok=True)
    with closing(App(settings(home=home, database_url=database_url))) as app:
        control = Control(app)
        for name in ("one", "two"):
            control.decide(produced(name, base="tiny"), staged(name))
        control.route("operator", "one")
        yield control


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Control]:
    with controlling(tmp_path / "home") as found:
        yield found


def wait_for(true: Callable[[], bool]) -> bool:
    """Whether it becomes true within some seconds."""
    deadline = time.monotonic() + PATIENCE
    while not true() and time.monotonic() < deadline:
        time.sleep(0.01)
    return true()


def ask(gateway: Program, session: str, **body: Any) -> httpx2.Response:
    headers = {"x-kintsugi-session": session}
    asked = {"model": "agent", "messages": HELLO, "max_tokens": 2, **body}
    return httpx2.post(f"{gateway.url}{CHAT}", json=asked, headers=headers, timeout=60)


def answerer(gateway: Program, session: str) -> str:
    """Who answers a call."""
    answer = ask(gateway, session)
    assert answer.status_code == 200, answer.text
    return str(answer.headers["x-kintsugi-adapter"])


def text_of(stream: str) -> str:
    """What a stream said, which must be whole."""
    *events, last = [one.removeprefix("data: ") for one in stream.split("\n\n") if one]
    assert last == "[DONE]", stream
    chunks = [json.loads(one) for one in events]
    assert {one["model"] for one in chunks} == {"agent"}
    deltas = [choice["delta"] for one in chunks for choice in one["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


class Client(threading.Thread):
    """Asks one gateway in sessions of one call, until told to stop."""

    def __init__(self, gateway: Program, session: str, stop: threading.Event) -> None:
        super().__init__()
        self.heard: list[tuple[str, str]] = []
        """Who answered, and what was said."""
        self.failed: list[str] = []
        self._gateway = gateway
        self._session = session
        self._stopped = stop

    def run(self) -> None:
        while not self._stopped.is_set():
            try:
                session = f"{self._session}-{len(self.heard)}"
                answer = ask(self._gateway, session, **GREEDY, stream=True)
                assert answer.status_code == 200, answer.text
                self.heard.append((answer.headers["x-kintsugi-adapter"], text_of(answer.text)))
            except (httpx2.HTTPError, AssertionError, ValueError) as error:
                self.failed.append(repr(error))


def said_by(engine: Live, name: str) -> str:
    """What a model answers to everybody."""
    url = f"{engine.url}{CHAT}"
    answer = httpx2.post(url, json={**GREEDY, "model": name}, timeout=60).json()
    return str(answer["choices"][0]["message"]["content"])


def test_flips_under_load_fail_no_call_and_no_answer_is_of_two(
    engine: Live, control: Control
) -> None:
    home, url = control.app.home, f"{engine.url}/v1"
    expected = {name: said_by(engine, name) for name in ("tiny", "one", "two")}
    stop = threading.Event()
    with running(home, [url]) as first, running(home, [url]) as second:
        both = (first, second)
        clients = [Client(both[n % 2], f"client-{n}", stop) for n in range(4)]
        for client in clients:
            client.start()
        try:
            for number, name in enumerate(("two", None, "one")):
                flipped = control.route("operator", name)
                assert wait_for(partial(control.known, flipped, 2))
                new = [answerer(one, f"after-{number}") for one in both]
                assert new == [name or "tiny"] * 2
                assert [answerer(one, "after-0") for one in both] == ["two"] * 2
        finally:
            stop.set()
            for client in clients:
                client.join()
    assert [one for client in clients for one in client.failed] == []
    heard = [one for client in clients for one in client.heard]
    assert {name for name, _ in heard} == {"one", "two", "tiny"}
    assert [(name, text) for name, text in heard if text != expected[name]] == []


def test_nothing_is_unloaded_under_a_gateway_that_was_stopped_across_a_flip(
    engine: Live, control: Control
) -> None:
    home, url = control.app.home, f"{engine.url}/v1"
    with running(home, [url]) as going, running(home, [url]) as stopped:
        assert wait_for(lambda: len(control.reports()) == 2)
        assert [answerer(one, "s") for one in (going, stopped)] == ["one"] * 2
        assert wait_for(lambda: all(one.uses("one") for one in control.reports()))
        os.kill(stopped.process.pid, signal.SIGSTOP)
        control.route("operator", "two")
        flipped = control.route("rollback", None)
        assert wait_for(lambda: max(one.position for one in control.reports()) > flipped)
        assert answerer(going, "s") == "tiny"
        assert not control.may_unload("one", flipped)
        os.kill(stopped.process.pid, signal.SIGCONT)
        while answerer(stopped, "s") == "one":
            assert not control.may_unload("one", flipped)
        assert wait_for(lambda: control.may_unload("one", flipped))
        unload(engine, "one")
        assert [answerer(one, "s") for one in (going, stopped)] == ["tiny"] * 2


def test_nothing_is_unloaded_under_a_call_or_an_open_session(
    engine: Live, control: Control
) -> None:
    long = {**GREEDY, "max_tokens": 8000, "stream": True, "model": "agent"}
    with running(control.app.home, [f"{engine.url}/v1"]) as gateway:
        assert wait_for(lambda: len(control.reports()) == 1)
        headers = {"x-kintsugi-session": "s"}
        url = f"{gateway.url}{CHAT}"
        with httpx2.stream("POST", url, json=long, headers=headers, timeout=60) as response:
            pieces = response.iter_raw()
            next(pieces)
            flipped = control.route("operator", "two")
            assert wait_for(lambda: control.reports()[0].position > flipped)
            assert control.reports()[0].in_flight == {"one": 1}
            assert httpx2.post(f"{gateway.url}/v1/sessions/s/end").is_success
            assert wait_for(lambda: control.reports()[0].open_sessions == {})
            assert not control.may_unload("one", flipped)
        assert wait_for(lambda: control.may_unload("one", flipped))


def test_a_gateway_that_ends_is_waited_for_by_nobody(engine: Live, control: Control) -> None:
    with running(control.app.home, [f"{engine.url}/v1"]) as gateway:
        assert wait_for(lambda: len(control.reports()) == 1)
        gateway.process.send_signal(signal.SIGTERM)
        assert gateway.process.wait(timeout=60) == 0
        assert control.reports() == []


def test_a_gateway_that_starts_without_its_database_serves_the_last_routes(
    engine: Live, control: Control
) -> None:
    home, url = control.app.home, f"{engine.url}/v1"
    away = {"KINTSUGI_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/nothing"}
    with running(home, [url], variables=away) as gateway:
        assert answerer(gateway, "a") == "tiny", "it never knew a route"
    with running(home, [url]) as gateway:
        assert wait_for(lambda: len(control.reports()) == 1)
        assert answerer(gateway, "b") == "one"
    with running(home, [url], variables=away) as gateway:
        assert answerer(gateway, "c") == "one"
        assert wait_for(lambda: any("the last routes stay" in line for line in gateway.said))


@pytest.mark.postgres
@pytest.mark.faults
def test_while_the_database_is_away_the_last_routes_stay(engine: Live, tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="kintsugi-postgres-") as folder:
        server = Postgres(Path(folder))
        try:
            server.start()
        except PostgresUnavailable as error:
            missing(str(error))
        try:
            url = server.create_database()
            opened = open_database(url)
            upgrade(opened)
            opened.dispose()
            with controlling(tmp_path / "home", url) as control:
                _goes_away(server, control, engine, url)
        finally:
            server.kill()


def _goes_away(server: Postgres, control: Control, engine: Live, url: str) -> None:
    variables = {"KINTSUGI_DATABASE_URL": url}
    with running(control.app.home, [f"{engine.url}/v1"], variables=variables) as gateway:
        assert wait_for(lambda: len(control.reports()) == 1)
        before = control.reports()[0].position
        server.kill()
        assert wait_for(lambda: any("the last routes stay" in line for line in gateway.said))
        assert [answerer(gateway, f"away-{number}") for number in range(5)] == ["one"] * 5
        server.start()
        with database.read_transaction(control.app.database) as connection:
            late = [one.report.position for one in gateways.read_live_gateways(connection, 3600)]
        assert late == [before]
        flipped = control.route("operator", "two")
        assert wait_for(lambda: control.reports()[0].position > flipped)
        assert answerer(gateway, "back") == "two"
        assert answerer(gateway, "away-0") == "one"


def test_held_out_sessions_stay_with_the_base_over_promotions_rollbacks_and_a_restart(
    engine: Live, control: Control
) -> None:
    home, url = control.app.home, f"{engine.url}/v1"
    sessions = [f"s{n}" for n in range(12)]
    held_out = {name for name in sessions if is_held_out(0.3, "agent", name)}
    assert 2 <= len(held_out) <= 8

    def answerers(gateway: Program) -> dict[str, str]:
        """Session -> who answers it; then it ends, so that the gateway forgets who did."""
        found = {name: answerer(gateway, name) for name in sessions}
        for name in sessions:
            assert httpx2.post(f"{gateway.url}/v1/sessions/{name}/end", timeout=60).is_success
        return found

    with running(home, [url]) as gateway:
        for why, adapter in (("operator", "two"), ("operator", "one"), ("rollback", "two")):
            flipped = control.route(why, adapter, holdout=0.3)
            assert wait_for(partial(control.known, flipped, 1))
            expected = {name: "tiny" if name in held_out else adapter for name in sessions}
            assert answerers(gateway) == expected
    with running(home, [url]) as again:
        assert answerers(again) == expected
