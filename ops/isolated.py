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
from importlib.metadata import version
from pathlib import Path
from typing import Final

CACHE_VARIABLE: Final = "KINTSUGI_ISOLATED"
INSTALL_SECONDS: Final = 1800


class NotInstalled(Exception):
    """An environment could not be made; the text says why."""


def ours(*names: str) -> list[str]:
    """Requirements for the versions that this process runs with.

    +cu130 and the like name a build; the index has them under the plain version.
    """
    return [f"{name}=={version(name).partition('+')[0]}" for name in names]


def interpreter(*requirements: str) -> Path:
    """The Python of an environment that has these, made now if it is not there.

    Raises NotInstalled, OSError.
    """
    digest = hashlib.sha256("\n".join((sys.version, *requirements)).encode()).hexdigest()
    folder = _cache() / f"{requirements[0].replace('==', '-')}-{digest[:12]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(folder.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _install(folder, requirements)
    return folder / "bin" / "python"


def _cache() -> Path:
    configured = os.environ.get(CACHE_VARIABLE)
    return Path(configured) if configured else Path(__file__).parents[1] / ".local" / "isolated"


def _install(folder: Path, requirements: tuple[str, ...]) -> None:
    # Its scripts name the interpreter by a path that the rename breaks; nothing here runs them.
    unfinished = folder.with_name(folder.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    _uv("venv", "--quiet", "--python", sys.executable, str(unfinished))
    python = str(unfinished / "bin" / "python")
    _uv("pip", "install", "--quiet", "--python", python, *requirements)
    unfinished.rename(folder)


def _uv(*arguments: str) -> None:
    command = [sys.executable, "-m", "uv", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
    )
    if done.returncode:
        raise NotInstalled(f"{' '.join(command[:5])} ... failed: {done.stderr.strip()[-2000:]}")
