"""Keys of persons are looked up in the store, and those of erased ones nowhere."""

import pytest

from daemon.core.key_lookup import Opener
from events.privacy.keys import FRESH_SECONDS
from events.privacy.sealing import Key, KeyMissing

ROSA, ADA = Key("rosa", "", b"r" * 32), Key("ada", "", b"a" * 32)


def test_a_key_that_a_backup_brought_back_opens_nothing_for_long() -> None:
    now, erased = 0.0, frozenset[str]()
    opener = Opener({key.id: key for key in (ROSA, ADA)}.get, lambda: erased, lambda: now)
    assert opener("rosa") == ROSA
    erased = frozenset({"rosa"})
    now = FRESH_SECONDS
    assert opener("rosa") is None
    assert opener("ada") == ADA


def test_a_key_that_is_gone_without_an_erasure_is_named() -> None:
    erased = frozenset[str]()
    store: dict[str, Key] = {}
    opener = Opener(store.get, lambda: erased)
    with pytest.raises(KeyMissing, match="rosa is not in the key store"):
        opener("rosa")
    erased = frozenset({"rosa"})
    assert opener("rosa") is None, "what was erased since is seen at once"
