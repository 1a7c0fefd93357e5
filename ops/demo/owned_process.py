"""A process that ends with this one, and starts after an earlier one in its place has ended.

    with owned_process(["daemon.evaluation.trial", ...], place, lock, stdout, stderr) as process:
        while process.poll() is None: ...

After a kill of a demo, its processes run for a moment longer, and a new demo would start others on
the same files. So each process holds a lock file until it ends, and the next one waits for it.
"""

import fcntl
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from ops.demo.place import ROOT, Place


def launch(
    arguments: Sequence[str], place: Place, stdout: BinaryIO, stderr: BinaryIO, **options: Any
) -> "subprocess.Popen[bytes]":
    """Start `python -m` with `arguments`. It ends when this process ends. `options` go to Popen."""
    return subprocess.Popen(
        [sys.executable, "-m", "daemon.roles.parent_watch", *arguments], cwd=ROOT,
        env=place.variables, stdin=subprocess.PIPE, stdout=stdout, stderr=stderr, **options,
    )  # fmt: skip


def let_go(process: "subprocess.Popen[bytes]") -> None:
    """Close the pipe to an ended process, by which it watched this process."""
    assert process.stdin is not None, "it was given one"
    process.stdin.close()


@contextmanager
def owned_process(
    arguments: Sequence[str], place: Place, lock: Path, stdout: BinaryIO, stderr: BinaryIO
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run `python -m` with `arguments` until the block ends, while holding the file `lock`."""
    with lock.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        # The process inherits the lock's file, so the lock lasts until both have ended.
        process = launch(arguments, place, stdout, stderr, pass_fds=(held.fileno(),))
        try:
            yield process
        finally:
            process.terminate()
            process.wait()
            let_go(process)
