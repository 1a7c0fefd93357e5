"""Build Go programs that tests need, from the Go module proxy, if they are not on PATH.

    place = program("helm", "v3.19.4", lambda folder: install(MODULE, folder))

Each version is kept in its own folder of .local/go.
"""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parents[1] / ".local" / "go"
BUILD_SECONDS: Final = 1800
_GO: Final = "/usr/local/go/bin"
"""Folder of Go's own archive, which is not on PATH by default."""


class ProgramUnavailable(Exception):
    """A program is missing and cannot be built; the text names the remedy."""


def program(name: str, version: str, build: Callable[[Path], None], folder: Path = FOLDER) -> Path:
    """Return a program's path; if missing, one process builds it. Raise ProgramUnavailable."""
    path = shutil.which(name)
    if path is not None:
        return Path(path)
    place = folder / version / name
    if place.exists():
        return place
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            build(place.parent)
    return place


def install(module: str, folder: Path) -> None:
    """Build the program of a module `path@version` into `folder`. Raise ProgramUnavailable."""
    step(["go", "install", module], folder, GOBIN=str(folder))


def step(command: list[str], folder: Path, **variables: str) -> None:
    """Run one build command in `folder`. Raise ProgramUnavailable if it fails."""
    path = f"{os.environ.get('PATH', '')}:{_GO}"
    if shutil.which("go", path=path) is None:
        raise ProgramUnavailable(
            f"{command[-1]} is to be built, and Go is not on PATH; install it (https://go.dev)"
        )
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        command, env=os.environ | {"PATH": path} | variables, cwd=folder, capture_output=True,
        text=True, timeout=BUILD_SECONDS, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise ProgramUnavailable(
            f"{' '.join(command)} failed (exit {done.returncode}); put what it builds on PATH, or "
            f"configure GOPROXY:\n{done.stderr.strip()[-1500:]}"
        )
