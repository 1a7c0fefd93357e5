"""Whether a program that was just started has come up.

if not answers(process, f"{url}/health", 60):
    raise Failed(last_words(log))
"""

import subprocess
import time
from pathlib import Path
from typing import Any, Final

import httpx2

_LOOK_SECONDS: Final = 0.1
_LAST_WORDS: Final = 2000


def answers(process: "subprocess.Popen[Any]", url: str, seconds: float, status: int = 200) -> bool:
    """Wait until a GET of the URL has this status; False when the process ended or the time is
    up."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx2.get(url, timeout=5, trust_env=False).status_code == status:
                return True
        except httpx2.HTTPError:
            pass  # it does not listen yet
        time.sleep(_LOOK_SECONDS)
    return False


def last_words(log: Path) -> str:
    """Return the end of a program's output, for error messages."""
    return log.read_text(errors="replace")[-_LAST_WORDS:]
