"""Content-addressed blobs for bodies that do not fit a record.

Written before the event that names them: temporary file, fsync, rename, fsync of the folder. A
crash in between leaves a blob that nobody names, never a name without a blob.
"""

import os
from hashlib import sha256
from pathlib import Path

from events.errors import BlobError, LogFull


class BlobStore:
    """A folder `ab/<sha256>` of immutable files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, body: bytes) -> str:
        """Store durably; returns the sha256. Storing the same bytes again changes nothing."""
        digest = sha256(body).hexdigest()
        path = self._path(digest)
        if path.exists():
            return digest
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f".{digest}.{os.getpid()}")
            with temporary.open("wb") as file:
                file.write(body)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            _sync_folder(path.parent)
        except OSError as error:
            raise LogFull(
                f"blob of {len(body):,} bytes cannot be written to {self.folder}: "
                f"{error.strerror}; free space or make the folder writable"
            ) from error
        return digest

    def get(self, digest: str) -> bytes:
        """The bytes; raises BlobError when they are missing or are others."""
        try:
            body = self._path(digest).read_bytes()
        except OSError as error:
            raise BlobError(
                f"blob {digest} is not in {self.folder}: {error.strerror}; restore it from a copy"
            ) from error
        found = sha256(body).hexdigest()
        if found != digest:
            raise BlobError(
                f"blob {digest} in {self.folder} holds other bytes ({found}); restore it from a "
                "copy"
            )
        return body

    def _path(self, digest: str) -> Path:
        return self.folder / digest[:2] / digest


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
