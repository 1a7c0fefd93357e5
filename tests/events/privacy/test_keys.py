"""The key store: one durable key per person, and nothing of a key that was destroyed."""

import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from consumers.database import sqlite_url
from events.privacy.keys import FRESH_SECONDS, KeyStore, KeysUnavailable


class Clock:
    """Time that passes when it is told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty key store, once per kind."""
    if request.param == "sqlite":
        return sqlite_url(tmp_path / "elsewhere" / "keys.db")
    found: str = request.getfixturevalue("postgres_url")
    return found


@pytest.fixture
def stores(url: str) -> Iterator[list[KeyStore]]:
    """Two processes' views of one store."""
    opened = [KeyStore(url), KeyStore(url)]
    yield opened
    for store in opened:
        store.close()


def test_a_person_has_one_key_whoever_asks_first(stores: list[KeyStore]) -> None:
    one, other = stores
    with ThreadPoolExecutor(8) as pool:
        keys = list(pool.map(lambda n: stores[n % 2].of(f"rosa-{n // 8}"), range(32)))
    assert len({key.id for key in keys}) == len({key.secret for key in keys}) == 4
    assert one.find(keys[0].id) == other.find_in_store("rosa-0") == keys[0]
    assert one.ids() == {key.id for key in keys}
    assert (one.find_in_store("otto"), one.find("none")) == (None, None)


def test_what_is_destroyed_is_gone_for_all_within_seconds(url: str) -> None:
    clock = Clock()
    one, other = KeyStore(url), KeyStore(url, clock)
    key, kept = one.of("rosa"), one.of("otto")
    assert other.of("rosa") == other.find_in_memory("rosa") == key
    assert one.destroy(key.id)
    assert not one.destroy(key.id)
    assert (one.find_in_memory("rosa"), one.find(key.id), one.find_in_store("rosa")) == (
        None,
        None,
        None,
    )
    assert other.find_in_memory("rosa") == key, "it was looked up just now"
    clock.now += FRESH_SECONDS
    assert (other.find_in_memory("rosa"), other.find(key.id)) == (None, None)
    again = other.of("rosa")
    assert again.id != key.id, "who comes back is somebody new"
    assert one.of("otto") == kept
    one.close()
    other.close()


def test_no_byte_of_a_destroyed_key_stays_in_its_files(tmp_path: Path) -> None:
    path = tmp_path / "keys.db"
    store = KeyStore(sqlite_url(path))
    keys = [store.of(f"rosa-{number}") for number in range(50)]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert keys[7].secret in path.read_bytes(), "this test can fail"
    store.destroy(keys[7].id)
    held = b"".join(one.read_bytes() for one in tmp_path.iterdir())
    store.close()
    for gone in (keys[7].secret, keys[7].id.encode(), b"rosa-7\0"):
        assert gone not in held
    assert keys[8].secret in held


def test_a_store_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "keys.db").write_bytes(b"no database at all, and long enough to be read as one" * 9)
    store = KeyStore(sqlite_url(tmp_path / "keys.db"))
    with pytest.raises(KeysUnavailable, match=r"keys\.db .*privacy\.keys_url"):
        store.of("rosa")
    store.close()
    with pytest.raises(KeysUnavailable, match=r"privacy\.keys_url cannot be used"):
        KeyStore("nonsense")
