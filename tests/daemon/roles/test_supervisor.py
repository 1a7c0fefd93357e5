"""`kintsugi up`: roles come, are brought back, and go together, over real processes."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from daemon.__main__ import exit_code
from daemon.config.settings import Agent, ConfigurationError, Engine, Settings, Upstream
from daemon.core.start_mark import HEADER, mint, whose
from daemon.roles.supervisor import (
    AlreadyUp,
    NotReady,
    PortInUse,
    Program,
    RoleUsageError,
    Supervisor,
    alone,
    programs,
)
from events.errors import KintsugiError
from ops.processes import is_alive

pytestmark = pytest.mark.processes

PATIENCE = 30.0


def until(holds: Callable[[], bool], patience: float = PATIENCE) -> None:
    """Wait for something that happens soon."""
    deadline = time.monotonic() + patience
    while not holds():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def lines(notes: Path) -> list[list[str]]:
    """What the roles noted: what happened, to whom, in which process."""
    return [line.split() for line in notes.read_text().splitlines()] if notes.exists() else []


def started(notes: Path, name: str) -> list[int]:
    """The processes of a role, in order."""
    return [int(pid) for what, who, pid in lines(notes) if (what, who) == ("started", name)]


def stopped(notes: Path) -> list[str]:
    """The roles that stopped as they should, in order."""
    return [who for what, who, _ in lines(notes) if what == "stopped"]


@contextmanager
def supervising(notes: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A supervisor of three roles that are all up."""
    command = [sys.executable, "-m", "tests.daemon.supervising", str(notes)]
    process = subprocess.Popen(command)
    try:
        until(lambda: all(started(notes, name) for name in ("gateway", "ship", "work")))
        yield process
    finally:
        process.kill()
        process.wait()


def test_a_killed_role_is_started_again_and_the_others_stay(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    with supervising(notes):
        os.kill(started(notes, "work")[0], signal.SIGKILL)
        until(lambda: len(started(notes, "work")) == 2)
        assert len(started(notes, "gateway")) == 1
        assert is_alive(started(notes, "work")[1])


def test_all_stop_when_it_is_told_to_the_gateway_first(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    with supervising(notes) as process:
        process.terminate()
        assert process.wait(PATIENCE) == 0
    assert stopped(notes) == ["gateway", "work", "ship"]


def test_a_kill_of_it_leaves_nobody_behind(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    with supervising(notes) as process:
        process.kill()
        until(lambda: sorted(stopped(notes)) == ["gateway", "ship", "work"])
    until(
        lambda: not any(is_alive(started(notes, name)[0]) for name in ("gateway", "ship", "work"))
    )


def test_a_role_that_was_started_wrongly_stops_everything(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    roles = [
        Program("consume", ("tests.daemon.role_program", str(notes), "consume")),
        Program("work", ("tests.daemon.role_program", str(notes), "work", "2")),
    ]
    with pytest.raises(RoleUsageError, match="work ended with wrong usage"):
        Supervisor(roles).run(threading.Event())
    # It may be stopped before it came so far as to note anything.
    assert set(stopped(notes)) <= {"consume"}
    assert not any(is_alive(pid) for pid in started(notes, "consume"))


def test_a_role_that_never_gets_ready_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daemon.roles.supervisor._READY_SECONDS", 0.5)
    role = Program(
        "gateway", ("tests.daemon.role_program", str(tmp_path / "notes"), "gateway"),
        "http://127.0.0.1:9/readyz",
    )  # fmt: skip
    with pytest.raises(NotReady, match="gateway was not ready"):
        Supervisor([role]).run(threading.Event())


class Answers(BaseHTTPRequestHandler):
    """Somebody who is well, and shows what the server of the test has as `shown`."""

    def do_GET(self) -> None:
        self.send_response(200)
        for name, value in getattr(self.server, "shown", {}).items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def answering(shown: dict[str, str] | None = None) -> Iterator[ThreadingHTTPServer]:
    """A server of somebody else."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.shown = shown or {}  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def supervised(tmp_path: Path, server: ThreadingHTTPServer, **given: str) -> None:
    """An engine that should answer where the server does, for three seconds at most."""
    url = f"http://127.0.0.1:{server.server_address[1]}/health"
    arguments = ("tests.daemon.role_program", str(tmp_path / "notes"), "engine")
    stop = threading.Event()
    timer = threading.Timer(3.0, stop.set)
    timer.start()
    try:
        Supervisor([Program("engine", arguments, url, grace=0.0)], **given).run(stop)
    finally:
        timer.cancel()


def test_who_answers_on_the_port_of_a_role_and_is_of_another_home_is_not_believed(
    tmp_path: Path,
) -> None:
    with answering() as server, pytest.raises(KintsugiError) as caught:
        supervised(tmp_path, server)
    said = str(caught.value)
    assert f"cannot use port {server.server_address[1]}" in said
    assert f"process {os.getpid()} (" in said, "who holds it"
    assert "engine.port" in said, "and what to do"
    assert exit_code(caught.value) == 4
    assert not any(is_alive(pid) for pid in started(tmp_path / "notes", "engine"))


def test_nor_is_what_an_earlier_start_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has its grace, since it may be stopping; here it does not."""
    monkeypatch.setattr("daemon.roles.supervisor._LATE_SECONDS", 0.5)
    left, mine, other = mint(tmp_path), mint(tmp_path), mint(tmp_path / "other")
    with answering({HEADER: left}) as server:
        url = f"http://127.0.0.1:{server.server_address[1]}/health"
        assert [whose(url, mark) for mark in (left, mine, other)] == ["ready", "home", "another"]
        began = time.monotonic()
        with pytest.raises(PortInUse, match="cannot use port"):
            supervised(tmp_path, server, mark=mine)
        assert time.monotonic() - began >= 0.5


def test_a_home_is_run_once(tmp_path: Path) -> None:
    with alone(tmp_path):
        with pytest.raises(AlreadyUp, match=f"process {os.getpid()}") as caught, alone(tmp_path):
            pass
        assert exit_code(caught.value) == 4
        other = tmp_path / "other"
        other.mkdir()
        with alone(other):
            pass
    with alone(tmp_path):
        pass


def test_a_number_that_was_left_in_the_lock_stops_nobody(tmp_path: Path) -> None:
    """Of a process that was killed, or of another one that has its number now."""
    (tmp_path / "up.lock").write_text(f"{os.getppid()}\n")
    with alone(tmp_path):
        assert (tmp_path / "up.lock").read_text() == f"{os.getpid()}\n"


def test_the_roles_of_a_start_show_its_mark(tmp_path: Path) -> None:
    """A gateway as `kintsugi up` starts it: it is believed, and one that was not started so is
    not."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    arguments = (
        "daemon", "gateway", "--home", str(tmp_path), "--port", str(port),
        "--upstream", "http://127.0.0.1:9/v1",
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}/livez"
    stop = threading.Event()
    mark = mint(tmp_path)
    supervisor = Supervisor([Program("gateway", arguments, url)], mark)
    thread = threading.Thread(target=supervisor.run, args=(stop,))
    thread.start()
    try:
        until(lambda: whose(url, mark) == "ready", 4 * PATIENCE)
        assert whose(url, mint(tmp_path)) == "home"
        with pytest.raises(PortInUse, match=r"gateway.port"):
            Supervisor([Program("gateway", arguments, url)], mint(tmp_path / "b")).run(stop)
    finally:
        stop.set()
        thread.join()


def test_without_an_upstream_the_first_agents_checkpoint_is_served(tmp_path: Path) -> None:
    agents = (Agent(alias="shop"), Agent(alias="agent", checkpoint=tmp_path))
    found = programs(Settings(home=tmp_path, agents=agents, engine=Engine(port=8123, slots=16)))
    assert [one.name for one in found] == ["engine", "gateway", "consume", "schedule", "work"]
    assert found[0].arguments[:3] == ("daemon.engine", "--model", str(tmp_path))
    assert found[0].arguments[-2:] == ("--slots", "16")
    for role in (found[1], found[-1]):
        assert role.arguments[-2:] == ("--upstream", "http://127.0.0.1:8123/v1")


def test_with_an_upstream_and_kafka_there_is_a_shipper_and_no_engine(tmp_path: Path) -> None:
    settings = Settings(
        home=tmp_path, upstreams=(Upstream(url="http://127.0.0.1:8000/v1"),),
        kafka_bootstrap_servers="127.0.0.1:9092",
    )  # fmt: skip
    roles = programs(settings, str(tmp_path))
    assert [one.name for one in roles] == ["gateway", "consume", "ship", "schedule", "work"]
    assert str(roles[0].ready).endswith("/livez"), "no role waits for an engine of somebody else"


def test_without_any_engine_there_is_nothing_to_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no engine"):
        programs(Settings(home=tmp_path))
