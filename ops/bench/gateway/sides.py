"""The processes that are compared: the engine alone, our gateway and a public one.

Each gateway is one process with one worker, knows one client key and keeps no log of requests. Ours
writes to a home in `folder` with fsync, as by default.
"""

import json
import mmap
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from events.sqlite.log import SqliteLog
from events.streams import ROLLOUTS
from ops import isolated
from ops.bench.gateway.load import KEY, Target
from ops.bench.gateway.upstream import MODEL
from ops.processes import (
    answers,
    build_environment,
    compile_library,
    find_ports,
    read_cpu_seconds,
    read_end,
)
from ops.waits import until
from producers.gateway.privacy.keys import hash_key

PUBLIC: Final = "litellm==1.106.2"
_PUBLIC_EXTRA: Final = "litellm[proxy]==1.106.2"

_ROOT: Final = Path(__file__).parents[3]
_SYNCS: Final = Path(__file__).with_name("syncs.c")
_START_SECONDS: Final = 120

_CONFIG: Final = """
model_list:
  - model_name: {model}
    litellm_params: {{model: openai/{model}, api_base: "{url}", api_key: none}}
litellm_settings: {{num_retries: 0, request_timeout: 600, callbacks: [], set_verbose: false}}
general_settings: {{disable_error_logs: true}}
"""
_QUIET: Final = '{"version": 1, "disable_existing_loggers": false}'
_PUBLIC_ENVIRONMENT: Final = {
    "LITELLM_MASTER_KEY": KEY,
    "LITELLM_MODE": "PRODUCTION",
    "LITELLM_LOG": "ERROR",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_TELEMETRY": "False",
}
_KEYS: Final = json.dumps([{"name": "bench", "sha256": hash_key(KEY), "scopes": ["call"]}])
_RUN_PUBLIC: Final = "from litellm.proxy.proxy_cli import run_server; run_server()"


@dataclass(frozen=True, slots=True)
class Side:
    """A compared process that answers calls."""

    name: str
    target: Target
    process: "subprocess.Popen[str]"

    def cpu_seconds(self) -> float:
        """Return the processor time that it has used."""
        return read_cpu_seconds(self.process.pid)


class Syncs:
    """Counts the fsync and fdatasync calls of a process by a preloaded library."""

    def __init__(self, folder: Path) -> None:
        self._library = folder / "syncs.so"
        self._file = folder / "syncs"
        compile_library(_SYNCS, self._library)
        self._file.write_bytes(bytes(8))
        with self._file.open("rb") as file:
            self._mapped = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)

    @property
    def environment(self) -> Mapping[str, str]:
        """Return the environment variables of the process to count."""
        return {"LD_PRELOAD": str(self._library), "SYNCS_FILE": str(self._file)}

    @property
    def count(self) -> int:
        """Return the number of fsync and fdatasync calls so far."""
        return int.from_bytes(self._mapped[:8], sys.byteorder)


class Home:
    """The home to which our gateway writes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "home"
        self._log: SqliteLog | None = None

    @property
    def log(self) -> SqliteLog:
        """Return its log, open for reading only."""
        if self._log is None:
            self._log = SqliteLog(self.folder / "log.db", read_only=True)
        return self._log

    @property
    def events(self) -> int:
        """Return the number of events in the log."""
        return sum(self.log.end(ROLLOUTS.name))

    def close(self) -> None:
        """Close the log."""
        if self._log is not None:
            self._log.close()


@contextmanager
def engine(folder: Path) -> Iterator[Side]:
    """Run the engine, for direct access, until the block ends."""
    command = [sys.executable, "-m", "ops.bench.gateway.upstream"]
    with _run_process("direct", command, {}, folder) as process:
        assert process.stdout is not None, "opened as a pipe"
        port = int(process.stdout.readline())
        yield Side("direct", Target(port, recorded=False), process)


@contextmanager
def ours(folder: Path, home: Home, syncs: Syncs, upstream: Side) -> Iterator[Side]:
    """Run our gateway, which has proven the engine and records, until the block ends."""
    port = find_ports(1)[0]
    command = [
        sys.executable, "-m", "daemon", "gateway", "--port", str(port), "--upstream",
        _url(upstream),
    ]  # fmt: skip
    environment = {
        **syncs.environment,
        "KINTSUGI_HOME": str(home.folder),
        "KINTSUGI_GATEWAY__KEYS": _KEYS,
    }
    with _run_process("ours", command, environment, folder) as process:
        _wait(process, port, "/readyz", folder / "ours.log")
        yield Side("ours", Target(port, recorded=True), process)
        home.close()


@contextmanager
def public(folder: Path, upstream: Side) -> Iterator[Side]:
    """Run LiteLLM's proxy without database and logs until the block ends. Raise InstallError."""
    python = isolated.interpreter(_PUBLIC_EXTRA)
    port = find_ports(1)[0]
    config, quiet = folder / "litellm.yaml", folder / "quiet.json"
    config.write_text(_CONFIG.format(model=MODEL, url=_url(upstream)))
    quiet.write_text(_QUIET)
    command = [
        str(python), "-c", _RUN_PUBLIC, "--config", str(config), "--host", "127.0.0.1",
        "--port", str(port), "--num_workers", "1", "--log_config", str(quiet),
    ]  # fmt: skip
    with _run_process("public", command, _PUBLIC_ENVIRONMENT, folder) as process:
        _wait(process, port, "/health/liveliness", folder / "public.log")
        yield Side("public", Target(port, recorded=False), process)


@contextmanager
def _run_process(
    name: str, command: Sequence[str], environment: Mapping[str, str], folder: Path
) -> Iterator["subprocess.Popen[str]"]:
    own = {n: v for n, v in build_environment().items() if not n.startswith("LITELLM_")}
    with ExitStack() as stack:
        log = stack.enter_context((folder / f"{name}.log").open("w"))
        process = stack.enter_context(
            subprocess.Popen(
                command,
                cwd=_ROOT,
                env={**own, **environment},
                stdout=subprocess.PIPE if name == "direct" else log,
                stderr=log,
                text=True,
            )
        )
        stack.callback(process.kill)
        yield process


def _wait(process: "subprocess.Popen[str]", port: int, path: str, log: Path) -> None:
    url = f"http://127.0.0.1:{port}{path}"
    until(lambda: answers(url) or process.poll() is not None, f"{url}; see {log}", _START_SECONDS)
    if process.poll() is not None:
        raise RuntimeError(f"{log.stem} does not answer; it said: {read_end(log)}")


def _url(side: Side) -> str:
    return f"http://127.0.0.1:{side.target.port}/v1"
