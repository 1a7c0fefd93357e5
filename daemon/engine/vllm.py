"""Run a vLLM server for one checkpoint as a child process.

    with Vllm(python, checkpoint, "small", log) as server:
        server.url                       http://127.0.0.1:PORT/v1

`python` is an interpreter that has vLLM; this process does not import it. The server can load
adapters while it runs, reports log-probabilities after temperature and filters, and ignores the
checkpoint's sampling settings. The first requests may be slow, because they compile.

Guarantee: the server's processes end when this process ends, also after SIGKILL. A shell between
them waits for the end of a pipe that only this process holds. Then it asks them to stop, and kills
the rest after STOP_SECONDS. Not covered: a kill of the shell. Without `port`, a free port is chosen
and reserved until `stop`: a bound socket keeps the system from giving it away while vLLM loads.
"""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

import httpx2

from events.errors import KintsugiError

READY_SECONDS: Final = 600.0
"""Longest wait until the server answers; on a busy machine it compiles for minutes."""
STOP_SECONDS: Final = 30
_LOOK_SECONDS: Final = 0.5

FLAGS: Final = (
    "--enable-lora",
    "--logprobs-mode=processed_logprobs",
    "--generation-config=vllm",
    "--enable-auto-tool-choice",
    "--tool-call-parser=hermes",
    "--host=127.0.0.1",
)

_SETTINGS: Final[Mapping[str, str]] = {
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}

_OF_OURS: Final = frozenset(
    {
        "PYTHONPATH",
        "VIRTUAL_ENV",
        "RANK",
        "LOCAL_RANK",
        "GROUP_RANK",
        "ROLE_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_WORLD_SIZE",
        "ROLE_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
    }
)
"""Variables that vLLM must not inherit: Python packages, and this process's rank in torchrun."""

# The shell gives background commands no stdin, so the pipe is read as descriptor 3.
_GUARD: Final = """
grace=$1
shift
exec 3<&0
"$@" </dev/null 3<&- &
server=$!
(
    trap '' TERM
    cat <&3 >/dev/null
    kill -TERM 0
    while kill -0 $server 2>/dev/null && [ $grace -gt 0 ]; do
        sleep 1
        grace=$((grace - 1))
    done
    kill -KILL 0
) &
trap : TERM
while wait $server; code=$?; kill -0 $server 2>/dev/null; do :; done
exit $code
"""


class VllmFailure(KintsugiError):
    """The server did not start; the error's text contains the end of its log."""


class Vllm:
    """One vLLM server for one checkpoint."""

    def __init__(
        self,
        python: str | Path,
        checkpoint: Path,
        name: str,
        log: Path,
        *,
        port: int | None = None,
        flags: Sequence[str] = (),
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Serve `checkpoint` as `name`. `flags` and the variables `settings` override defaults."""
        self.checkpoint = checkpoint
        self.name = name
        self.log = log
        self._reservation: socket.socket | None = None
        if port is None:
            self._reservation = _reserve_port()
            port = self._reservation.getsockname()[1]
        self.port = port
        self._python = str(python)
        self._flags = flags
        self._settings = settings or {}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Base URL for an OpenAI client."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def command(self) -> list[str]:
        """Command line of the server."""
        command = [self._python, "-m", "vllm.entrypoints.openai.api_server"]
        command += ["--model", str(self.checkpoint.resolve()), "--served-model-name", self.name]
        return [*command, f"--port={self.port}", *FLAGS, *self._flags]

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of the server."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if name not in _OF_OURS and not name.startswith("TORCHELASTIC_")
        }
        return {**kept, **_SETTINGS, **self._settings}

    def start(self, waiting: Callable[[], None] = lambda: None) -> Self:
        """Start the server and return when it answers. Meanwhile call `waiting` repeatedly; it may
        raise to give up. Raise VllmFailure, OSError."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                ["sh", "-c", _GUARD, "sh", str(STOP_SECONDS), *self.command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=self.log.parent,
                env=self.environment,
                start_new_session=True,
            )
        try:
            self._wait_ready(waiting)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Ask the server to stop, kill the processes that are left, and free the port."""
        if self._reservation is not None:
            self._reservation.close()
        if self._process is None:
            return
        assert self._process.stdin is not None, "it was started with a pipe"
        self._process.stdin.close()
        # The guard gives it STOP_SECONDS, and kills the whole group, itself included.
        self._process.wait()
        _kill_group(self._process.pid)
        self._process = None

    def kill(self) -> None:
        """Kill all processes of the server at once."""
        if self._process is None:
            return
        _kill_group(self._process.pid)
        assert self._process.stdin is not None, "it was started with a pipe"
        self._process.stdin.close()
        self._process.wait()
        self._process = None

    def end_of_log(self) -> str:
        """Return the last 3000 characters of the server's log."""
        return self.log.read_text(errors="replace")[-3000:] if self.log.exists() else "(no log)"

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _wait_ready(self, waiting: Callable[[], None]) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            waiting()
            if self._process is None or self._process.poll() is not None:
                raise VllmFailure(f"vLLM exited while starting:\n{self.end_of_log()}")
            try:
                if httpx2.get(f"http://127.0.0.1:{self.port}/health", timeout=2).is_success:
                    return
            except httpx2.TransportError:
                pass  # Not yet: it listens when the model is loaded.
            time.sleep(_LOOK_SECONDS)
        raise VllmFailure(f"vLLM did not answer in {READY_SECONDS:g} s:\n{self.end_of_log()}")


def _kill_group(leader: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def _reserve_port() -> socket.socket:
    """Return a socket bound to a free port. vLLM can listen beside it, as it sets SO_REUSEADDR."""
    reservation = socket.socket()
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reservation.bind(("127.0.0.1", 0))
    return reservation
