"""Makes files and folders of conversations, which only their owner may read.

Guarantee: other users can never open files made here. The process's umask does not change. Not
covered: an existing folder keeps its group's permissions, which were set on purpose.
"""

import os
import stat
from pathlib import Path
from typing import IO, Final

FOLDER: Final = 0o700
PASSAGE: Final = 0o711
"""Mode of a folder that other users may pass through."""

_FILE: Final = 0o600
_OTHERS: Final = 0o007


def make_folder(folder: Path, mode: int = FOLDER) -> None:
    """Make a folder and its missing parents. Raises OSError."""
    if folder.is_dir():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=mode, exist_ok=True)


def create_file(path: Path) -> None:
    """Make an empty private file, or tighten an existing file. Raises OSError."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, _FILE))
    except FileExistsError:
        tighten(path)


def opener(path: str, flags: int) -> int:
    """Open a file; the `opener` for `open`. Only the owner may use a file created by it."""
    return os.open(path, flags, _FILE)


def open_lock(path: Path) -> IO[str]:
    """Open a lock file; only its owner can open it and hold the lock. Raises OSError."""
    return open(path, "w", opener=opener)


def tighten(path: Path) -> None:
    """Remove other users' permissions from our file or folder; ignore a missing or foreign one."""
    try:
        status = path.stat()
        if status.st_uid == os.geteuid() and status.st_mode & _OTHERS:
            path.chmod(stat.S_IMODE(status.st_mode) & ~_OTHERS)
    except FileNotFoundError:
        return
    except OSError:
        # A read-only file system, for example; `doctor` reports its modes.
        return


def passable_to_others(folder: Path) -> bool:
    """Return whether all users may pass through a folder. Raises OSError."""
    return bool(folder.stat().st_mode & 0o001)


def open_to_others(path: Path) -> bool:
    """Return whether all users may read or change a file or folder. Raises OSError."""
    return bool(path.stat().st_mode & 0o006)
