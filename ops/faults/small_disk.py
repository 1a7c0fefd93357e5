"""A real file system of a few megabytes that drivers fill: a mounted tmpfs (needs root)."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BALLAST = "ballast"


@contextmanager
def small_disk(folder: Path, size: int, ballast: int = 0) -> Iterator[Path]:
    """Mount a disk of `size` bytes at `folder`, with a deletable file of `ballast` bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    _command("mount", "-t", "tmpfs", "-o", f"size={size}", "kintsugi-fault", str(folder))
    try:
        if ballast:
            (folder / BALLAST).write_bytes(bytes(ballast))
        yield folder
    finally:
        _command("umount", "--lazy", str(folder))  # also after a failure that left files open


@contextmanager
def remount_read_only(folder: Path) -> Iterator[None]:
    """Make the small disk at `folder` read-only until the block ends."""
    _command("mount", "-o", "remount,ro", str(folder))
    try:
        yield
    finally:
        _command("mount", "-o", "remount,rw", str(folder))


def _command(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"`{' '.join(words)}` failed: {done.stderr.strip()}; run it as root")
