"""Look up the key that opens a person's sealed content, never the key of an erased person. `find`
and `erased` are called only for sealed content, so other processes need neither a key store nor the
tables. The result of `erased` is used for `FRESH_SECONDS`, as a key is.
"""

import math
import time
from collections.abc import Callable

from events.bodies import FindKey
from events.privacy.keys import FRESH_SECONDS
from events.privacy.sealing import Key, KeyMissing


class Opener:
    """A `FindKey` over the key store and the log's keys of erased persons."""

    def __init__(
        self,
        find: FindKey,
        erased: Callable[[], frozenset[str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._find = find
        self._read = erased
        self._clock = clock
        self._erased: frozenset[str] = frozenset()
        self._until = -math.inf
        """Time of the clock until which `_erased` may be used."""

    def __call__(self, keyid: str) -> Key | None:
        """Return the key with this id; None if its person was erased. Raises KeyMissing."""
        if self._clock() >= self._until:
            self._refresh()
        if keyid in self._erased:
            return None
        key = self._find(keyid)
        if key is None:
            # The log may have an erasure since then that destroyed the key.
            self._refresh()
            if keyid not in self._erased:
                raise KeyMissing(
                    f"key {keyid} is not in the key store, and its person was not erased; restore "
                    "the key store from its backup or set privacy.keys_url, or give up what it "
                    f"opens: kintsugi erase --key {keyid}"
                )
        return key

    def _refresh(self) -> None:
        self._erased = self._read()
        self._until = self._clock() + FRESH_SECONDS
