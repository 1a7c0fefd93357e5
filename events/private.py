"""Files and folders that their owner alone may read: what people said lies in them.

    make_folder(folder)                     unless it is there
    create_file(path)                       empty, unless it is there
    open(path, "wb", opener=opener)         a file that is made so where it is made
    tighten(path)                           what an older version made for everybody to read

The process's umask is left alone: it belongs to all threads, and to files that are for others.

Guarantee: never is there a moment in which others can open what is made here. Not covered: a folder
that was there keeps what its group may do, for that was somebody's decision.
"""

import os
import stat
from pathlib import Path
from typing import IO, Final

FOLDER: Final = 0o700
PASSAGE: Final = 0o711
"""The mode of a folder that other users pass through, to a folder in it that they may read."""

_FILE: Final = 0o600
_OTHERS: Final = 0o007


def make_folder(folder: Path, mode: int = FOLDER) -> None:
    """Make a folder, and above it what is missing, unless it is there. Raises OSError."""
    if folder.is_dir():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=mode, exist_ok=True)


def create_file(path: Path) -> None:
    """Make an empty file unless something is there, which is tightened. Raises OSError."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, _FILE))
    except FileExistsError:
        tighten(path)


def opener(path: str, flags: int) -> int:
    """For `open`: with it, a file that is made is its owner's alone."""
    return os.open(path, flags, _FILE)


def open_lock(path: Path) -> IO[str]:
    """A file to hold a lock on: who cannot open it cannot hold it either. Raises OSError."""
    return open(path, "w", opener=opener)


def tighten(path: Path) -> None:
    """Take from a file or a folder of ours what everybody may do with it; nothing where it is not
    there, or another's."""
    try:
        status = path.stat()
        if status.st_uid == os.geteuid() and status.st_mode & _OTHERS:
            path.chmod(stat.S_IMODE(status.st_mode) & ~_OTHERS)
    except FileNotFoundError:
        return
    except OSError:
        # A file system that is mounted read-only: whoever reads its modes (doctor) says so.
        return


def passable_to_others(folder: Path) -> bool:
    """Whether everybody may go through a folder to what is in it. Raises OSError."""
    return bool(folder.stat().st_mode & 0o001)


def open_to_others(path: Path) -> bool:
    """Whether everybody may read or change it. Raises OSError."""
    return bool(path.stat().st_mode & 0o006)
