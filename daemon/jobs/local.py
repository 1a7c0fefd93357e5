"""Training runs as processes of this machine: `python -m daemon.solver`, in a session of their own.

    alive               held alone by whatever runs the job, and free when that is dead
    attempts/N.pid      its process group
    attempts/N.out      its stdout: heartbeats, updates, last its outcome
    attempts/N.err      its stderr
    attempts/N.code     its exit code, written by the shell around it
    attempts/N.before   how long the journal was when it began
    attempts/N.stop     that it was told to stop, and why
    HOME/jobs/slots/K   held alone by each running job: so many may run at once

The locks are the kernel's and pass to the process that is started: they tell who is alive whoever
was killed in the meantime, and no number of a process is taken for another's. A process that was
started by one that died is as good as an own one. Not covered: two machines over one folder.
"""

import fcntl
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from daemon.jobs.runner import (
    JOURNAL,
    OUT,
    SPEC,
    Absent,
    Ended,
    Job,
    JobNotStarted,
    Running,
    State,
    result_of,
)

if TYPE_CHECKING:
    from daemon.settings import Settings

LEARNER: Final = (sys.executable, "-m", "daemon.solver")
TRIAL: Final = (sys.executable, "-m", "daemon.serving.trial")

GRACE_SECONDS: Final = 15.0
"""Between asking a job to stop and killing it: a step of a small model ends in that time."""

_SHELL: Final = (
    'echo $$ > "$1.pid" && { trap : TERM; name=$1; shift; "$@"; echo $? > "$name.code"; }'
)
"""It outlives the learner whatever kills that, and tells how it ended. Of SIGTERM it leaves the
decision to the learner."""
_TAIL: Final = 1 << 16
"""Bytes from the end of a file in which its last lines are."""
_ROOM: Final = 1 << 20
"""Bytes without which a disk counts as full."""
_MOST_COMPLAINT: Final = 300


class LocalRunner:
    """Jobs below one folder."""

    def __init__(
        self, root: Path, *, slots: int = 1, command: Sequence[str] = LEARNER,
        grace: float = GRACE_SECONDS,
    ) -> None:  # fmt: skip
        """`command` is given the spec's path and `--out DIR`."""
        self._root = root
        self._slots = slots
        self._command = tuple(command)
        self._grace = grace
        self._children: set[int] = set()
        """Processes that this one has to take note of when they end."""

    def folder(self, job: str) -> Path:
        """The folder of a job."""
        return self._root / job

    def start(self, job: Job) -> bool:
        """Begin the next attempt; False while every slot is taken. Raises JobNotStarted."""
        self._reap()
        folder = self.folder(job.id)
        try:
            with ExitStack() as held:
                (folder / "attempts").mkdir(parents=True, exist_ok=True)
                alive = held.enter_context(_locked(folder / "alive"))
                if alive is None:
                    return True
                slot = self._slot(held)
                if slot is None:
                    return False
                _write_spec(folder / SPEC, job)
                self._spawn(folder, (alive, slot))
                return True
        except OSError as error:
            where = error.filename or folder
            raise JobNotStarted(
                f"job {job.id} was not started, for {where}: {error.strerror}; it is tried again"
            ) from error

    def state(self, job: str) -> State:
        """How a job is doing."""
        self._reap()
        folder = self.folder(job)
        attempts = _attempts(folder)
        if not attempts:
            return Absent()
        last = attempts[-1]
        if _is_alive(folder):
            said = max(_changed(last.with_suffix(end)) for end in (".before", ".out"))
            return Running(len(attempts), _seconds(attempts, running=True), time.time() - said)
        return Ended(
            attempts=len(attempts),
            barren=_barren(folder, attempts),
            seconds=_seconds(attempts, running=False),
            result=result_of(_last_lines(last.with_suffix(".out"))),
            code=_number(last.with_suffix(".code")),
            stopped=_text(last.with_suffix(".stop")),
            complaint=_complaint(last.with_suffix(".err")),
            full=shutil.disk_usage(folder).free < _ROOM,
        )

    def cancel(self, job: str, reason: str) -> None:
        """SIGTERM; when asked again after the grace, SIGKILL, to the whole group."""
        folder = self.folder(job)
        attempts = _attempts(folder)
        if not attempts or not _is_alive(folder):
            return
        group, told = _number(attempts[-1].with_suffix(".pid")), attempts[-1].with_suffix(".stop")
        if group is None:
            return  # It is being started: the next time it has one.
        if told.exists():
            if time.time() - _changed(told) < self._grace:
                return
            number = signal.SIGKILL
        else:
            told.write_text(reason)
            number = signal.SIGTERM
        try:
            os.killpg(group, number)
        except ProcessLookupError:
            return  # It ended meanwhile.
        finally:
            self._reap()

    def close(self) -> None:
        """Take note of what has ended; the others go on."""
        self._reap()

    def _slot(self, held: ExitStack) -> int | None:
        """A free one, held; None where there is none."""
        folder = self._root / "slots"
        folder.mkdir(exist_ok=True)
        for number in range(self._slots):
            taken = held.enter_context(_locked(folder / str(number)))
            if taken is not None:
                return taken
        return None

    def _spawn(self, folder: Path, locks: Sequence[int]) -> None:
        """Start an attempt that holds these locks."""
        name = folder / "attempts" / str(len(_attempts(folder)) + 1)
        name.with_suffix(".before").write_text(str(_size(folder / OUT / JOURNAL)))
        arguments = [*self._command, str(folder / SPEC), "--out", str(folder / OUT)]
        # Not subprocess: its object would warn when this process ends before the job.
        with ExitStack() as opened:
            output = [
                opened.enter_context(name.with_suffix(end).open("wb")).fileno()
                for end in (".out", ".err")
            ]
            for lock in locks:
                os.set_inheritable(lock, True)
            child = os.posix_spawn(
                "/bin/sh",
                ["sh", "-c", _SHELL, "sh", str(name), *arguments],
                os.environ,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, output[0], 1),
                    (os.POSIX_SPAWN_DUP2, output[1], 2),
                ],
                setsid=True,
            )
        self._children.add(child)

    def _reap(self) -> None:
        """Take note of children that have ended, so that none stays a zombie."""
        for child in list(self._children):
            try:
                done, _ = os.waitpid(child, os.WNOHANG)
            except ChildProcessError:
                done = child  # Whoever waits for every child of this process was first.
            if done:
                self._children.discard(child)


def jobs_of(settings: "Settings") -> LocalRunner:
    """Who trains, in a home."""
    return LocalRunner(settings.home / "jobs", slots=settings.jobs.slots)


def trials_of(settings: "Settings") -> LocalRunner:
    """Who plays candidates beside incumbents, in a home."""
    return LocalRunner(settings.home / "trials", slots=settings.jobs.slots, command=TRIAL)


@contextmanager
def _locked(path: Path) -> Iterator[int | None]:
    """The descriptor of a file that is held alone; None where somebody else holds it. What was
    started meanwhile holds it after this has ended."""
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
    """Whether something runs the job. Shared, so that two who ask do not see each other."""
    with (folder / "alive").open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _write_spec(path: Path, job: Job) -> None:
    """Whole or not at all; written once."""
    if path.exists():
        return
    unfinished = path.with_name(f"tmp-{path.name}")
    unfinished.write_text(job.spec.model_dump_json(indent=1))
    unfinished.replace(path)


def _attempts(folder: Path) -> list[Path]:
    """Their files without the end, in order."""
    numbers = sorted(int(path.stem) for path in (folder / "attempts").glob("*.before"))
    return [folder / "attempts" / str(number) for number in numbers]


def _seconds(attempts: Sequence[Path], *, running: bool) -> float:
    """That they ran: from the file that began each to the last that it changed."""
    total = 0.0
    for name in attempts:
        ends = [_changed(path) for path in name.parent.glob(f"{name.name}.*")]
        total += max(ends) - _changed(name.with_suffix(".before"))
    if running:
        total += time.time() - max(_changed(p) for p in name.parent.glob(f"{name.name}.*"))
    return total


def _barren(folder: Path, attempts: Sequence[Path]) -> int:
    """How many of the last attempts left the journal as it was."""
    length, count = _size(folder / OUT / JOURNAL), 0
    for name in reversed(attempts):
        before = _number(name.with_suffix(".before")) or 0
        if before != length:
            break
        count += 1
    return count


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _text(path: Path) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None


def _number(path: Path) -> int | None:
    text = (_text(path) or "").strip()
    return int(text) if text.isdecimal() else None


def _last_lines(path: Path) -> list[bytes]:
    """The whole lines at the end of a file, without one that was being written."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, _size(path) - _TAIL))
            return file.read().split(b"\n")[:-1]
    except FileNotFoundError:
        return []


def _complaint(path: Path) -> str:
    lines = [line.decode(errors="replace").strip() for line in _last_lines(path)]
    last = next((line for line in reversed(lines) if line), "")
    return last.removeprefix("daemon.solver: ")[:_MOST_COMPLAINT]
