"""Virtual environments of their own, for libraries whose requirements do not fit ours.

    python = interpreter("trackio==0.43.0", "pydantic==2.12.5")

Made once with uv and kept in KINTSUGI_ISOLATED, else in .local/isolated beside the sources; the
folder's name is that of what was installed first and a hash of the rest.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Final

CACHE_VARIABLE: Final = "KINTSUGI_ISOLATED"
INSTALL_SECONDS: Final = 1800


class InstallError(Exception):
    """An environment could not be made; the text says why."""


def ours(*names: str) -> list[str]:
    """Requirements for the versions that this process runs with.

    +cu130 and the like name a build; the index has them under the plain version.
    """
    return [f"{name}=={version(name).partition('+')[0]}" for name in names]


def interpreter(*requirements: str) -> Path:
    """The Python of an environment that has these, made now if it is not there.

    Raises InstallError, OSError.
    """
    digest = hashlib.sha256("\n".join((sys.version, *requirements)).encode()).hexdigest()
    folder = _cache() / f"{requirements[0].replace('==', '-')}-{digest[:12]}"
    make_environment(folder, lambda python: install(python, *requirements))
    return folder / "bin" / "python"


def make_environment(folder: Path, fill: Callable[[str], None]) -> None:
    """An environment at this place, unless one is there: an empty one, then `fill` on its Python.

    It is made beside its place and renamed when whole, by one process at a time. Its scripts name
    the interpreter by a path that the rename breaks: start modules (`python -m`) alone.
    Raises InstallError, OSError.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(folder.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            return
        unfinished = folder.with_name(folder.name + ".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        run_command(
            [sys.executable, "-m", "uv", "venv", "-q", "--python", sys.executable, str(unfinished)]
        )
        fill(str(unfinished / "bin" / "python"))
        unfinished.rename(folder)


def install(python: str, *arguments: str) -> None:
    """Let uv install these into the environment of this Python. Raises InstallError.

    As byte code too: where Python may write none (PYTHONDONTWRITEBYTECODE), each of a server's
    processes would make it anew at every start.
    """
    into = ["--compile-bytecode", "--python", python]
    run_command([sys.executable, "-m", "uv", "pip", "install", "-q", *into, *arguments])


def run_command(command: list[str]) -> str:
    """What the command prints. Raises InstallError with the end of its complaint."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
    )
    if done.returncode:
        raise InstallError(f"{' '.join(command[:6])} ... failed: {done.stderr.strip()[-2000:]}")
    return done.stdout


def _cache() -> Path:
    configured = os.environ.get(CACHE_VARIABLE)
    return Path(configured) if configured else Path(__file__).parents[1] / ".local" / "isolated"
