"""Look up the key that opens what a person said: never that of a person who was erased.

    bodies = Bodies(blobs, Opener(keys.find, erased))

`find` and `erased` are called when something sealed is read, and not before: a process that reads
nothing sealed needs neither a key store nor the tables. What `erased` returns is used for
`FRESH_SECONDS`, as a key is.
"""

import math
import time
from collections.abc import Callable

from events.bodies import FindKey
from events.privacy.keys import FRESH_SECONDS
from events.privacy.sealing import Key, KeyMissing


class Opener:
    """A `FindKey` over the key store and the keys of erased persons, as the log tells of them."""

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
        """Time of the clock up to which `_erased` is used."""

    def __call__(self, keyid: str) -> Key | None:
        """The key; None where its person was erased. Raises KeyMissing."""
        if self._clock() >= self._until:
            self._refresh()
        if keyid in self._erased:
            return None
        key = self._find(keyid)
        if key is None:
            # It may have been destroyed since, by an erasure that the log has.
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
