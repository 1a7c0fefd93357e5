"""The embedded engine as a program: `python -m daemon.engine --model DIR`.

It is apart from `kintsugi`, which must start without torch. Exit codes are those of `kintsugi`: 0
done (also when told to stop), 1 failed, 2 wrong usage; errors are one sentence on stderr. On
SIGTERM or an interrupt it begins nothing new, finishes what runs within `--grace` seconds and cuts
off the rest. An engine that cannot go on fails its requests, and the program ends with 1.
"""

import asyncio
import signal
import socket
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final

from events.errors import KintsugiError

if TYPE_CHECKING:
    from daemon.engine.server import Server

DONE, FAILED = 0, 1

_LENGTH: Final = 4096
"""Default length of prompt and answer in tokens: few machines hold a large model's context."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; return its exit code."""
    options = _parser().parse_args(arguments)
    try:
        return serve(options)
    except KintsugiError as error:
        _say(str(error))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _say(f"{where}{error.strerror or error}")
    return FAILED


def serve(options: Namespace) -> int:
    """Load the engine, then answer until a signal comes or it fails."""
    # The port is opened first: if it is taken, the error must not wait for a model to load.
    with _bound(options.host, options.port) as bound:
        # torch takes seconds to import, and an error of usage must not wait for that.
        import uvicorn

        server = _server(options, ip_address(bound.getsockname()[0]).is_loopback)
        config = uvicorn.Config(
            server.app,
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=options.grace,
        )
        http = uvicorn.Server(config)

        def stop() -> None:
            http.should_exit = True

        server.thread.on_failure = stop
        # A signal before uvicorn listens counts too; uvicorn raises its own again when it ends.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop())
        address = f"http://{options.host}:{bound.getsockname()[1]}/v1"
        _say(f"{server.adapters.base.name} at {address}, {server.thread.length} tokens fit")
        asyncio.run(http.serve(sockets=[bound]))
    if server.thread.failure is not None:
        raise server.thread.failure
    return DONE


def _server(options: Namespace, local: bool) -> "Server":
    import torch
    import transformers

    from daemon.engine.adapters import Adapters
    from daemon.engine.chat import Chat
    from daemon.engine.generation import Engine
    from daemon.engine.policy import Policy
    from daemon.engine.server import Server

    if not sys.stderr.isatty():
        transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    if options.threads:
        torch.set_num_threads(options.threads)
    if not (options.model / "config.json").is_file():
        raise KintsugiError(f"{options.model} holds no checkpoint: it has no config.json")
    chat = Chat(options.model)
    base = Policy.load(options.model, options.name or options.model.resolve().name)
    adapters = Adapters(base, str(options.model))
    for name, folder in options.lora:
        adapters.load(name, folder)
    length = min(base.context, options.length or _LENGTH)
    return Server(adapters, chat, Engine(base, options.slots, length), local)


def _bound(host: str, port: int) -> socket.socket:
    """Return a listening socket; clients that connect wait until the model is loaded."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise KintsugiError(
            f"cannot listen on {host} port {port}: {error.strerror or error}; choose another"
        ) from error


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="python -m daemon.engine", description="The embedded engine.")
    add = parser.add_argument
    add("--model", type=Path, required=True, metavar="DIR", help="a checkpoint of transformers")
    add("--name", help="what clients call it (default: the name of its folder)")
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    add("--port", type=int, default=8000, help="0 takes any that is free (default: %(default)s)")
    add("--slots", type=_count, default=64, help="answers at once (default: %(default)s)")
    add(
        "--length",
        "--max-model-len",
        type=_count,
        help=f"tokens of prompt and answer (default: the model's context, {_LENGTH} at most)",
    )
    add(
        "--lora",
        type=_adapter,
        action="append",
        default=[],
        metavar="NAME=DIR",
        help="an adapter to begin with; may be given again",
    )
    add("--threads", type=_count, help="of the CPU, for one forward (default: torch's own)")
    add("--grace", type=_count, default=30, help="seconds for what runs at the end (%(default)s)")
    return parser


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is no number above 0")
    return int(text)


def _adapter(text: str) -> tuple[str, Path]:
    name, equals, folder = text.partition("=")
    if not (name and equals and folder):
        raise ArgumentTypeError(f"{text!r} is not NAME=DIR")
    return name, Path(folder)


def _say(sentence: str) -> None:
    print(f"daemon.engine: {sentence}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
