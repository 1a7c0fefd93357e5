"""Memory for conversations with equal messages: sessions with the same beginning, answers that
clients may have got in part, and forgotten beginnings. It is bounded."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final

from producers.gateway.capture.digests import AnswerPrefix

MAX_ALIKE: Final = 16
"""Most sessions remembered per beginning; a beginning with more identifies no session."""

_FORGOTTEN_BITS: Final = 1 << 22
_FORGOTTEN_MOST: Final = _FORGOTTEN_BITS // 16
"""Beginnings per generation of the filter. Two generations at 4 bits each give one false positive
in 200 (Bloom 1970, (1 - exp(-4 / 16))^4 per generation)."""


@dataclass(slots=True)
class Cut:
    """Answers to one request of which clients may have got only a part."""

    heard: list[tuple[str, AnswerPrefix]] = field(default_factory=list)
    """(session, the answer's beginning) for each such answer."""
    crowded: bool = False

    def add(self, session: str, heard: AnswerPrefix) -> None:
        if (session, heard) in self.heard:
            return
        self.heard.append((session, heard))
        if len(self.heard) > MAX_ALIKE:
            del self.heard[0]
            self.crowded = True

    def recall(self, earlier: "Cut") -> None:
        """Add older answers from before a restart."""
        newer, self.heard = self.heard, list(earlier.heard)
        self.crowded = self.crowded or earlier.crowded
        for session, heard in newer:
            self.add(session, heard)

    def doubts(self, session: str, answer: AnswerPrefix | None) -> bool:
        """Return whether `answer`, seen in `session`, may be a part of another session's answer."""
        others = [heard for name, heard in self.heard if name != session]
        if self.crowded or (others and answer is None):
            return True
        return answer is not None and any(answer.may_be_cut_from(heard) for heard in others)


class BloomFilter:
    """A 1 MB Bloom filter of beginnings that were forgotten before a call continued them."""

    def __init__(self) -> None:
        self._new, self._old = bytearray(_FORGOTTEN_BITS // 8), bytearray(_FORGOTTEN_BITS // 8)
        self._count = 0

    def add(self, key: tuple[Any, ...]) -> None:
        if self._count >= _FORGOTTEN_MOST:
            self._old, self._new, self._count = self._new, bytearray(_FORGOTTEN_BITS // 8), 0
        self._count += 1
        for place, bit in _bits(key):
            self._new[place] |= bit

    def __contains__(self, key: tuple[Any, ...]) -> bool:
        bits = _bits(key)
        return any(
            all(known[place] & bit for place, bit in bits) for known in (self._new, self._old)
        )

    def recall(self, earlier: "BloomFilter") -> None:
        """Add beginnings that were forgotten before a restart."""
        self._count += earlier._count
        self._new = _either(self._new, earlier._new)
        self._old = _either(self._old, earlier._old)


def _bits(key: tuple[Any, ...]) -> list[tuple[int, int]]:
    raw = blake2b(repr(key).encode("utf-8", "surrogatepass"), digest_size=16).digest()
    numbers = (int.from_bytes(raw[n : n + 4]) % _FORGOTTEN_BITS for n in range(0, 16, 4))
    return [(number >> 3, 1 << (number & 7)) for number in numbers]


def _either(left: bytearray, right: bytearray) -> bytearray:
    both = int.from_bytes(left) | int.from_bytes(right)
    return bytearray(both.to_bytes(len(left)))


@dataclass(slots=True)
class Alike:
    """The sessions of one scope (client key and user) with the same messages and answers."""

    sessions: dict[str, int] = field(default_factory=dict)
    """Session -> number of calls that continued it after this beginning."""
    unheard: set[str] = field(default_factory=set)
    """Sessions whose client may lack this answer, or have it but not as the first choice."""
    asking: Counter[str] = field(default_factory=Counter)
    """Session -> number of unanswered calls that continue it after this beginning."""
    crowded: bool = False
    """Whether sessions were dropped because of the limit, or may have been forgotten."""

    @property
    def is_open(self) -> bool:
        """Return whether a session may exist that no call has continued from here."""
        free = not all(self.sessions.values())
        return free or bool(self.crowded or self.unheard or self.asking)

    def add(self, session: str, heard: bool) -> None:
        if not heard:
            self.unheard.add(session)
        else:
            self.sessions.setdefault(session, 0)
        if len(self.sessions) > MAX_ALIKE:
            continued = next((name for name, count in self.sessions.items() if count), None)
            del self.sessions[next(iter(self.sessions)) if continued is None else continued]
            self.crowded = self.crowded or continued is None
        if len(self.unheard) > MAX_ALIKE:
            self.unheard.pop()
            self.crowded = True

    def select_session(self, directly: bool, asked: Callable[[str], bool]) -> str | None:
        """Return the one session that a request can continue, or None. `directly`: no later answer
        is in the request. `asked`: whether a call of a session already had more of its messages."""
        if self.crowded or self.unheard - self.sessions.keys():
            return None
        if len(self.sessions) == 1 and asked(only := next(iter(self.sessions))):
            return only
        if not directly:
            return None
        free = [name for name, count in self.sessions.items() if not count]
        return free[0] if len(free) == 1 and not self.asking[free[0]] else None

    def recall(self, earlier: "Alike") -> None:
        """Add sessions from before a restart."""
        counts = Counter(earlier.sessions) + Counter(self.sessions)
        names = (*earlier.sessions, *self.sessions)
        self.crowded = self.crowded or earlier.crowded or len(set(names)) > MAX_ALIKE
        self.sessions = {name: counts[name] for name in dict.fromkeys(names)}
        self.unheard |= earlier.unheard
