"""Runs a program that ends with its parent: `python -m daemon.roles.parent_watch MODULE [ARG...]`.
The parent process holds the other end of this process's standard input. When that end closes,
because the parent stopped or was killed, this process gets SIGTERM. So a `kill -9` of `kintsugi up`
leaves no process behind."""

import os
import runpy
import signal
import sys
import threading
from typing import Final

_USAGE: Final = 2


def main() -> None:
    """Run the module that the command line names."""
    if len(sys.argv) < 2:
        print("daemon.roles.parent_watch: name the module to run", file=sys.stderr)
        sys.exit(_USAGE)
    holder = os.dup(sys.stdin.fileno())
    # The program must not read the pipe that signals the holder's end.
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), sys.stdin.fileno())
    threading.Thread(target=_end_with, args=(holder,), name="attached", daemon=True).start()
    module = sys.argv[1]
    sys.argv = sys.argv[1:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _end_with(holder: int) -> None:
    while os.read(holder, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
