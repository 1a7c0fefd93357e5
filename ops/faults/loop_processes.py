"""The processes of a whole loop, to be killed one by one or together.

    running = Processes(place, settings, whole=False)
    running.strike("work", "job")     SIGKILL at one instant; returns what was killed
    running.revive()                  starts ended programs again

With `whole`, `kintsugi up` starts and restarts the roles. Jobs and trials are found as the daemon
finds them, since they do not stay child processes.
"""

import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from daemon.config.settings import Settings
from daemon.jobs.runner import Active, JobRunner
from daemon.jobs.runner_factory import jobs_of, trials_of
from daemon.roles.supervisor import Program, programs
from ops.demo.owned_process import launch, let_go
from ops.demo.place import Place
from ops.processes import list_children

UP: Final = "up"
"""Target: `kintsugi up` alone; its roles notice that and end."""
EVERYTHING: Final = "everything"
"""Target: `kintsugi up` and all its roles."""
JOB: Final = "job"
"""Target: the running training job or trial with all its processes."""

_STOP_SECONDS: Final = 90.0
_STOPS: Final = {"gateway": 0, "engine": 2}


class Processes:
    """The processes of one home."""

    def __init__(self, place: Place, settings: Settings, *, whole: bool) -> None:
        self._place = place
        self._whole = whole
        self._runners = jobs_of(settings), trials_of(settings)
        roles = programs(settings)
        self._roles = tuple(program.name for program in roles)
        started = [Program(UP, ("daemon", "up"))] if whole else roles
        self._programs = {program.name: program for program in started}
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self.ended: Counter[str] = Counter()
        """"NAME: EXIT CODE" of programs that ended without a kill -> number."""

    @property
    def targets(self) -> tuple[str, ...]:
        """Return the names that `strike` takes."""
        return (*self._roles, JOB, *((UP, EVERYTHING) if self._whole else ()))

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the programs started here."""
        return tuple(self._programs)

    def find_pids(self) -> dict[str, int]:
        """Return role -> process id, for running roles."""
        names = (*self._roles, UP) if self._whole else self._roles
        pids = {name: next(self._victims(name), None) for name in names}
        return {name: pid for name, pid in pids.items() if pid is not None}

    def start(self) -> None:
        """Start all programs without waiting."""
        for name in self._programs:
            self._launch(name)

    def strike(self, *names: str) -> list[str]:
        """Kill all of `names` at one instant. Return the names that had running processes."""
        victims = {name: list(self._victims(name)) for name in names}
        for pids in victims.values():
            for pid in pids:
                with suppress(ProcessLookupError):
                    # Jobs and roles lead their process groups.
                    os.killpg(pid, signal.SIGKILL)
        struck = {pid for pids in victims.values() for pid in pids}
        for process in self._started.values():
            if process.pid in struck:
                process.wait()
        return [name for name, pids in victims.items() if pids]

    def revive(self) -> None:
        """Start ended programs again."""
        for name, process in self._started.items():
            code = process.poll()
            if code is None:
                continue
            if code != -signal.SIGKILL:
                self.ended[f"{name}: {code}"] += 1
            let_go(process)
            self._launch(name)

    def stop(self) -> dict[str, int]:
        """Stop all programs, the gateway first and the engine last. Return name -> exit code."""
        codes = {}
        for name in sorted(self._started, key=lambda role: _STOPS.get(role, 1)):
            process = self._started[name]
            process.terminate()
            codes[name] = process.wait(_STOP_SECONDS)
            let_go(process)
        return codes

    def kill(self) -> None:
        """Kill all remaining processes, jobs too."""
        self.strike(JOB, *self._roles)
        for process in self._started.values():
            process.kill()
            process.wait()
            let_go(process)

    def _launch(self, name: str) -> None:
        with (self._place.home.parent / f"{name}.log").open("ab") as output:
            arguments = self._programs[name].arguments
            self._started[name] = launch(arguments, self._place, output, output, process_group=0)

    def _victims(self, name: str) -> Iterator[int]:
        if name == JOB:
            for runner in self._runners:
                yield from _find_job_groups(runner)
        elif name == EVERYTHING:
            for role in (UP, *self._roles):
                yield from self._victims(role)
        elif self._whole and name != UP:
            yield from _list_role_processes(self._started[UP].pid, name)
        elif name in self._started and self._started[name].poll() is None:
            yield self._started[name].pid


def _find_job_groups(runner: JobRunner) -> Iterator[int]:
    for folder in runner.folder("").glob("*/attempts"):
        state = runner.state(folder.parent.name)
        if isinstance(state, Active):
            file = folder / f"{state.attempt}.pid"
            number = file.read_text().strip() if file.exists() else ""
            if number:
                yield int(number)


def _list_role_processes(parent: int, role: str) -> Iterator[int]:
    for pid in list_children(parent):
        with suppress(FileNotFoundError, ProcessLookupError):  # it may end while it is looked at
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            if role_of(words) == role:
                yield pid


def role_of(words: list[str]) -> str | None:
    """Return the role in a command line of daemon.roles.parent_watch; None for another program."""
    if "daemon.roles.parent_watch" not in words:
        return None
    module, role = (*words[words.index("daemon.roles.parent_watch") + 1 :], "", "")[:2]
    return "engine" if module == "daemon.engine" else role
