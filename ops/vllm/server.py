"""A vLLM server on this machine in its own environment (environment.py); logs to FOLDER/vllm.log.

    with Vllm(checkpoint, "small", folder) as server: ...
    python -m ops.vllm.server CHECKPOINT [--name NAME] [--host HOST] [--port PORT] [FLAG...]

The command becomes vLLM, for a container or a service manager.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Self

from daemon.engine import vllm
from ops.isolated import InstallError
from ops.vllm.environment import environment, place

FLAGS: Final = (
    "--max-loras=4",
    "--max-cpu-loras=8",
    "--max-lora-rank=16",
    "--dtype=float32",
    # The CPU build ends if the prompt of a request with a seed is read in two parts.
    "--no-enable-chunked-prefill",
)

SETTINGS: Final = {"VLLM_CPU_KVCACHE_SPACE": "1"}
"""Environment variables: 1 GiB for the KV cache, because the default exceeds a small machine."""

MENDED: Final = {"PYTHONPATH": str(Path(__file__).parent / "mend")}


class Vllm(vllm.Vllm):
    """A server over one checkpoint."""

    def __init__(
        self,
        checkpoint: Path,
        name: str,
        folder: Path,
        *,
        port: int | None = None,
        flags: Sequence[str] = (),
        mended: bool = False,
    ) -> None:
        """Serve `checkpoint` as `name`; `mended` loads the plugin in mend/, which corrects the
        base."""
        super().__init__(
            place() / "bin" / "python",
            checkpoint,
            name,
            folder / "vllm.log",
            port=port,
            flags=(*FLAGS, *flags),
            settings={**SETTINGS, **(MENDED if mended else {})},
        )

    def start(self, waiting: Callable[[], None] = lambda: None) -> Self:
        """Install vLLM, start and await it. Raise InstallError, VllmFailure or OSError."""
        environment()
        return super().start(waiting)


def main() -> int:
    """Replace this process by vLLM; return only if it is not installed."""
    server = parse_server(sys.argv[1:])
    try:
        environment()
        os.execve(server.command[0], server.command, server.environment)
    except (InstallError, OSError) as error:
        print(error, file=sys.stderr)
    return 1


def parse_server(arguments: Sequence[str]) -> Vllm:
    """Return the server that a command line describes."""
    parser = argparse.ArgumentParser(prog="python -m ops.vllm.server")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--name", help="what clients call it (default: the name of its folder)")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    options, flags = parser.parse_known_args(arguments)
    name = options.name or options.checkpoint.resolve().name
    # vLLM uses the last of two equal flags.
    flags = [f"--host={options.host}", *flags]
    return Vllm(options.checkpoint, name, Path(), port=options.port, flags=flags, mended=True)


if __name__ == "__main__":
    sys.exit(main())
