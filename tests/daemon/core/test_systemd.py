"""What a service manager hears of real roles, on a socket as systemd has one."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from daemon.core import systemd

ROOT = Path(__file__).parents[3]
PATIENCE = 60.0


class Manager:
    """Whoever started the role."""

    def __init__(self, folder: Path) -> None:
        self.address = str(folder / "notify")
        self._heard = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._heard.bind(self.address)
        self._heard.settimeout(PATIENCE)

    def next(self) -> str:
        return self._heard.recv(100).decode()

    def quiet_for(self, seconds: float) -> bool:
        """Whether nothing is said for so long; what was said before is left out."""
        self._heard.settimeout(0.0)
        try:
            while self._heard.recv(100):
                pass
        except BlockingIOError:
            self._heard.settimeout(seconds)
        try:
            self._heard.recv(100)
        except TimeoutError:
            return True
        finally:
            self._heard.settimeout(PATIENCE)
        return False

    def close(self) -> None:
        self._heard.close()


@pytest.fixture
def manager() -> Iterator[Manager]:
    # Directly below the temporary folder: a socket's path is short.
    with tempfile.TemporaryDirectory(prefix="kintsugi-notify-") as folder:
        made = Manager(Path(folder))
        yield made
        made.close()


@contextmanager
def role(
    manager: Manager, home: Path, *arguments: str, **more: str
) -> Iterator["subprocess.Popen[bytes]"]:
    variables = {name: value for name, value in os.environ.items() if "KINTSUGI" not in name}
    own = {"KINTSUGI_HOME": str(home), "NOTIFY_SOCKET": manager.address, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-m", "daemon", *arguments], env=variables | own | more, cwd=home.parent,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.processes
def test_a_role_says_when_it_is_ready_and_when_it_stops(manager: Manager, tmp_path: Path) -> None:
    with role(manager, tmp_path / "home", "consume") as consume:
        assert manager.next() == "READY=1"
        consume.send_signal(signal.SIGTERM)
        assert manager.next() == "STOPPING=1"
        assert consume.wait(PATIENCE) == 0


@pytest.mark.processes
def test_the_gateway_says_that_its_loop_goes_round_as_long_as_it_does(
    manager: Manager, tmp_path: Path
) -> None:
    upstream = ("--upstream", "http://127.0.0.1:9/v1", "--port", "0")
    with role(manager, tmp_path / "home", "gateway", *upstream, WATCHDOG_USEC="300000") as gateway:
        assert manager.next() == "READY=1"
        assert [manager.next() for _ in range(3)] == ["WATCHDOG=1"] * 3
        gateway.send_signal(signal.SIGSTOP)
        assert manager.quiet_for(1.0)
        gateway.send_signal(signal.SIGCONT)
        assert manager.next() == "WATCHDOG=1"
        gateway.send_signal(signal.SIGTERM)
        while (said := manager.next()) == "WATCHDOG=1":
            pass
        assert said == "STOPPING=1"
        assert gateway.wait(PATIENCE) == 0


def test_without_a_manager_nothing_is_told_and_one_that_is_gone_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    systemd.notify_ready()
    assert not caplog.records
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    systemd.notify_ready()
    assert "gone cannot be told READY=1" in caplog.text


def test_a_manager_may_have_an_abstract_address(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"kintsugi-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(f"\0{name}")
        heard.settimeout(PATIENCE)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
        systemd.notify_ready()
        assert heard.recv(100) == b"READY=1"
