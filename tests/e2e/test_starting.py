"""`kintsugi up` before its broker and its database: a home that is new, and one after a reboot."""

import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest

from ops.faults.loop_processes import role_of
from ops.kafka.broker import Broker
from ops.kafka.jars import BrokerUnavailable
from ops.postgres.server import Postgres, PostgresUnavailable
from ops.processes import find_ports
from tests.conftest import missing
from tests.daemon.commands import run_here, start, succeed
from tests.daemon.gateway.recording_upstream import recording_upstream

pytestmark = [pytest.mark.kafka, pytest.mark.postgres, pytest.mark.long]

PATIENCE = 120.0
HELLO = {"model": "agent", "messages": [{"role": "user", "content": "Hello"}]}


@dataclass
class Services:
    """A broker and a database server that were never started."""

    broker: Broker
    database: Postgres

    def start_broker(self) -> None:
        try:
            self.broker.start()
        except BrokerUnavailable as error:
            missing(str(error))

    def start_database(self) -> str:
        """The URL of the one database, which is made."""
        try:
            return self.database.start().database("kintsugi")
        except PostgresUnavailable as error:
            missing(str(error))
            raise

    def stop(self) -> None:
        self.broker.kill()
        self.database.kill()

    def variables(self, home: Path) -> dict[str, str]:
        database = f"postgresql+psycopg://postgres@127.0.0.1:{self.database.port}/kintsugi"
        return {
            "KINTSUGI_HOME": str(home),
            "KINTSUGI_KAFKA_BOOTSTRAP_SERVERS": self.broker.bootstrap,
            "KINTSUGI_DATABASE_URL": database,
            "KINTSUGI_LOG__DURABILITY": "process",
        }


@pytest.fixture
def services() -> Iterator[Services]:
    # Directly below the temporary folder: pytest's own folders are closed to the user postgres.
    with (
        tempfile.TemporaryDirectory(prefix="kintsugi-broker-") as of_broker,
        tempfile.TemporaryDirectory(prefix="kintsugi-postgres-") as of_database,
    ):
        made = Services(Broker(Path(of_broker)), Postgres(Path(of_database), fsync=False))
        yield made
        made.stop()


@dataclass
class Up:
    """A running `kintsugi up`."""

    process: "subprocess.Popen[str]"
    url: str
    output: Path

    def said(self, pattern: str) -> list[str]:
        """The lines so far in which a pattern is found."""
        lines = self.output.read_text(errors="replace").splitlines()
        return [line for line in lines if re.search(pattern, line)]

    def until(self, holds: Callable[[], object]) -> None:
        """Wait for something that happens soon."""
        deadline = time.monotonic() + PATIENCE
        while not holds():
            assert self.process.poll() is None, self.output.read_text()
            assert time.monotonic() < deadline, self.output.read_text()
            time.sleep(0.05)

    def answers(self) -> bool:
        try:
            return httpx2.get(f"{self.url}/readyz", timeout=5, trust_env=False).is_success
        except httpx2.HTTPError:
            return False

    def serves(self, session: str) -> None:
        """A call is answered and recorded, and its session told to be over."""
        self.until(self.answers)
        headers = {"x-kintsugi-session": session}
        at = f"{self.url}/v1"
        with httpx2.Client(trust_env=False, timeout=60, headers=headers) as client:
            answer = client.post(f"{at}/chat/completions", json=HELLO)
            ended = client.post(f"{at}/sessions/{session}/end", json={})
        assert answer.headers["x-kintsugi-recorded"] == "yes", answer.text
        assert ended.is_success, ended.text

    def role(self, name: str) -> int:
        """The process of a role that runs."""
        pid = self.process.pid
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with suppress(FileNotFoundError):
                words = Path(f"/proc/{child}/cmdline").read_bytes().decode().split("\0")
                if role_of(words) == name:
                    return int(child)
        raise AssertionError(f"{name} does not run: {self.output.read_text()}")


@contextmanager
def up(variables: dict[str, str], engine: str, output: Path) -> Iterator[Up]:
    """Every role of a home; stops, with exit code 0, at the end of the block."""
    (port,) = find_ports(1)
    own = {
        "KINTSUGI_UPSTREAMS": f'[{{"url": "{engine}"}}]',
        "KINTSUGI_GATEWAY__PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }
    with output.open("wb") as file:
        process = start(["up"], {**variables, **own}, stdout=file, stderr=file)
    try:
        yield Up(process, f"http://127.0.0.1:{port}", output)
        process.terminate()
        assert process.wait(PATIENCE) == 0, output.read_text()
    finally:
        # Its roles see that it is gone, and end.
        process.kill()
        process.wait()


def rollouts(variables: dict[str, str]) -> int:
    """How many the tables know."""
    return len(succeed(["rollouts", "ls", "--json"], variables).json)


def test_it_serves_before_broker_and_database_and_the_roles_come_with_them(
    services: Services, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    variables = services.variables(home)
    with recording_upstream() as engine:
        with up(variables, engine.url, tmp_path / "new.log") as new:
            new.serves("first")
            (warning,) = new.said("starting without what is away")
            for address in (services.broker.bootstrap, f"127.0.0.1:{services.database.port}"):
                assert address in warning
            # Tables that nobody made are no reason to stop serving either.
            services.start_database()
            services.start_broker()
            new.until(lambda: new.said("kintsugi: database .* run kintsugi db upgrade"))
            new.until(lambda: new.said("shipping .* to"))
            assert run_here(["db", "upgrade"], variables).code == 0
            new.until(lambda: new.said("1 rollouts"))
            new.until(lambda: new.said("leads from epoch 1"))
            assert rollouts(variables) == 1
            services.database.stop()
            os.kill(new.role("schedule"), signal.SIGTERM)
            new.until(lambda: new.said("schedule ended with 0"))
        services.stop()

        with up(variables, engine.url, tmp_path / "again.log") as again:
            again.serves("second")
            assert len(again.said("starting without what is away")) == 1
            services.start_broker()
            services.start_database()
            again.until(lambda: again.said("1 rollouts"))
            assert rollouts(variables) == 2
            # Nobody was started wrongly, or too early: they waited.
            assert not again.said("ended with")
