"""A vLLM server of this machine, with the flags that kintsugi relies on.

    with Vllm(checkpoint, "small", folder) as server:
        server.url                       http://127.0.0.1:PORT/v1

It starts in a minute; the first requests compile and are slow. It dies with the process that
started it. Its log is FOLDER/vllm.log.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

import httpx2

from ops.vllm.environment import environment

READY_SECONDS: Final = 240
STOP_SECONDS: Final = 30

FLAGS: Final = (
    "--enable-lora",
    "--max-loras=4",
    "--max-cpu-loras=8",
    "--max-lora-rank=16",
    "--logprobs-mode=processed_logprobs",
    "--generation-config=vllm",
    "--enable-auto-tool-choice",
    "--tool-call-parser=hermes",
    "--dtype=float32",
    "--host=127.0.0.1",
)


class VllmFailed(Exception):
    """The server did not start; the text holds the end of its log."""


class Vllm:
    """One server over one checkpoint."""

    def __init__(
        self,
        checkpoint: Path,
        name: str,
        folder: Path,
        *,
        port: int | None = None,
        flags: Sequence[str] = (),
    ) -> None:
        """Serves `checkpoint` as `name`; `flags` come after those of `FLAGS`."""
        self.checkpoint = checkpoint
        self.name = name
        self.folder = folder
        self.port = port or _free_port()
        self.flags = flags
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """What an OpenAI client takes as its base URL."""
        return f"http://127.0.0.1:{self.port}/v1"

    def start(self) -> Self:
        """Returns when it answers. Raises VllmMissing, VllmFailed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "vllm.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=self._environment(),
                start_new_session=True,
            )
        try:
            self._wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Ask it to stop, and kill what is left of its processes."""
        if self._process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._process.pid, number)
                self._process.wait(STOP_SECONDS)
            except ProcessLookupError:
                break
            except subprocess.TimeoutExpired:
                continue
        self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _command(self) -> list[str]:
        python = str(environment() / "bin" / "python")
        command = [python, "-m", "vllm.entrypoints.openai.api_server"]
        command += ["--model", str(self.checkpoint.resolve()), "--served-model-name", self.name]
        command += [f"--port={self.port}", *FLAGS, *self.flags]
        # TERM and not KILL: it has processes of its own to stop.
        setpriv = shutil.which("setpriv")
        return [setpriv, "--pdeathsig", "TERM", *command] if setpriv else command

    def _environment(self) -> dict[str, str]:
        wanted = {
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
        return kept | wanted

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            if self._process is None or self._process.poll() is not None:
                raise VllmFailed(f"vLLM exited while starting:\n{self._log_end()}")
            try:
                if httpx2.get(f"http://127.0.0.1:{self.port}/health", timeout=2).is_success:
                    return
            except httpx2.TransportError:
                pass  # Not yet: it listens when the model is loaded.
            time.sleep(0.5)
        raise VllmFailed(f"no answer in {READY_SECONDS} s:\n{self._log_end()}")

    def _log_end(self) -> str:
        log = self.folder / "vllm.log"
        return log.read_text(errors="replace")[-3000:] if log.exists() else "(it wrote no log)"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
