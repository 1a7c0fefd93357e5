"""Make virtual environments for libraries whose requirements conflict with ours.

    python = interpreter("trackio==0.43.0", "pydantic==2.12.5")

uv makes each once, in KINTSUGI_ISOLATED or .local/isolated.
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
    """Return requirements for the installed versions without local build names such as +cu130."""
    return [f"{name}=={version(name).partition('+')[0]}" for name in names]


def interpreter(*requirements: str) -> Path:
    """Return the Python of an environment, made if missing. Raise InstallError or OSError."""
    digest = hashlib.sha256("\n".join((sys.version, *requirements)).encode()).hexdigest()
    folder = _cache() / f"{requirements[0].replace('==', '-')}-{digest[:12]}"
    make_environment(folder, lambda python: install(python, *requirements))
    return folder / "bin" / "python"


def make_environment(folder: Path, fill: Callable[[str], None]) -> None:
    """Make an environment at `folder` unless there is one, and `fill` it, one process at a time.

    It is made under another name and renamed when it is complete. This breaks the interpreter's
    path in its scripts, so start only modules (`python -m`). Raise InstallError or OSError.
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
    """Install packages, compiled for servers under PYTHONDONTWRITEBYTECODE. Raise InstallError."""
    into = ["--compile-bytecode", "--python", python]
    run_command([sys.executable, "-m", "uv", "pip", "install", "-q", *into, *arguments])


def run_command(command: list[str]) -> str:
    """Return a command's output. Raise InstallError with the end of its errors."""
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
    )
    if done.returncode:
        raise InstallError(f"{' '.join(command[:6])} ... failed: {done.stderr.strip()[-2000:]}")
    return done.stdout


def _cache() -> Path:
    configured = os.environ.get(CACHE_VARIABLE)
    return Path(configured) if configured else Path(__file__).parents[1] / ".local" / "isolated"
