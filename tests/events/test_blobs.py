"""Blobs are found under the hash of their bytes, or not at all."""

from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from events.blobs import BlobStore
from events.errors import BlobError, BlobUnavailable, LogError


def files(store: BlobStore) -> list[Path]:
    return [path for path in store.folder.rglob("*") if path.is_file()]


@given(st.binary())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_blob_is_read_as_it_was_stored(tmp_path: Path, body: bytes) -> None:
    store = BlobStore(tmp_path / "blobs")
    assert store.get(store.put(body)) == body


def test_a_blob_lies_under_the_hash_of_its_bytes(tmp_path: Path) -> None:
    store = BlobStore(tmp_path / "blobs")
    digest = store.put(b"body")
    assert digest == sha256(b"body").hexdigest()
    assert files(store) == [tmp_path / "blobs" / digest[:2] / digest]


def test_the_same_bytes_are_stored_once_however_many_threads_store_them(tmp_path: Path) -> None:
    store = BlobStore(tmp_path / "blobs")
    with ThreadPoolExecutor(8) as pool:
        digests = set(pool.map(store.put, [b"body" * 10_000] * 40))
    assert len(digests) == 1
    assert len(files(store)) == 1


def test_what_a_killed_writer_left_behind_is_never_taken_for_a_blob(tmp_path: Path) -> None:
    store = BlobStore(tmp_path / "blobs")
    digest = sha256(b"whole").hexdigest()
    folder = tmp_path / "blobs" / digest[:2]
    folder.mkdir(parents=True)
    (folder / f".{digest}.remains").write_bytes(b"who")
    with pytest.raises(BlobError):
        store.get(digest)
    assert store.get(store.put(b"whole")) == b"whole"


def test_a_missing_blob_is_named(tmp_path: Path) -> None:
    store = BlobStore(tmp_path / "blobs")
    store.put(b"another")
    with pytest.raises(BlobError, match=f"blob {'0' * 64} is not in .*blobs: No such file") as lost:
        store.get("0" * 64)
    assert not isinstance(lost.value, BlobUnavailable)


def test_a_folder_that_is_away_is_told_from_a_blob_that_is_lost(tmp_path: Path) -> None:
    store = BlobStore(tmp_path / "blobs")
    digest = store.put(b"body")
    (tmp_path / "blobs").rename(tmp_path / "away")
    with pytest.raises(BlobUnavailable, match="check that the folder is there"):
        store.get(digest)
    (tmp_path / "away").rename(tmp_path / "blobs")
    assert store.get(digest) == b"body"


def test_a_damaged_blob_is_never_handed_out(tmp_path: Path) -> None:
    store = BlobStore(tmp_path / "blobs")
    digest = store.put(b"body")
    files(store)[0].write_bytes(b"bodY")
    with pytest.raises(BlobError, match=f"blob {digest} .* holds other bytes .* from a copy"):
        store.get(digest)


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "blobs").write_bytes(b"")
    with pytest.raises(LogError, match=r"blob of 4 bytes cannot be written to .*blobs: Not a dir"):
        BlobStore(tmp_path / "blobs").put(b"body")
