"""The embedded engine with the reference policy, as a process of its own."""

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from daemon.engine.reference.weights import CHECKPOINT


@contextmanager
def run_engine(log: Path) -> Iterator[str]:
    """The embedded engine with the reference policy, as a process; yields its URL."""
    command = [sys.executable, "-m", "daemon.engine", "--model", str(CHECKPOINT)]
    command += ["--name", "reference", "--port", "0", "--threads", "1"]
    with log.open("w") as output, subprocess.Popen(command, stderr=output) as process:
        try:
            while (address := re.search(r"http://\S+/v1", log.read_text())) is None:
                assert process.poll() is None, f"the engine ended: {log.read_text()}"
                time.sleep(0.1)
            yield address[0]
        finally:
            process.kill()
