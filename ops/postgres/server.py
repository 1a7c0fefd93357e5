"""A real PostgreSQL in a folder of its own, for tests and benches.

    with Postgres(Path("/tmp/p")) as server:
        url = server.create_database()      # postgresql+psycopg://..., a fresh one

Uses the newest server that the Debian packages installed, a free port on 127.0.0.1 and a socket in
its folder; other clusters of the machine are not touched. PostgreSQL refuses to run as root, so as
root it runs as the user `postgres` that the package made. `kill` is SIGKILL of the whole server;
`fsync=False` is for tests that kill nothing. Not covered: authentication, replication.
"""

import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Final, Self
from uuid import uuid4

import psycopg

from ops.processes import is_alive

READY_SECONDS: Final = 60
STOP_SECONDS: Final = 30
INSTALLED: Final = Path("/usr/lib/postgresql")
USER: Final = "postgres"


class PostgresUnavailable(Exception):
    """The server is not installed; the text names the package."""


class PostgresError(Exception):
    """The server did not start or stop; the text holds the end of its log."""


def binaries() -> Path:
    """The folder of the newest installed server."""
    versions = [path for path in INSTALLED.glob("*/bin/initdb") if path.parts[-3].isdigit()]
    if versions:
        return max(versions, key=lambda path: int(path.parts[-3])).parent
    on_path = shutil.which("initdb")
    if on_path is None:
        raise PostgresUnavailable(
            f"no PostgreSQL server under {INSTALLED} and no initdb on PATH; install it (Debian: "
            "postgresql)"
        )
    return Path(on_path).resolve().parent


class Postgres:
    """One server and its folder. Not for use from several threads."""

    def __init__(self, folder: Path, *, port: int | None = None, fsync: bool = True) -> None:
        self.folder = folder.resolve()
        self.data = self.folder / "data"
        self.port = port or _free_port()
        self._fsync = fsync
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """SQLAlchemy URL of the maintenance database."""
        return self._url("postgres")

    @property
    def pid(self) -> int | None:
        """The server's process while it runs."""
        running = self._process is not None and self._process.poll() is None
        return self._process.pid if running and self._process else None

    def start(self) -> Self:
        """Start on the data that is there (initdb if there is none); returns when it answers."""
        if self.pid is not None:
            return self
        installed = binaries()
        if not (self.data / "PG_VERSION").exists():
            self._initialise(installed)
        self._process = self._launch(installed)
        try:
            self._wait_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self) -> None:
        """Shut down: break connections off, write a checkpoint (PostgreSQL's `fast`)."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None

    def kill(self) -> None:
        """SIGKILL to the server and its children; the next start recovers from its log."""
        if self._process is None:
            return
        pids = [self._process.pid, *_children(self._process.pid)]
        for pid in pids:
            _kill(pid)
        self._process.wait(STOP_SECONDS)
        # A child may outlive its parent by a moment and would refuse the next start.
        deadline = time.monotonic() + STOP_SECONDS
        while any(is_alive(pid) for pid in pids[1:]) and time.monotonic() < deadline:
            time.sleep(0.02)
        self._process = None

    def restart(self) -> Self:
        """Stop and start on the same data."""
        self.stop()
        return self.start()

    def create_database(self, name: str | None = None, template: str = "template1") -> str:
        """A new database, which is empty or a copy of another to which nobody is connected, and its
        SQLAlchemy URL."""
        name = name or f"kintsugi_{uuid4().hex[:12]}"
        for one in (name, template):
            if not re.fullmatch(r"[a-z][a-z0-9_]{0,62}", one):
                raise ValueError(f"database name {one!r} must match [a-z][a-z0-9_]*")
        with self._connect() as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}".encode())
        return self._url(name)

    def database(self, name: str) -> str:
        """The SQLAlchemy URL of a database, which is made where it is not there."""
        with self._connect() as connection:
            known = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,))
            there = known.fetchone() is not None
        return self._url(name) if there else self.create_database(name)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _url(self, database: str) -> str:
        return f"postgresql+psycopg://{USER}@127.0.0.1:{self.port}/{database}"

    def _connect(self) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(
            host="127.0.0.1",
            port=self.port,
            user=USER,
            dbname="postgres",
            autocommit=True,
            connect_timeout=5,
        )

    def _initialise(self, installed: Path) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0:
            owner = _owner()
            os.chown(self.folder, owner.pw_uid, owner.pw_gid)
        command = [str(installed / "initdb"), "-D", str(self.data), "-U", USER, "-A", "trust"]
        # C: an ORDER BY means the same here as in SQLite, on any machine.
        command += ["-E", "UTF8", "--locale=C", "--no-sync"]
        done = subprocess.run(
            _as_user(command),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            cwd=self.folder,
        )
        if done.returncode != 0:
            raise PostgresError(
                f"initdb in {self.data} failed (exit {done.returncode}); the user {USER} must be "
                f"able to enter every parent folder:\n{(done.stdout + done.stderr)[-1500:]}"
            )

    def _launch(self, installed: Path) -> subprocess.Popen[bytes]:
        command = [str(installed / "postgres"), "-D", str(self.data), "-p", str(self.port)]
        settings = {
            "listen_addresses": "127.0.0.1",
            # A socket's path may have 107 bytes only, a test's folder is longer: TCP alone.
            "unix_socket_directories": "",
            "fsync": "on" if self._fsync else "off",
            "synchronous_commit": "on" if self._fsync else "off",
            "max_connections": "100",
            "shared_buffers": "64MB",
        }
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        with (self.folder / "server.log").open("ab") as log:
            return subprocess.Popen(
                _as_user(command, follow_parent=True),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
            )

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        last: Exception | None = None
        while time.monotonic() < deadline:
            if self.pid is None:
                raise PostgresError(f"the server exited while starting:\n{self._log_end()}")
            try:
                with self._connect() as connection:
                    connection.execute("SELECT 1")
            except psycopg.OperationalError as error:
                last = error
                time.sleep(0.05)
            else:
                return
        raise PostgresError(f"no answer in {READY_SECONDS} s ({last}):\n{self._log_end()}")

    def _log_end(self) -> str:
        log = self.folder / "server.log"
        return log.read_text(errors="replace")[-2000:] if log.exists() else "(it wrote no log)"


def _owner() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(USER)
    except KeyError as error:
        raise PostgresUnavailable(
            f"user {USER!r} does not exist and PostgreSQL refuses to run as root; install the "
            "Debian package postgresql, which makes it"
        ) from error


def _as_user(command: list[str], follow_parent: bool = False) -> list[str]:
    """The command under another user when we are root; Linux may end it together with us."""
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        if os.geteuid() == 0:
            raise PostgresUnavailable(
                "setpriv is not on PATH and PostgreSQL refuses to run as root; install util-linux"
            )
        return command
    options = ["--pdeathsig", "INT"] if follow_parent else []
    if os.geteuid() == 0:
        owner = _owner()
        options += [f"--reuid={owner.pw_uid}", f"--regid={owner.pw_gid}", "--clear-groups"]
    return [setpriv, *options, *command] if options else command


def _children(parent: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])
