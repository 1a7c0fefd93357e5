"""Play rollouts on a vLLM server that the job starts when it has to play its first batch.

daemon/engine/vllm.py starts it, remote.py plays on it. A job whose batches are all in the journal
starts none. Its log is `vllm.log` in the job's directory. Not covered: sharing the job's GPU. vLLM
takes nine tenths of its memory unless the source's `arguments` say less
(`--gpu-memory-utilization=0.5`).
"""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from daemon.adapters.compatibility import fit
from daemon.config.adapter_paths import locate_for_job
from daemon.engine.chat import Chat
from daemon.engine.vllm import Vllm, VllmFailure
from daemon.solver.sampling.adapter_users import list_adapter_users
from daemon.solver.sampling.environments import JobEnvironments
from daemon.solver.sampling.remote import RemoteSource, read_user_keys
from daemon.solver.sampling.sources import Batch, Version
from daemon.solver.trajectory import Trajectory
from envs.endpoint import EndpointUnavailable
from events.errors import KintsugiError
from events.jobs import EndpointSource, JobSpec, VllmSource

PYTHON_VARIABLE: Final = "KINTSUGI_VLLM_PYTHON"
LOG: Final = "vllm.log"

_RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)


class NoVllm(KintsugiError):
    """No interpreter could start vLLM."""


class OwnVllm:
    """Source that samples on a vLLM server of the job; the server ends with the job."""

    def __init__(
        self,
        spec: JobSpec,
        place: VllmSource,
        environments: JobEnvironments,
        chat: Chat,
        out: Path,
        waiting: Callable[[], None],
    ) -> None:
        """Prepare the source without a server. `waiting` is called while it starts, and may raise.
        Raise NoVllm, EndpointRefusal for a user's missing key, BadAdapter for its missing
        adapter."""
        read_user_keys(spec)
        self._spec = spec
        self._place = place
        self._environments = environments
        self._chat = chat
        self._out = out
        self._waiting = waiting
        self._server = Vllm(
            _python(place),
            Path(spec.checkpoint),
            spec.base,
            out.absolute() / LOG,
            flags=(*_flags(spec), *place.arguments),
        )
        self._remote: RemoteSource | None = None

    def adopt(self, version: Version) -> None:
        """Start the server once, load the adapter. Raise VllmFailure and RemoteSource's errors."""
        if self._remote is None:
            self._server.start(self._waiting)
            self._remote = RemoteSource(
                self._spec, self._endpoint(), self._environments, self._chat, self._out
            )
        self._remote.adopt(version)

    def play(self, batch: Batch) -> Iterator[Trajectory]:
        """Yield finished trajectories. Raise EnvironmentFailure, EndpointRefusal, VllmFailure."""
        assert self._remote is not None, "a source adopts a policy before it plays"
        try:
            yield from self._remote.play(batch)
        except EndpointUnavailable as error:
            raise VllmFailure(f"{error}; {LOG} ends so:\n{self._server.end_of_log()}") from error

    def close(self) -> None:
        """Stop the server."""
        try:
            if self._remote is not None:
                self._remote.close()
        finally:
            self._server.stop()

    def _endpoint(self) -> EndpointSource:
        return EndpointSource(
            kind="endpoint",
            url=self._server.url,
            model=self._spec.base,
            concurrency=self._place.concurrency,
            timeout=self._place.timeout,
        )


def _python(place: VllmSource) -> str:
    """Return the path of the Python interpreter that has vLLM, valid in any working directory."""
    named = place.python or os.environ.get(PYTHON_VARIABLE)
    if named is None:
        raise NoVllm(
            f"the job's source is a vLLM of its own, and neither its `python` nor "
            f"{PYTHON_VARIABLE} names an interpreter that has it; set one of them"
        )
    path = shutil.which(named)
    if path is None:
        raise NoVllm(
            f"{named} is no program; name the interpreter of an environment that has vLLM, in the "
            f"source's `python` or in {PYTHON_VARIABLE}"
        )
    return os.path.abspath(path)


def _flags(spec: JobSpec) -> tuple[str, ...]:
    users = list_adapter_users(pool.user for pool in spec.pools)
    largest = max(
        [spec.lora.rank, *(fit(locate_for_job(user.folder), None).rank for user in users)]
    )
    rank = next(bound for bound in _RANKS if bound >= largest)
    # The next version is loaded while the previous one is still loaded.
    count = 2 + len(users)
    loras = (f"--max-loras={count}", f"--max-cpu-loras={count}", f"--max-lora-rank={rank}")
    # vLLM's CPU build crashes if a request with a seed has its prompt read in two parts.
    whole = ("--no-enable-chunked-prefill",) if spec.device == "cpu" else ()
    return (*loras, f"--dtype={spec.dtype}", *whole)
