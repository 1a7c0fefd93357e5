"""Run the learner in a forked process, which has torch, transformers and peft loaded already.

`python -m daemon.solver` loads them for several seconds each time. A server that
`multiprocessing` starts once per process of pytest loads them before any thread exists, and each
job is a fork of it. Tests of the interpreter's own start run the command line itself.
"""

import ctypes
import importlib
import json
import multiprocessing
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import TracebackType
from typing import Any, Final, Self

import pytest

from daemon.solver.__main__ import main

_CONTEXT: Final = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["pytest", "tests.daemon.solver.forked", "daemon.solver.job", "tests.daemon.solver.letters"]
)
_ROOT: Final = Path(__file__).parents[3]
_DIE_WITH_PARENT: Final = 1
"""PR_SET_PDEATHSIG of prctl(2)."""

Action = Callable[[], object]


@dataclass(frozen=True)
class Done:
    """A job whose process has ended."""

    code: int
    lines: list[dict[str, Any]]
    complaint: str

    @classmethod
    def read(cls, code: int, output: str, complaint: str) -> Self:
        """Read the lines of JSON that a job wrote to stdout."""
        return cls(code, [json.loads(line) for line in output.splitlines()], complaint)

    @property
    def last(self) -> dict[str, Any]:
        return self.lines[-1]

    @property
    def updates(self) -> list[dict[str, Any]]:
        return [line for line in self.lines if "metrics" in line]


class ForkedJob:
    """A running `python -m daemon.solver ARGUMENTS`; leaving the block kills it.

    The process calls `before`, which must be picklable, before it runs the command. `file_size`
    limits the bytes of each file that it writes.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        before: Action | None = None,
        folder: Path | None = None,
        variables: Mapping[str, str] | None = None,
        file_size: int | None = None,
    ) -> None:
        _start_server()
        reader, writer = _CONTEXT.Pipe(duplex=False)
        self._complaint = NamedTemporaryFile("r")  # noqa: SIM115
        setting = (str(folder or Path.cwd()), {**os.environ, **(variables or {})}, file_size)
        self._process = _CONTEXT.Process(
            target=_work,
            args=(list(arguments), before, setting, writer, self._complaint.name),
            daemon=True,
        )
        self._process.start()
        writer.close()
        self.stdout = os.fdopen(os.dup(reader.fileno()))
        reader.close()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def poll(self) -> int | None:
        """Return the exit code, the negative signal of a killed process, or None."""
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> int | None:
        """Kill the process and return its exit code."""
        self._process.kill()
        self._process.join()
        return self.poll()

    def wait(self) -> Done:
        """Return the exit code, what is left of stdout, and stderr, once the process has ended."""
        output = self.stdout.read()
        self._process.join()
        code = self.poll()
        assert code is not None
        return Done.read(code, output, Path(self._complaint.name).read_text())

    def wait_for_update(self) -> None:
        """Return once the job has reported an update."""
        while "metrics" not in self.stdout.readline():
            assert self.poll() is None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
        self._process.close()
        self.stdout.close()
        self._complaint.close()


def run_forked(arguments: Sequence[str], **options: Any) -> Done:
    """Run a job to its end; `options` are those of ForkedJob."""
    with ForkedJob(arguments, **options) as job:
        return job.wait()


def _start_server() -> None:
    """Start the server unless it runs, in the folder where it finds our modules."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(_ROOT)
        forkserver.ensure_running()


def _work(
    arguments: list[str],
    before: Action | None,
    setting: tuple[str, dict[str, str], int | None],
    output: Any,
    complaint: str,
) -> None:
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    folder, variables, file_size = setting
    os.dup2(output.fileno(), sys.stdout.fileno())
    output.close()
    with open(complaint, "ab") as file:
        os.dup2(file.fileno(), sys.stderr.fileno())
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    if file_size is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))
    if before is not None:
        before()
    sys.exit(main(arguments))


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """Inside the block, no file of this process grows beyond this many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def replace_call(where: str, change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace the function at `module:attribute.path` by what `change` makes of it."""
    module, _, attribute = where.partition(":")
    holder: Any = importlib.import_module(module)
    *parents, name = attribute.split(".")
    for parent in parents:
        holder = getattr(holder, parent)
    setattr(holder, name, change(getattr(holder, name)))


def die_at_call(where: str, number: int, when: str) -> None:
    """Make the process kill itself before or after the call with this number of a function."""

    def change(original: Callable[..., Any]) -> Callable[..., Any]:
        calls: list[None] = []

        def deadly(*given: Any, **named: Any) -> Any:
            calls.append(None)
            if len(calls) == number and when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            answer = original(*given, **named)
            if len(calls) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return answer

        return deadly

    replace_call(where, change)
