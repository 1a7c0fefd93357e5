"""`kintsugi doctor`: each thing that breaks is found by its check, which says what to do."""

import resource
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from consumers import database, leases
from consumers.reads import gateways
from consumers.reads.serving import find_adapter
from daemon.adapters.directory import BadAdapter
from daemon.config.settings import Settings, Tracing, Upstream
from daemon.core.app import App
from daemon.core.leadership import LEASE, Leadership
from daemon.cycle.leader import Leader
from daemon.sessions.closing import close_sessions
from daemon.status.doctor import loop, machine, records, serving, tracing
from daemon.status.doctor.report import CHECKS, ON_KAFKA, examine, run_check
from events import envelope
from events.envelope import Envelope, new_id, to_headers, utc_now
from events.learning import PersonErased
from events.log import Entry, now_ms
from events.rollouts import CallStarted
from tests.consumers.cycling import started
from tests.consumers.deciding import routed
from tests.consumers.folding import at, ended, entry
from tests.daemon.gateway.receiver import receiving
from tests.daemon.metrics.scene import ADAPTER, once_round, say, settings_of
from tests.daemon.written import Fixed


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    """A home with two rollouts, folded."""
    with App(settings_of(tmp_path / "home")) as made:
        made.append([ended("fails", utc_now()), ended("passes", utc_now(), session="s")])
        made.settle()
        yield made


def failed(app: App) -> dict[str, str]:
    """Check -> what it says, of those that fail."""
    return {one.check: one.detail for one in examine(app) if not one.ok}


def test_a_home_that_works_passes_every_check(app: App) -> None:
    found = examine(app)
    assert [one.check for one in found] == list(CHECKS)
    assert not failed(app), found
    assert not set(CHECKS) & set(ON_KAFKA)


def test_a_home_of_nothing_passes_too(tmp_path: Path) -> None:
    with App(Settings(home=tmp_path / "new")) as app:
        assert not failed(app)


def test_a_leader_that_was_lost_is_missed_and_one_that_resigned_is_not(app: App) -> None:
    with database.write_transaction(app.engine) as connection:
        assert leases.take(connection, LEASE, "host:1", 30.0)
        leases.renew(connection, LEASE, "host:1", 30.0, epoch=4)
    assert loop.leader(app) == (True, "host:1 leads in epoch 4")
    with database.write_transaction(app.engine) as connection:
        leases.renew(connection, LEASE, "host:1", -90.0)
    ok, detail = loop.leader(app)
    assert not ok
    assert "kintsugi schedule" in detail
    with database.write_transaction(app.engine) as connection:
        leases.give_back(connection, LEASE, "host:1")
    assert loop.leader(app)[0]


def test_what_waits_for_the_fold_is_told_once_it_waits_long(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.append([replace(ended("later", utc_now(), session="t"), recorded_ms=now_ms())])
    ok, detail = records.fold(app)
    assert ok
    assert detail == "1 events behind"
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + records.WAITING_SECONDS + 5)
    ok, detail = records.fold(app)
    assert not ok
    assert "kintsugi consume" in detail


def test_dead_letters_are_counted(app: App) -> None:
    headers = to_headers(Envelope(new_id(), "RolloutEnded", 1, "s"), "x")
    app.append([Entry("rollouts", 3, "s", headers, b"garbage", now_ms())])
    app.settle()
    assert records.dead_letters(app) == (
        False,
        "1 of rollouts could not be folded; see kintsugi dlq list",
    )


def test_a_check_that_breaks_is_a_failed_line_that_names_it(app: App) -> None:
    result = run_check("jobs", lambda _: (bool(int("many")), "never"), app)
    assert not result.ok
    assert result.detail.startswith("the check jobs ended with ValueError: invalid literal for int")


def test_a_key_that_came_back_from_a_copy_is_missed(app: App) -> None:
    assert records.keys(app) == (True, "keys.db will be made when a person is named")
    key = app.keys.of("rosa")
    assert records.keys(app) == (True, "1 keys, in this home, for this machine alone")
    erased = PersonErased(keyid=key.id)
    app.append([entry(erased, "erased", utc_now())])
    app.settle()
    ok, detail = records.keys(app)
    assert not ok
    assert "kintsugi work --once" in detail


def test_an_adapter_that_answers_must_be_whole(tmp_path: Path) -> None:
    with App(settings_of(tmp_path / "home")) as app:
        once_round(app)
        # The embedded log is of one machine: what is not there is lost.
        assert f"/adapters/{ADAPTER} answers and is not there" in failed(app)["adapters"]
        assert "kintsugi adapters rollback agent" in failed(app)["adapters"]
        with app.reading() as connection:
            row = find_adapter(connection, ADAPTER)
        here = replace(row, path=str(tmp_path / "adapters" / ADAPTER))
        Path(here.path).mkdir(parents=True)
        with pytest.raises(BadAdapter, match=ADAPTER):
            serving.check_whole(app, [here])


def test_a_key_that_an_engine_does_not_know_is_not_looked_for_in_its_log(tmp_path: Path) -> None:
    class Refusing(BaseHTTPRequestHandler):
        """Whom it does not know it tells nothing."""

        def do_GET(self) -> None:
            """Any path."""
            self.send_error(401)

        def log_message(self, *_: object) -> None:
            """To nobody."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/v1"
        with App(Settings(home=tmp_path, upstreams=(Upstream(url=url),))) as app:
            ok, detail = serving.engines(app)
        server.shutdown()
    assert not ok
    assert detail == (
        f"{url}/models answers 401, so it does not know the key; correct upstreams[].api_key"
    )


def test_a_gateway_that_does_not_follow_is_named(tmp_path: Path) -> None:
    with App(settings_of(tmp_path / "home")) as app:
        once_round(app)
        with database.write_transaction(app.engine) as connection:
            gateways.report(connection, gateways.Report("g1", "host", 0, {}, {}))
        # The route is of this moment: nobody has to know it yet.
        assert serving.gateways(app) == (True, "1 live")


def test_a_gateway_that_never_heard_of_an_old_route_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with App(settings_of(tmp_path / "home")) as app:
        once_round(app)
        say(app, routed("promoted", {ADAPTER: 1.0}))
        with database.write_transaction(app.engine) as connection:
            gateways.report(connection, gateways.Report("g1", "host", 0, {}, {}))
        later = utc_now() + timedelta(minutes=1)
        monkeypatch.setattr(serving, "utc_now", lambda: later)
        ok, detail = serving.gateways(app)
    assert not ok
    assert "g1 on host" in detail


def test_an_engine_that_is_away_is_named(tmp_path: Path) -> None:
    url = "http://127.0.0.1:9/v1"
    with App(Settings(home=tmp_path, upstreams=(Upstream(url=url),))) as app:
        ok, detail = serving.engines(app)
    assert not ok
    assert detail.startswith(f"{url} does not answer")


def test_a_session_that_nobody_makes_a_rollout_of_is_counted(app: App) -> None:
    call = CallStarted(call="c", session="s", alias="agent", base="base", policy="base")
    app.append([entry(call, "call", utc_now())])
    app.settle()
    assert loop.sessions(app) == (True, "none waits")
    app.append([entry(call.model_copy(update={"call": "d", "session": "t"}), "old", at(0))])
    app.settle()
    ok, detail = loop.sessions(app)
    assert not ok
    assert detail.startswith("1 sessions are over")
    assert close_sessions(app, utc_now()).rollouts == 1
    assert loop.sessions(app) == (True, "none waits")


def test_a_cycle_that_stands_is_named(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    leadership = Leadership(app)
    Leader(app, Fixed(), leadership).tick()
    leadership.resign()
    ok, detail = loop.cycle(app)
    assert ok
    assert "needs train next" in detail
    later = utc_now() + timedelta(days=2)
    monkeypatch.setattr(envelope, "utc_now", lambda: later)
    ok, detail = loop.cycle(app)
    assert not ok
    assert "kintsugi cycle show" in detail


def test_a_cycle_that_stands_is_named_when_another_agent_began_one_since(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    leadership = Leadership(app)
    Leader(app, Fixed(), leadership).tick()
    say(app, started(alias="other"))
    leadership.resign()
    later = utc_now() + timedelta(days=2)
    monkeypatch.setattr(envelope, "utc_now", lambda: later)
    ok, detail = loop.cycle(app)
    assert not ok
    assert "cycle 1 of agent needs train next, for 172" in detail


def test_a_canary_may_be_watched_for_days(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with App(settings_of(tmp_path / "home")) as app:
        once_round(app)
        later = utc_now() + timedelta(days=2)
        monkeypatch.setattr(envelope, "utc_now", lambda: later)
        ok, detail = loop.cycle(app)
    assert ok
    assert "needs watch next" in detail


def test_a_home_that_cannot_be_written_is_found_by_writing(tmp_path: Path) -> None:
    with App(Settings(home=tmp_path)) as app:
        assert machine.home(app)[0]
    assert not list(tmp_path.glob(".doctor*"))


def test_a_disk_that_refuses_is_named_with_what_to_do(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with App(Settings(home=tmp_path)) as app:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
        try:
            ok, detail = machine.home(app)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not ok
    assert str(tmp_path) in detail
    assert "File too large" in detail
    assert "free at least 1 GiB" in detail


def test_a_receiver_that_would_refuse_spans_is_told(tmp_path: Path) -> None:
    with receiving() as receiver:
        settings = Settings(home=tmp_path, tracing=Tracing(endpoint=receiver.url))
        with App(settings) as app:
            assert tracing.tracing(app) == (True, f"{receiver.url} takes spans")
            assert not receiver.spans
            receiver.statuses = [401]
            ok, detail = tracing.tracing(app)
            assert not ok
            assert "answers 401" in detail
            assert "tracing.headers" in detail
    with App(settings) as app:
        assert "cannot be reached" in failed(app)["tracing"]
