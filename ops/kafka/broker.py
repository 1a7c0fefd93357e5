"""A real Apache Kafka broker of one node (KRaft), for tests, benches and a laptop.

    broker = Broker(Path("/tmp/b"))
    broker.start(); KafkaLog(broker.bootstrap); broker.kill(); broker.start(); broker.stop()

Everything it owns lies in one folder: server.properties, `data`, and broker.log. The ports are
chosen when the folder is made and never change, so clients find the broker after a restart. `kill`
is SIGKILL; `wipe` deletes the data, like an operator's mistake. By default the broker dies with the
process that started it; from the command line it stays:

    python -m ops.kafka.broker start|stop|status [--folder F] [--port P]

`secured=True` adds listeners with TLS, one by SASL and one by certificates, which are made anew
(security.py). Not covered: more than one node.
"""

import base64
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError

from ops.command_line import build_parser
from ops.kafka.jars import BrokerUnavailable, cache, jars, java
from ops.processes import Server, ServerError, find_ports

if TYPE_CHECKING:
    from ops.kafka.security import SecureListeners

_PROPERTIES: Final = """\
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={data}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
log.segment.bytes=16777216
"""


class BrokerError(ServerError):
    """The broker did not start or stop; the text holds the end of its log."""


class Broker(Server):
    """A broker and its folder. Not thread-safe."""

    ERROR = BrokerError
    LOG = "broker.log"

    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        properties: Mapping[str, str] | None = None,
        follow_parent: bool = True,
        secured: bool = False,
    ) -> None:
        super().__init__(folder, url="")
        self.data = self.folder / "data"
        self._config = self.folder / "server.properties"
        self._state = self.folder / "broker.json"
        self._follow_parent = follow_parent
        self.port, self._controller = self._ports(port)
        self.url = self.bootstrap
        self._properties = dict(properties or {})
        self.secured = _make_listeners(self.folder / "security") if secured else None

    @property
    def bootstrap(self) -> str:
        """Return host:port for clients, constant for the life of the folder."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        """Return the broker's process id while it runs, also if another process started it."""
        if self._process is not None:
            return self._process.pid if self._process.poll() is None else None
        pid = _read(self._state).get("pid", 0)
        return pid if pid and _runs(pid, self._config) else None

    def start(self) -> Self:
        """Start the broker and wait until it answers. Raise BrokerUnavailable or BrokerError."""
        if self.pid is None:
            super().start()
            state = {"pid": self.pid, "port": self.port, "controller": self._controller}
            self._state.write_text(json.dumps(state))
        return self

    def build_command(self) -> list[str]:
        """Write the configuration, format an empty data folder, and return the command line."""
        libs, virtual_machine = jars(), java()
        settings = {"data": self.data, "port": self.port, "controller": self._controller}
        more = dict(self._properties)
        if self.secured is not None:
            more |= self.secured.properties(self.bootstrap, f"127.0.0.1:{self._controller}")
        # # If a name has several lines, the last one counts.
        extra = "".join(f"{name}={value}\n" for name, value in more.items())
        self._config.write_text(_PROPERTIES.format(**settings) + extra)
        if not (self.data / "meta.properties").exists():
            self._format(virtual_machine, libs)
        # With only the serial collector and C1, Java starts twice as fast and leaves a core to
        # tests.
        command = [virtual_machine, "-Xms128m", "-Xmx512m", "-XX:+UseSerialGC"]
        command += ["-XX:TieredStopAtLevel=1", f"-Dkafka.logs.dir={self.folder}"]
        command += ["-cp", f"{libs}/*", "kafka.Kafka", str(self._config)]
        setpriv = shutil.which("setpriv")
        # Linux kills the broker when this process ends, even by SIGKILL.
        follow = [setpriv, "--pdeathsig", "KILL"] if self._follow_parent and setpriv else []
        return [*follow, *command]

    def answers(self) -> bool:
        """Return whether an admin client gets an answer. It is asked only if the port accepts."""
        if not _listens(self.port):
            return False
        try:
            admin = KafkaAdminClient(
                bootstrap_servers=self.bootstrap, bootstrap_timeout_ms=5_000,
                request_timeout_ms=5_000,
            )  # fmt: skip
            with closing(admin):
                admin.describe_cluster()
        except KafkaError:
            return False
        return True

    def stop(self) -> None:
        """Shut down cleanly, and send SIGKILL after a time limit."""
        self._signal(signal.SIGTERM, self.STOP_SECONDS)
        if self.pid is not None:
            self.kill()

    def kill(self) -> None:
        """Send SIGKILL; writes that had not reached the page cache are lost."""
        self._signal(signal.SIGKILL, self.STOP_SECONDS)

    def wipe(self) -> None:
        """Stop it and delete its data; the next start makes an empty cluster at this address."""
        self.stop()
        shutil.rmtree(self.data, ignore_errors=True)

    def _ports(self, wanted: int | None) -> tuple[int, int]:
        state = _read(self._state)
        if "port" in state and wanted in (None, state["port"]):
            return state["port"], state["controller"]
        first, second = find_ports(2)
        return wanted or first, second

    def _format(self, virtual_machine: str, libs: Path) -> None:
        # First byte zero: one in 64 random ids starts with "-", which is parsed as an option.
        identity = base64.urlsafe_b64encode(b"\0" + uuid.uuid4().bytes[1:]).decode().rstrip("=")
        # Java expands the glob.
        command = [virtual_machine, "-Xmx256m", "-cp", f"{libs}/*", "kafka.tools.StorageTool"]
        command += ["format", "--standalone", "-t", identity, "-c", str(self._config)]
        if self.secured is not None:
            command += ["--add-scram", self.secured.user]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode != 0:
            raise BrokerError(
                f"formatting {self.data} failed (exit {done.returncode}):\n"
                f"{(done.stdout + done.stderr).strip()[-1500:]}"
            )

    def _signal(self, number: signal.Signals, seconds: float) -> None:
        pid = self.pid
        if pid is None:
            return
        os.kill(pid, number)
        if self._process is not None:
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                return
            self._process = None
            return
        deadline = time.monotonic() + seconds
        while _runs(pid, self._config) and time.monotonic() < deadline:
            time.sleep(0.05)


def _make_listeners(folder: Path) -> "SecureListeners":
    # Import lazily: only secured brokers need certificates.
    from ops.kafka.security import SecureListeners

    return SecureListeners(folder, *find_ports(2))


def _listens(port: int) -> bool:
    """Return whether the port accepts connections. This is cheaper than an admin client."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _read(state: Path) -> dict[str, int]:
    try:
        loaded: dict[str, int] = json.loads(state.read_text())
    except FileNotFoundError:
        return {}
    return loaded


def _runs(pid: int, config: Path) -> bool:
    """Return whether the process is our broker, because its id may have been reused."""
    try:
        return str(config) in Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return False


def main(arguments: list[str] | None = None) -> int:
    """Run the action; return 0 if the broker then runs (or was stopped), else 1."""
    parser = build_parser(__doc__)
    parser.add_argument("action", choices=("start", "stop", "status"))
    parser.add_argument("--folder", type=Path, default=cache() / "run")
    parser.add_argument("--port", type=int, help="the clients' port; a free one by default")
    chosen = parser.parse_args(arguments)
    try:
        broker = Broker(chosen.folder, port=chosen.port, follow_parent=False)
        if chosen.action == "start":
            broker.start()
        elif chosen.action == "stop":
            broker.stop()
    except (BrokerUnavailable, BrokerError) as error:
        print(error, file=sys.stderr)
        return 1
    pid = broker.pid
    print(f"runs on {broker.bootstrap}, process {pid}" if pid else "does not run")
    return 0 if chosen.action == "stop" or pid else 1


if __name__ == "__main__":
    sys.exit(main())
