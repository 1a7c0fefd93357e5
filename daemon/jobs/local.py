"""Training runs as processes of this machine: `python -m daemon.solver`, each in its own session.

    alive               locked exclusively while the job runs
    HOME/jobs/slots/K   locked exclusively by each running job, to limit their number

The kernel's locks pass to the started process. So they tell which job is alive after any kill, and
no process id is taken for another's. A process started by a dead process is treated like one that
this process started. Not covered: two machines over one folder (ray.py).
"""

import fcntl
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final

from daemon.jobs.attempts import SHELL, Clock, JobFolder, number_in
from daemon.jobs.runner import Absent, Job, JobStartError, State
from daemon.solver.sampling.seals import write_keys
from events import private

GRACE_SECONDS: Final = 15.0
"""Seconds between asking a job to stop and killing it; enough for a step of a small model."""


class LocalRunner:
    """Runs the jobs below one folder as processes of this machine."""

    hands_keys = True

    def __init__(
        self,
        root: Path,
        *,
        command: Sequence[str],
        slots: int = 1,
        grace: float = GRACE_SECONDS,
        mode: int = private.FOLDER,
        clock: Clock = time.monotonic,
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Run `command` with the spec's path and `--out DIR`. `mode` is of the folder `root`,
        `clock` is monotonic, and every job gets `variables`."""
        self._root = root
        self._mode = mode
        self._slots = slots
        self._command = tuple(command)
        self._grace = grace
        self.variables: Final = dict(variables)
        self._clock = clock
        self._children: set[int] = set()

    def folder(self, job: str) -> Path:
        """Return the folder of a job."""
        return self._root / job

    def check(self) -> None:
        """Do nothing: this machine is always there."""

    def start(self, job: Job) -> bool:
        """Begin the next attempt; return False while every slot is taken. Raises JobStartError."""
        self._reap()
        folder = self._folder(job.id)
        try:
            private.make_folder(self._root, self._mode)
            with ExitStack() as held:
                folder.prepare(job)
                alive = held.enter_context(_try_lock(folder.path / "alive"))
                if alive is None:
                    return True
                slot = self._slot(held)
                if slot is None:
                    return False
                self._spawn(folder, (alive, slot), job)
                return True
        except OSError as error:
            where = error.filename or folder.path
            raise JobStartError(
                f"job {job.id} was not started, for {where}: {error.strerror}; it is tried again"
            ) from error

    def state(self, job: str) -> State:
        """Return the state of a job."""
        self._reap()
        folder = self._folder(job)
        attempts = folder.attempts()
        if not attempts:
            return Absent()
        return (
            folder.read_active(attempts) if _is_alive(folder.path) else folder.read_exit(attempts)
        )

    def cancel(self, job: str, reason: str) -> None:
        """Send SIGTERM to the job's process group; after the grace, a call sends SIGKILL."""
        folder = self._folder(job)
        attempts = folder.attempts()
        if not attempts or not _is_alive(folder.path):
            return
        group = number_in(attempts[-1].with_suffix(".pid"))
        if group is None:
            return  # The job is just starting: at the next call its attempt is there.
        waited = folder.measure_stop_delay(attempts[-1])
        if folder.stop(attempts[-1], reason):
            number = signal.SIGTERM
        elif waited < self._grace:
            return
        else:
            number = signal.SIGKILL
        try:
            os.killpg(group, number)
        except ProcessLookupError:
            return  # The job has ended in the meantime.
        finally:
            self._reap()

    def close(self) -> None:
        """Reap children that have ended; other jobs continue."""
        self._reap()

    def _folder(self, job: str) -> JobFolder:
        return JobFolder(self.folder(job), self._clock)

    def _slot(self, held: ExitStack) -> int | None:
        folder = self._root / "slots"
        private.make_folder(folder)
        for number in range(self._slots):
            taken = held.enter_context(_try_lock(folder / str(number)))
            if taken is not None:
                return taken
        return None

    def _spawn(self, folder: JobFolder, locks: Sequence[int], job: Job) -> None:
        name = folder.begin(len(folder.attempts()) + 1, [key.id for key in job.keys])
        # Keys go into an environment variable, which is not written to disk.
        environment = {**self.variables, **job.environment, **write_keys(job.keys)}
        arguments = [*self._command, *folder.arguments]
        # Not subprocess: its object would warn if this process ends before the job.
        with ExitStack() as opened:
            output = [
                opened.enter_context(name.with_suffix(end).open("wb")).fileno()
                for end in (".out", ".err")
            ]
            for lock in locks:
                os.set_inheritable(lock, True)
            child = os.posix_spawn(
                "/bin/sh",
                ["sh", "-c", SHELL, "sh", str(name), *arguments],
                {**os.environ, **environment},
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, output[0], 1),
                    (os.POSIX_SPAWN_DUP2, output[1], 2),
                ],
                setsid=True,
            )
        self._children.add(child)

    def _reap(self) -> None:
        """Reap children that have ended, so that none stays a zombie."""
        for child in list(self._children):
            try:
                done, _ = os.waitpid(child, os.WNOHANG)
            except ChildProcessError:
                done = child  # Another part of this process has already waited for all children.
            if done:
                self._children.discard(child)


@contextmanager
def _try_lock(path: Path) -> Iterator[int | None]:
    """Yield the descriptor of an exclusively locked file; None where another process holds the
    lock. A child started meanwhile keeps the lock after this."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        else:
            yield descriptor
    finally:
        os.close(descriptor)


def _is_alive(folder: Path) -> bool:
    """Return whether the job runs; by a shared lock, so that callers do not block each other."""
    try:
        file = (folder / "alive").open("rb")
    except FileNotFoundError:
        return False
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
