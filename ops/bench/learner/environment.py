"""The virtual environment of TRL, made once into a cache folder.

TRL wants packages that we do not. It gets the versions of torch, transformers and PEFT that this
process runs with, so that the bench compares trainers and not libraries.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Final

TRL: Final = "trl==1.16.0"
SHARED: Final = ("torch", "transformers", "peft", "safetensors", "tokenizers", "numpy")
CACHE_VARIABLE: Final = "KINTSUGI_TRL_CACHE"
INSTALL_SECONDS: Final = 1800


class TrlMissing(Exception):
    """TRL cannot be installed; the text says why."""


def python() -> Path:
    """The interpreter of the environment, made now if it is not there. Raises TrlMissing."""
    configured = os.environ.get(CACHE_VARIABLE)
    cache = Path(configured) if configured else Path(__file__).parents[3] / ".local" / "trl"
    # +cu130 and the like name a build; the index has them under the plain version.
    pins = [f"{name}=={version(name).partition('+')[0]}" for name in SHARED]
    folder = cache / "-".join([TRL, *pins[:3]]).replace("==", "-")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _install(folder, pins)
    return folder / "bin" / "python"


def _install(folder: Path, pins: list[str]) -> None:
    # Its scripts name the interpreter by a path that the rename breaks; nothing here runs them.
    unfinished = folder.with_name(folder.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    _uv("venv", "--quiet", "--python", sys.executable, str(unfinished))
    _uv("pip", "install", "--quiet", "--python", str(unfinished / "bin" / "python"), TRL, *pins)
    unfinished.rename(folder)


def _uv(*arguments: str) -> None:
    command = [sys.executable, "-m", "uv", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
    )
    if done.returncode:
        raise TrlMissing(f"{' '.join(command[:5])} ... failed: {done.stderr.strip()[-2000:]}")
