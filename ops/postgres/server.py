"""A real PostgreSQL in its own folder, for tests and benches.

    with Postgres(Path("/tmp/p")) as server:
        url = server.create_database()      # postgresql+psycopg://..., a fresh one

Uses the newest server of the Debian packages on a free port of 127.0.0.1; other clusters are not
touched. Root runs it as the user `postgres`, since PostgreSQL refuses root. `kill` sends SIGKILL to
the whole server. Use `fsync=False` only without kills. Not covered: authentication, replication.
"""

import os
import pwd
import re
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Final
from uuid import uuid4

import psycopg

from ops.processes import Server, ServerError, find_ports, is_alive, list_children

INSTALLED: Final = Path("/usr/lib/postgresql")
USER: Final = "postgres"


class PostgresUnavailable(Exception):
    """The server is not installed; the text names the package."""


class PostgresError(ServerError):
    """The server did not start or stop; the text holds the end of its log."""


def binaries() -> Path:
    """Return the folder of the newest installed server."""
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


class Postgres(Server):
    """A server and its folder. Not thread-safe."""

    ERROR = PostgresError
    STOP_SIGNAL = signal.SIGINT
    """PostgreSQL's `fast` stop: closes connections and writes a checkpoint."""

    def __init__(self, folder: Path, *, port: int | None = None, fsync: bool = True) -> None:
        self.port = port or find_ports(1)[0]
        super().__init__(folder, self._url("postgres"))
        self.data = self.folder / "data"
        self._fsync = fsync

    def build_command(self) -> list[str]:
        """Return the command line, after initdb if needed. Raise PostgresUnavailable or
        PostgresError."""
        installed = binaries()
        if not (self.data / "PG_VERSION").exists():
            self._initialise(installed)
        command = [str(installed / "postgres"), "-D", str(self.data), "-p", str(self.port)]
        settings = {
            "listen_addresses": "127.0.0.1",
            # TCP only: a socket's path has at most 107 bytes, but a test's folder is longer.
            "unix_socket_directories": "",
            "fsync": "on" if self._fsync else "off",
            "synchronous_commit": "on" if self._fsync else "off",
            "max_connections": "100",
            "shared_buffers": "64MB",
        }
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        return _as_user(command, follow_parent=True)

    def answers(self) -> bool:
        """Return whether it accepts connections."""
        try:
            self._connect().close()
        except psycopg.OperationalError:
            return False
        return True

    def kill(self) -> None:
        """Send SIGKILL to the server and its children; the next start recovers from its log."""
        if self._process is None:
            return
        pids = [self._process.pid, *list_children(self._process.pid)]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(self.STOP_SECONDS)
        # A child may briefly outlive its parent and would block the next start.
        deadline = time.monotonic() + self.STOP_SECONDS
        while any(is_alive(pid) for pid in pids[1:]) and time.monotonic() < deadline:
            time.sleep(0.02)
        self._process = None

    def create_database(self, name: str | None = None, template: str = "template1") -> str:
        """Create a database from `template`, which must be unused; return its SQLAlchemy URL."""
        name = name or f"kintsugi_{uuid4().hex[:12]}"
        for one in (name, template):
            if not re.fullmatch(r"[a-z][a-z0-9_]{0,62}", one):
                raise ValueError(f"database name {one!r} must match [a-z][a-z0-9_]*")
        with self._connect() as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}".encode())
        return self._url(name)

    def drop_database(self, url: str) -> None:
        """Delete the database of a URL that `create_database` returned, and end its connections."""
        name = url.rpartition("/")[2]
        with self._connect() as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())

    def database(self, name: str) -> str:
        """Return the SQLAlchemy URL of a database; create it if it is missing."""
        with self._connect() as connection:
            known = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,))
            there = known.fetchone() is not None
        return self._url(name) if there else self.create_database(name)

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
        # Locale C: ORDER BY sorts as in SQLite, on any machine.
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


def _owner() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(USER)
    except KeyError as error:
        raise PostgresUnavailable(
            f"user {USER!r} does not exist and PostgreSQL refuses to run as root; install the "
            "Debian package postgresql, which makes it"
        ) from error


def _as_user(command: list[str], follow_parent: bool = False) -> list[str]:
    """Return a command that runs as `postgres` if we are root; `follow_parent` ends it with us."""
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
