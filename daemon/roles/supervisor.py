"""`kintsugi up`: runs every role of a home from one command, each in a process of its own.

    engine     runs the embedded engine, if no upstream is configured
    gateway    answers the agent's calls
    consume    folds the log into the tables
    ship       copies the home's log to Kafka, if that is configured
    schedule   leads: starts cycles and advances them
    work       closes sessions, runs jobs, stages adapters, judges canaries
    trace      sends spans, if a receiver is configured

Broker and database may be away (startup.py): the gateway serves without them, and the other roles
wait. A process that ends is started again, after a pause that doubles each time and is reset after
a run of a minute. Wrong usage (exit code 2) stops everything with an error. So does another process
on the port of the gateway or the engine: a server there must show this start's mark
(daemon/core/start_mark.py). A process from an earlier start of this home gets time to stop. One
supervisor runs a home at a time. On SIGTERM and SIGINT the gateway stops first, then the others,
then `ship`, then the engine, each within its own grace. A `kill -9` of this process stops them as
well (parent_watch.py). Training jobs go on, and the next `work` adopts them.
"""

import fcntl
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from daemon.config.settings import ConfigurationError
from daemon.core import systemd
from daemon.core.own_engine import LOCK
from daemon.core.start_mark import VARIABLE, holder, whose
from events import private
from events.envelope import new_id
from events.errors import KintsugiError, LogUnavailable

if TYPE_CHECKING:
    from daemon.config.settings import Settings

_LOOK_SECONDS: Final = 0.1
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0
_STEADY_SECONDS: Final = 60.0
_READY_SECONDS: Final = 120.0
_WRONG_USAGE: Final = 2
_LATE_SECONDS: Final = 5.0
"""Seconds beyond its own grace after which a role is killed."""

log = logging.getLogger(__name__)


class NotReady(KintsugiError):
    """A role that the others need did not become ready."""


class PortInUse(LogUnavailable):
    """Another process listens on the port of a role."""


class AlreadyUp(LogUnavailable):
    """Another process runs this home."""


class RoleUsageError(ConfigurationError):
    """A role reported that it was started wrongly."""


@dataclass(frozen=True, slots=True)
class Program:
    """Command line of one role, and how to tell that it is ready."""

    name: str
    arguments: tuple[str, ...]
    """Arguments of `python -m`."""
    ready: str | None = None
    """URL that answers 200 once the others can use the role."""
    grace: float = 30.0
    """Seconds the role may take to stop."""


@dataclass(slots=True)
class _RoleProcess:
    program: Program
    process: "subprocess.Popen[bytes]"
    since: float
    pause: float = _FIRST_PAUSE
    again_at: float | None = field(default=None)
    """When the role is started again; None while it runs."""


def programs(settings: "Settings", home: str | None = None) -> list[Program]:
    """Return the roles of a home in starting order. Raises ConfigurationError without an engine."""
    flags = () if home is None else ("--home", home)
    upstream: tuple[str, ...] = ()
    roles: list[Program] = []
    if not settings.upstreams:
        engine = _engine(settings)
        upstream = ("--upstream", str(engine_of(settings)))
        roles.append(engine)
    # Not /readyz: a remote engine may come up later, and the rest need not wait.
    at, grace = f"{gateway_of(settings)}/livez", settings.gateway.grace_seconds
    gateway = Program("gateway", ("daemon", "gateway", *flags, *upstream), at, grace)
    roles += [gateway, Program("consume", ("daemon", "consume", *flags))]
    if settings.kafka_bootstrap_servers:
        roles.append(Program("ship", ("daemon", "ship", *flags)))
    roles += [
        Program("schedule", ("daemon", "schedule", *flags, *upstream)),
        Program("work", ("daemon", "work", *flags, *upstream)),
    ]
    if settings.tracing.endpoint:
        roles.append(Program("trace", ("daemon", "trace", *flags)))
    return roles


def engine_of(settings: "Settings") -> str | None:
    """Return the URL of the engine that this home runs, or None where the settings name others."""
    return None if settings.upstreams else f"http://127.0.0.1:{settings.engine.port}/v1"


def gateway_of(settings: "Settings") -> str:
    """Return the gateway's URL, without a path."""
    host, port = settings.gateway.host, settings.gateway.port
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _engine(settings: "Settings") -> Program:
    model = settings.engine_checkpoint
    if model is None:
        raise ConfigurationError(
            "there is no engine to answer calls: name one in the setting upstreams, or the "
            "checkpoint of an agent (agents), which the embedded engine then serves"
        )
    port = settings.engine.port
    arguments = ["daemon.engine", "--model", str(model), "--port", str(port)]
    if settings.engine.name:
        arguments += ["--name", settings.engine.name]
    arguments += ["--slots", str(settings.engine.slots)]
    if settings.engine.threads:
        arguments += ["--threads", str(settings.engine.threads)]
    return Program("engine", tuple(arguments), f"http://127.0.0.1:{port}/health")


class Supervisor:
    """Runs the processes of one home."""

    def __init__(self, programs: Sequence[Program], mark: str | None = None) -> None:
        """Set up the processes. `mark` identifies this start (daemon/core/start_mark.py)."""
        self._programs = programs
        self._mark = new_id() if mark is None else mark
        self._running: list[_RoleProcess] = []

    def run(self, stop: threading.Event) -> None:
        """Start everything, keep it running until `stop` is set, then stop it. Raises NotReady,
        PortInUse, and RoleUsageError for a role that reports a wrong start."""
        try:
            for program in self._programs:
                if stop.is_set():
                    return
                self._await_predecessor(program, stop)
                running = _RoleProcess(program, self._start_process(program), time.monotonic())
                self._running.append(running)
                self._await_ready(running, stop)
            systemd.notify_ready()
            log.info("up: %s", ", ".join(program.name for program in self._programs))
            while not stop.wait(_LOOK_SECONDS):
                for running in self._running:
                    self._look_after(running)
        finally:
            self._stop()

    def _await_predecessor(self, program: Program, stop: threading.Event) -> None:
        """Wait for a process of an earlier start to stop within its grace. Raises PortInUse."""
        until = time.monotonic() + program.grace + _LATE_SECONDS
        while program.ready is not None and not stop.is_set():
            owner = whose(program.ready, self._mark)
            if owner == "another" or (owner == "home" and time.monotonic() >= until):
                raise _port_error(program)
            if owner != "home":
                return
            stop.wait(_LOOK_SECONDS)

    def _await_ready(self, running: _RoleProcess, stop: threading.Event) -> None:
        url = running.program.ready
        until = time.monotonic() + _READY_SECONDS
        while url is not None and not stop.is_set():
            owner = whose(url, self._mark)
            if owner == "ready":
                return
            if owner in ("another", "home"):
                raise _port_error(running.program)
            if time.monotonic() >= until:
                raise NotReady(
                    f"{running.program.name} was not ready within {_READY_SECONDS:g} s at {url}; "
                    "see what it said above"
                )
            self._look_after(running)
            stop.wait(_LOOK_SECONDS)

    def _start_process(self, program: Program) -> "subprocess.Popen[bytes]":
        arguments = [sys.executable, "-m", "daemon.roles.parent_watch", *program.arguments]
        # This process notifies the service manager for all of them.
        own = {name: value for name, value in os.environ.items() if name != systemd.SOCKET}
        own[VARIABLE] = self._mark
        # A process group of its own: this process passes on an interrupt at the terminal.
        return subprocess.Popen(arguments, stdin=subprocess.PIPE, process_group=0, env=own)

    def _look_after(self, running: _RoleProcess) -> None:
        now = time.monotonic()
        if running.again_at is not None:
            if now >= running.again_at:
                running.process, running.since = self._start_process(running.program), now
                running.again_at = None
            return
        code = running.process.poll()
        if code is None:
            return
        _let_go(running.process)
        name = running.program.name
        if running.program.ready and whose(running.program.ready, self._mark) == "another":
            # Another process took its port while it was away; no client may be sent there.
            raise _port_error(running.program)
        if code == _WRONG_USAGE:
            raise RoleUsageError(f"{name} ended with wrong usage, see what it said; correct that")
        if now - running.since >= _STEADY_SECONDS:
            running.pause = _FIRST_PAUSE
        log.warning("%s ended with %s; started again in %.1f s", name, code, running.pause)
        running.again_at = now + running.pause
        running.pause = min(2 * running.pause, _LONGEST_PAUSE)

    def _stop(self) -> None:
        """Stop all roles in turns: the engine after the gateway, `ship` after the last events."""
        for turn in sorted({_turn(role) for role in self._running}):
            ending = [role for role in self._running if _turn(role) == turn]
            for running in ending:
                if running.process.poll() is None:
                    running.process.terminate()
            for running in ending:
                self._await_end(running)

    def _await_end(self, running: _RoleProcess) -> None:
        process = running.process
        try:
            process.wait(running.program.grace + _LATE_SECONDS)
        except subprocess.TimeoutExpired:
            log.warning("%s did not stop in its time and is killed", running.program.name)
            process.kill()
            process.wait()
        _let_go(process)


_STOPS: Final = {"gateway": 0, "ship": 2, "engine": 3}
"""Role -> turn in which it is stopped, lowest first; other roles have turn 1."""


def _turn(running: _RoleProcess) -> int:
    return _STOPS.get(running.program.name, 1)


def _let_go(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdin is not None, "it was given one"
    process.stdin.close()


def _port_error(program: Program) -> PortInUse:
    assert program.ready is not None, "it was asked there"
    port = urlsplit(program.ready).port or 80
    return PortInUse(
        f"{program.name} of this home cannot use port {port}: {holder(port)} answers at "
        f"{program.ready}, which this start did not begin; stop it, or set {program.name}.port to "
        "one that is free"
    )


@contextmanager
def alone(home: Path, engine: str | None = None) -> Iterator[None]:
    """Hold the lock of a home inside the block; the kernel releases it with the process. Its file
    has the URL of the home's own engine, if any. Raises AlreadyUp."""
    path = home / LOCK
    with open(path, "a+", opener=private.opener) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.seek(0)
            number = lock.readline().strip() or "unknown"
            raise AlreadyUp(
                f"home {home} is run by process {number} already; stop that one, or name another "
                "home with --home or KINTSUGI_HOME"
            ) from error
        lock.truncate(0)
        lock.write("".join(f"{line}\n" for line in (os.getpid(), engine) if line is not None))
        lock.flush()
        yield
