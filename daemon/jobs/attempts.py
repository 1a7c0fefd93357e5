"""The files of a job's attempts in its folder, whatever runner starts them (runner.py).

    attempts/N.pid      its process group
    attempts/N.out      its stdout: heartbeats, updates, last its outcome
    attempts/N.err      its stderr
    attempts/N.code     its exit code, written by the shell around it
    attempts/N.before   length of the journal at its begin; written first
    attempts/N.keys     ids of the persons' keys handed to it, if any
    attempts/N.stop     the reason for which it was told to stop
    attempts/N.B.seen   observations since the machine was started as B

The runner tells whether an attempt runs. No time comes from the wall clock, which may be set and
differs between machines. An attempt reports its own run time in each heartbeat. An observer adds
the time between two looks by a monotonic clock, which stands still while the machine sleeps. Of a
gap between looks at most `MOST_UNSEEN` seconds count.
"""

import json
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final
from uuid import uuid4

from pydantic import ConfigDict, ValidationError

from daemon.jobs.runner import JOURNAL, OUT, SPEC, Active, Exit, Job, result_of
from events.files import replace_file
from events.messages import StrictModel

SHELL: Final = (
    'echo $$ > "$1.pid" && { trap : TERM; name=$1; shift; "$@"; echo $? > "$name.code"; }'
)
"""Shell script; its arguments are the path of an attempt's files, without suffix, and a command. It
outlives a killed learner and writes its exit code; it leaves SIGTERM to the learner."""

_TAIL: Final = 1 << 16
"""Bytes at the end of a file in which its last lines are looked for."""
_ROOM: Final = 1 << 20
"""A disk with fewer free bytes than this counts as full."""
_MOST_COMPLAINT: Final = 300

MOST_UNSEEN: Final = 30.0
"""Maximum seconds counted between two looks; looks normally come every two seconds."""

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")

Clock = Callable[[], float]
"""Seconds since some moment; monotonic."""


class Observation(StrictModel):
    """Observations of an attempt by all processes of this machine since it started."""

    looked: float
    """Time of the last look, by the machine's clock."""
    ran: float = 0.0
    """Seconds in which the attempt was seen running."""
    silent: float = 0.0
    """Seconds of `ran` since its last output."""
    told: float | None = None
    """Value of `ran` when the attempt was told to stop; None before."""
    size: int = -1
    """Bytes of the attempt's output at the last look."""

    def again(self, now: float, size: int) -> "Observation":
        """Return the observation updated by another look."""
        passed = min(max(0.0, now - self.looked), MOST_UNSEEN)
        silent = self.silent + passed if size == self.size else 0.0
        return Observation(
            looked=now, ran=self.ran + passed, silent=silent, told=self.told, size=size
        )


class _Beat(StrictModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    seconds: float


class _Beats(StrictModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    heartbeat: _Beat


class JobFolder:
    """The folder of a job, with the files of its attempts."""

    def __init__(self, path: Path, clock: Clock = time.monotonic) -> None:
        self.path = path
        self._clock = clock

    @property
    def arguments(self) -> tuple[str, ...]:
        """Command-line arguments for the program that runs the job."""
        return (str(self.path / SPEC), "--out", str(self.path / OUT))

    def attempts(self) -> list[Path]:
        """Return the paths of the attempts' files without their suffixes, in order."""
        numbers = sorted(int(path.stem) for path in self._attempts.glob("*.before"))
        return [self._attempts / str(number) for number in numbers]

    def prepare(self, job: Job) -> None:
        """Create the folder with the job's files. Raises OSError."""
        self._attempts.mkdir(parents=True, exist_ok=True)
        path = self.path / SPEC
        spec = job.spec.model_dump_json(indent=1).encode()
        if path.exists():
            if job.replaces_spec and path.read_bytes() != spec:
                replace_file(path, spec)
            return
        # The spec is written last: where it exists, all other files exist.
        for name, content in job.files.items():
            (self.path / OUT).mkdir(exist_ok=True)
            replace_file(self.path / OUT / name, content)
        replace_file(path, spec)

    def begin(self, number: int, keyids: Sequence[str] = ()) -> Path:
        """Create and return the files of an attempt that begins with these keys. Raises OSError."""
        name = self._attempts / str(number)
        if keyids:
            # Written before the attempt begins, so that every reader of the attempt knows its keys.
            replace_file(name.with_suffix(".keys"), json.dumps(list(keyids)).encode())
        name.with_suffix(".before").write_text(str(_size(self.path / OUT / JOURNAL)))
        return name

    def stop(self, attempt: Path, reason: str) -> bool:
        """Store why an attempt is told to stop; return False if it was already told."""
        note = stop_path(attempt)
        if note.exists():
            return False
        # A full disk may lose the reason, but the attempt is stopped.
        with suppress(OSError):
            note.write_text(reason)
        return True

    def read_active(self, attempts: Sequence[Path]) -> Active:
        """Look at the last attempt, which is running, and return its state."""
        seen = self._look(attempts[-1])
        return Active(len(attempts), _seconds(attempts), seen.silent, _read_keyids(attempts[-1]))

    def read_pending(self, attempts: Sequence[Path]) -> Active:
        """Return the state while the last attempt waits for resources; no time counts."""
        return Active(len(attempts), _seconds(attempts), 0.0)

    def measure_stop_delay(self, attempt: Path) -> float:
        """Look at a stopping attempt; return the seconds that it ran since the first such look."""
        seen = self._look(attempt)
        if seen.told is None:
            seen = seen.model_copy(update={"told": seen.ran})
            _note(attempt, seen)
        assert seen.told is not None
        return seen.ran - seen.told

    def _look(self, attempt: Path) -> Observation:
        now, size = self._clock(), _size(attempt.with_suffix(".out"))
        before = _read_observation(attempt)
        seen = Observation(looked=now, size=size) if before is None else before.again(now, size)
        _note(attempt, seen)
        return seen

    def read_exit(
        self, attempts: Sequence[Path], code: int | None = None, complaint: str = ""
    ) -> Exit:
        """Return how the last attempt ended; `code` and `complaint` replace missing files."""
        last = attempts[-1]
        own = number_in(last.with_suffix(".code"))
        return Exit(
            attempts=len(attempts),
            barren=self._barren(attempts),
            seconds=_seconds(attempts),
            result=result_of(last_lines(last.with_suffix(".out"))),
            code=code if own is None else own,
            stopped=_text(stop_path(last)),
            complaint=(_complaint(last.with_suffix(".err")) or complaint)[:_MOST_COMPLAINT],
            full=shutil.disk_usage(self.path).free < _ROOM,
            keyids=_read_keyids(last),
        )

    @property
    def _attempts(self) -> Path:
        return self.path / "attempts"

    def _barren(self, attempts: Sequence[Path]) -> int:
        """Return how many last attempts left the journal unchanged; ends by a setting do not
        count."""
        length, count = _size(self.path / OUT / JOURNAL), 0
        for name in reversed(attempts):
            # If a full disk lost the file, the attempt did not begin anything.
            if number_in(name.with_suffix(".before")) not in (None, length):
                break
            result = result_of(last_lines(name.with_suffix(".out")))
            count += result is None or result.setting is None
        return count


def _read_keyids(attempt: Path) -> tuple[str, ...]:
    text = _text(attempt.with_suffix(".keys"))
    return () if text is None else tuple(json.loads(text))


def stop_path(attempt: Path) -> Path:
    """Return the path of the file that says why the attempt was told to stop."""
    return attempt.with_suffix(".stop")


def read_mtime(path: Path) -> float:
    """Return the time of a file's last change; 0 without the file."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def number_in(path: Path) -> int | None:
    """Return the number in a file; None if the file is missing or has other content."""
    text = (_text(path) or "").strip()
    return int(text) if text.isdecimal() else None


@cache
def _boot() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return str(uuid4())


_UNWRITTEN: Final[dict[Path, Observation]] = {}
"""Observations that could not be written to the disk; this process continues from them."""


def _read_observation(attempt: Path) -> Observation | None:
    path = _observation_path(attempt)
    if path in _UNWRITTEN:
        return _UNWRITTEN[path]
    text = _text(path)
    try:
        return None if text is None else Observation.model_validate_json(text)
    except ValidationError:
        return None  # A full disk may have cut the file.


def _note(attempt: Path, seen: Observation) -> None:
    path = _observation_path(attempt)
    try:
        replace_file(path, seen.model_dump_json().encode())
    except OSError:
        # Without permission or disk space to write it, the look still counts.
        _UNWRITTEN[path] = seen
    else:
        _UNWRITTEN.pop(path, None)


def _observation_path(attempt: Path) -> Path:
    return attempt.with_name(f"{attempt.name}.{_boot()}.seen")


def _seconds(attempts: Sequence[Path]) -> float:
    """Return the seconds that attempts ran: each by its heartbeat or observation, if longer."""
    return sum(max(_read_heartbeat(name), _ran(name)) for name in attempts)


def _read_heartbeat(attempt: Path) -> float:
    for line in reversed(last_lines(attempt.with_suffix(".out"))):
        if b'"heartbeat"' in line:
            with suppress(ValidationError):  # a line that has no time
                return _Beats.model_validate_json(line).heartbeat.seconds
    return 0.0


def _ran(attempt: Path) -> float:
    seen = _read_observation(attempt)
    return 0.0 if seen is None else seen.ran


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


def last_lines(path: Path) -> list[bytes]:
    """Return the whole lines at the end of a file; skip a last line that is not finished."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, _size(path) - _TAIL))
            return file.read().split(b"\n")[:-1]
    except FileNotFoundError:
        return []


def _complaint(path: Path) -> str:
    lines = [line.decode(errors="replace").strip() for line in last_lines(path)]
    last = next((line for line in reversed(lines) if line), "")
    return last.removeprefix("daemon.solver: ")
