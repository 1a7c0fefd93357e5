"""A role for the tests of `kintsugi up`: notes when it starts and stops, and can end by itself.

python -m tests.daemon.role_program NOTES NAME [EXIT_CODE]
"""

import os
import signal
import sys
import threading


def main() -> int:
    """Run until SIGTERM, or end at once with the exit code that was given."""
    notes, name, *code = sys.argv[1:]
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    _note(notes, f"started {name} {os.getpid()}")
    if code:
        return int(code[0])
    stop.wait()
    _note(notes, f"stopped {name} {os.getpid()}")
    return 0


def _note(notes: str, line: str) -> None:
    with open(notes, "a") as file:
        file.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
