"""Content-addressed blobs for bodies that do not fit a record. A blob is written before its event:
temporary file, fsync, rename, fsync of the folder. After a crash a blob may lack its event, but no
event lacks its blob."""

import errno
from hashlib import sha256
from pathlib import Path
from typing import Final

from events import private
from events.errors import BlobError, BlobUnavailable, LogError, LogFull, LogReadOnly, LogUnavailable
from events.files import replace_file, sync_folder

_REFUSALS: Final[dict[int, tuple[type[LogError], str]]] = {
    errno.ENOSPC: (LogFull, "free space there"),
    errno.EDQUOT: (LogFull, "free space there or raise its quota"),
    errno.EFBIG: (LogFull, "raise the limit on file sizes"),
    errno.EROFS: (LogReadOnly, "mount it writable or name another folder"),
    errno.EACCES: (LogReadOnly, "make it writable or name another folder"),
    errno.EPERM: (LogReadOnly, "make it writable or name another folder"),
}


class BlobStore:
    """A folder `ab/<sha256>` of immutable files, which their owner alone may read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, body: bytes) -> str:
        """Store durably and return the sha256. Raises LogFull, LogReadOnly, LogUnavailable."""
        digest = sha256(body).hexdigest()
        path = self._path(digest)
        try:
            if not path.exists():
                self._write(path, body)
            # An existing blob's folders too: its writer may have been killed before it synced them.
            for folder in (path.parent, self.folder, self.folder.parent):
                sync_folder(folder)
        except OSError as error:
            kind, remedy = _REFUSALS.get(error.errno or 0, (LogUnavailable, "check its disk"))
            raise kind(
                f"blob of {len(body):,} bytes cannot be written to {self.folder}: "
                f"{error.strerror}; {remedy}"
            ) from error
        return digest

    def _write(self, path: Path, body: bytes) -> None:
        if not self.folder.exists():
            private.make_folder(self.folder)
        private.tighten(self.folder)
        # Parents are not made here: their own errors are raised as they are.
        path.parent.mkdir(mode=private.FOLDER, exist_ok=True)
        replace_file(path, body, is_durable=True, is_private=True, is_shared=True)

    def get(self, digest: str) -> bytes:
        """Return the blob's bytes. Raises BlobError if the blob is missing or has another hash,
        BlobUnavailable if the folder is absent or the disk fails."""
        try:
            body = self._path(digest).read_bytes()
        except OSError as error:
            if isinstance(error, FileNotFoundError) and self._is_there():
                raise BlobError(
                    f"blob {digest} is not in {self.folder}: {error.strerror}; restore it from a "
                    "copy"
                ) from error
            raise BlobUnavailable(
                f"blob {digest} cannot be read in {self.folder}: {error.strerror}; check that the "
                "folder is there and its disk is well, or restore it from a copy"
            ) from error
        actual = sha256(body).hexdigest()
        if actual != digest:
            raise BlobError(
                f"blob {digest} in {self.folder} holds other bytes ({actual}); restore it from a "
                "copy"
            )
        return body

    def _is_there(self) -> bool:
        """Return whether the folder is not empty; an empty one may lack its mounted disk."""
        return self.folder.is_dir() and any(self.folder.iterdir())

    def holds(self, digest: str) -> bool:
        """Return whether the blob exists; its bytes are not checked."""
        return self._path(digest).exists()

    def _path(self, digest: str) -> Path:
        return self.folder / digest[:2] / digest
