"""Writes files atomically. Guarantee: a reader finds the old or the new content, also after a kill;
with `is_durable` also after a power cut."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from events import private
from events.envelope import new_id

UNFINISHED: Final = "tmp-"
"""Prefix of the name of a file or folder that is still being written."""


def replace_file(
    path: Path,
    content: bytes,
    *,
    is_durable: bool = False,
    is_private: bool = False,
    is_shared: bool = False,
) -> None:
    """Replace or create a file. Set `is_shared` if several processes may write it at once,
    `is_private` if only its owner may read it. Raises OSError and leaves no unfinished file."""
    suffix = f".{new_id()}" if is_shared else ""
    unfinished = path.with_name(f"{UNFINISHED}{path.name}{suffix}")
    try:
        with open(unfinished, "wb", opener=private.opener if is_private else None) as file:
            file.write(content)
            if is_durable:
                file.flush()
                os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError:
        # The unfinished file would keep a full disk full.
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise
    if is_durable:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that its file names survive a power cut. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
