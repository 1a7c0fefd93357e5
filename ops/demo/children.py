"""Programs that the demo starts and restarts, and that end with it (daemon/roles/parent_watch.py).

with Children(place, PROGRAMS) as children:
    while ...: children.look_after()
end_jobs(settings)        jobs and trials outlive the programs
"""

import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from daemon.jobs.local import LocalRunner
from daemon.jobs.runner import Active
from events.errors import KintsugiError
from ops.demo.owned_process import launch, let_go
from ops.demo.place import Place

if TYPE_CHECKING:
    from daemon.config.settings import Settings

Programs = Mapping[str, Sequence[str]]
"""Name -> arguments of `python -m`, in starting order."""

CROWD: Final = ("ops.demo.crowd", "{home}")
PROGRAMS: Final[Programs] = {"up": ("daemon", "up"), "crowd": CROWD}
_PAUSE_SECONDS: Final = 1.0
_MOST_IN_A_ROW: Final = 15
_STEADY_SECONDS: Final = 20.0
_STOP_SECONDS: Final = 60.0
_JOB_LOOK_SECONDS: Final = 0.2


class WillNotRun(KintsugiError):
    """A program ended too often in a row, so it is not restarted again."""


@dataclass(slots=True)
class _Child:
    process: "subprocess.Popen[bytes]"
    since: float
    in_a_row: int = 0


class Children:
    """The running programs of a demo's home."""

    def __init__(self, place: Place, programs: Programs) -> None:
        self._place = place
        self._programs = programs
        self._children: dict[str, _Child] = {}

    def __enter__(self) -> Self:
        for name in self._programs:
            self._children[name] = _Child(self._start(name), time.monotonic())
        return self

    def __exit__(self, *_: object) -> None:
        """End the last program first; else customers would wait for a gateway that is gone."""
        for child in reversed(self._children.values()):
            process = child.process
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            let_go(process)

    def look_after(self) -> list[str]:
        """Restart the programs that have ended; return their names. Raise WillNotRun."""
        ended = []
        for name, child in self._children.items():
            if child.process.poll() is None:
                continue
            now = time.monotonic()
            child.in_a_row = 0 if now - child.since >= _STEADY_SECONDS else child.in_a_row + 1
            if child.in_a_row >= _MOST_IN_A_ROW:
                raise WillNotRun(
                    f"{name} ended {child.in_a_row} times in a row; see "
                    f"{self._place.home / name}.log, or begin anew with --fresh"
                )
            let_go(child.process)
            time.sleep(_PAUSE_SECONDS)
            child.process, child.since = self._start(name), time.monotonic()
            ended.append(name)
        return ended

    def _start(self, name: str) -> "subprocess.Popen[bytes]":
        arguments = [argument.format(home=self._place.home) for argument in self._programs[name]]
        with (self._place.home / f"{name}.log").open("ab") as output:
            # A process group of its own, because this process itself passes an interrupt on.
            return launch(arguments, self._place, output, output, process_group=0)


def end_jobs(settings: "Settings") -> int:
    """Stop the running jobs and trials of a home, which outlive the role `work`; return their
    number. The next `work` continues them."""
    ended = 0
    for root in (settings.home / "jobs", settings.home / "trials"):
        for folder in sorted(root.glob("*/attempts")):
            ended += _end_job(LocalRunner(root, command=()), folder.parent.name)
    return ended


def _end_job(runner: LocalRunner, job: str) -> bool:
    """Stop a job; return whether it ran."""
    ran = False
    while isinstance(runner.state(job), Active):
        ran = True
        # The first call asks it to stop; after its grace it is killed.
        runner.cancel(job, "everything of its place was stopped")
        time.sleep(_JOB_LOOK_SECONDS)
    return ran
