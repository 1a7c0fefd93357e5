"""What the attempts of a job leave in its folder, whoever runs them (runner.py).

    attempts/N.pid      its process group
    attempts/N.out      its stdout: heartbeats, updates, last its outcome
    attempts/N.err      its stderr
    attempts/N.code     its exit code, written by the shell around it
    attempts/N.before   how long the journal was when it began; written first
    attempts/N.stop     that it was told to stop, and why

Whether an attempt still runs is for its runner to say; everything else is read here. Times are
those of the files, so they are told by one clock.
"""

import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from daemon.jobs.runner import JOURNAL, OUT, SPEC, Ended, Job, Running, result_of

SHELL: Final = (
    'echo $$ > "$1.pid" && { trap : TERM; name=$1; shift; "$@"; echo $? > "$name.code"; }'
)
"""Of an attempt's files (without the end) and a command. It outlives the learner whatever kills
that, and tells how it ended. Of SIGTERM it leaves the decision to the learner."""

_TAIL: Final = 1 << 16
"""Bytes from the end of a file in which its last lines are."""
_ROOM: Final = 1 << 20
"""Bytes without which a disk counts as full."""
_MOST_COMPLAINT: Final = 300


class JobFolder:
    """The folder of a job."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def arguments(self) -> tuple[str, ...]:
        """Of the program that runs the job."""
        return (str(self.path / SPEC), "--out", str(self.path / OUT))

    def attempts(self) -> list[Path]:
        """Their files without the end, in order."""
        numbers = sorted(int(path.stem) for path in self._attempts.glob("*.before"))
        return [self._attempts / str(number) for number in numbers]

    def prepare(self, job: Job) -> None:
        """Make the folder. Raises OSError."""
        self._attempts.mkdir(parents=True, exist_ok=True)
        path = self.path / SPEC
        if path.exists():
            return
        # Whole or not at all; written once.
        unfinished = path.with_name(f"tmp-{path.name}")
        unfinished.write_text(job.spec.model_dump_json(indent=1))
        unfinished.replace(path)

    def begin(self, number: int) -> Path:
        """The files of an attempt that begins now. Raises OSError."""
        name = self._attempts / str(number)
        name.with_suffix(".before").write_text(str(_size(self.path / OUT / JOURNAL)))
        return name

    def stop(self, attempt: Path, reason: str) -> bool:
        """Note that an attempt is told to stop; False where it was told before."""
        note = told(attempt)
        if note.exists():
            return False
        # A full disk may take the file and not the words: it is stopped all the same.
        with suppress(OSError):
            note.write_text(reason)
        return True

    def running(self, attempts: Sequence[Path]) -> Running:
        """While the last of them runs."""
        said = max(changed(attempts[-1].with_suffix(end)) for end in (".before", ".out"))
        return Running(len(attempts), _seconds(attempts, running=True), time.time() - said)

    def ended(
        self, attempts: Sequence[Path], code: int | None = None, complaint: str = ""
    ) -> Ended:
        """Once the last of them is over; `code` and `complaint` where its files do not tell."""
        last = attempts[-1]
        own = number_in(last.with_suffix(".code"))
        return Ended(
            attempts=len(attempts),
            barren=self._barren(attempts),
            seconds=_seconds(attempts, running=False),
            result=result_of(last_lines(last.with_suffix(".out"))),
            code=code if own is None else own,
            stopped=_text(told(last)),
            complaint=(_complaint(last.with_suffix(".err")) or complaint)[:_MOST_COMPLAINT],
            full=shutil.disk_usage(self.path).free < _ROOM,
        )

    @property
    def _attempts(self) -> Path:
        return self.path / "attempts"

    def _barren(self, attempts: Sequence[Path]) -> int:
        """How many of the last attempts left the journal as it was."""
        length, count = _size(self.path / OUT / JOURNAL), 0
        for name in reversed(attempts):
            # One that was not written, for want of room, began nothing.
            if number_in(name.with_suffix(".before")) not in (None, length):
                break
            count += 1
        return count


def told(attempt: Path) -> Path:
    """The file that says that it was told to stop, and why."""
    return attempt.with_suffix(".stop")


def changed(path: Path) -> float:
    """When a file was written to; 0 where there is none."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def number_in(path: Path) -> int | None:
    """What a file says; None where there is none, or it holds something else."""
    text = (_text(path) or "").strip()
    return int(text) if text.isdecimal() else None


def _seconds(attempts: Sequence[Path], *, running: bool) -> float:
    """That they ran: from the file that began each to the last that it changed."""
    total = 0.0
    for name in attempts:
        ends = [changed(path) for path in name.parent.glob(f"{name.name}.*")]
        total += max(ends) - changed(name.with_suffix(".before"))
    if running:
        total += time.time() - max(changed(p) for p in name.parent.glob(f"{name.name}.*"))
    return total


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
    """The whole lines at the end of a file, without one that was being written."""
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
