"""Anchors: keys that tell which rollouts are similar to a failure. Pure. Source: docs/patterns.md.

Three columns of a rollout's row say which other rollouts it is similar to:

    kind    the generator of its task, `ENV/GENERATOR` (kinds.py), if it was generated
    tools   every tool of its gold actions and of the agent's calls
    words   a min-hash of its opening request, without a kind: two requests that share words have
            equal values at many of its places

A failure has one anchor, the first that exists: its kind; its pivot tool together with its words;
the pivot tool alone; its words; its own task. A pattern keeps the anchors of its failures. An
anchor's weight is its number of failures, where older failures count half with every round.

Guarantee: no clock and no randomness; the words of a sealed rollout are never read.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from struct import unpack
from typing import Final

from events.messages import Message

ANCHORS: Final = 32
"""Most anchors of one pattern."""

KIND: Final = "kind:"
TOOL: Final = "tool:"
NEAR_TOOL: Final = "near:"
"""Prefix of an anchor of words and tool; the words, a colon and the tool's name follow."""
WORDS: Final = "words:"
TASK: Final = "task:"

PLACES: Final = 16
"""Number of hash values in a request's signature; each takes four hexadecimal digits."""
NEAR: Final = 6
"""Two requests are near if at least this many of their hash values are equal. If they share .2, .4
or .6 of their words, they are near with probability .08, .67 or .98."""

TOOLS: Final = 64
"""Most tools that a rollout's row names."""
TOOL_CHARACTERS: Final = 100
"""Most characters of a tool's name in a rollout's row, the same limit as for a gold action."""

_DIGITS: Final = 4
_REQUEST_CHARACTERS: Final = 4_000
_REQUEST_WORDS: Final = 64
_WORD: Final = re.compile(r"[^\W\d_]{3,}")
_LEAST_WEIGHT: Final = 2.0**-20


def sign_request(messages: Sequence[Message]) -> str | None:
    """Return the min-hash signature of the user's first message, or None if it has no words."""
    text = next((message.text for message in messages if message.role == "user"), "")
    words = sorted(set(_WORD.findall(text[:_REQUEST_CHARACTERS].lower())))[:_REQUEST_WORDS]
    if not words:
        return None
    hashes = [unpack(f"<{PLACES}H", _hash(word)) for word in words]
    return "".join(f"{min(column):04x}" for column in zip(*hashes, strict=True))


def _hash(word: str) -> bytes:
    return blake2b(word.encode(), digest_size=2 * PLACES).digest()


def select_tools(names: Iterable[str]) -> list[str]:
    """Return the tools for a rollout's row: sorted, at most `TOOLS`, without overlong names."""
    return sorted({name for name in names if 0 < len(name) <= TOOL_CHARACTERS})[:TOOLS]


def add_round(weights: Mapping[str, float], failures: Mapping[str, int]) -> dict[str, float]:
    """Return a pattern's `ANCHORS` heaviest anchors after one more round: halve `weights`, then add
    `failures`. A hash breaks ties, because an order by name would prefer certain words."""
    added = {
        anchor: weights.get(anchor, 0.0) / 2 + failures.get(anchor, 0)
        for anchor in weights.keys() | failures.keys()
    }
    ranked = sorted(added, key=lambda anchor: (-added[anchor], _hash(anchor)))[:ANCHORS]
    return {anchor: added[anchor] for anchor in sorted(ranked) if added[anchor] >= _LEAST_WEIGHT}


def find_wide_anchor(anchor: str) -> str | None:
    """Return the anchor of the tool alone if `anchor` is of a tool and words, else None."""
    if not anchor.startswith(NEAR_TOOL):
        return None
    return TOOL + anchor.removeprefix(NEAR_TOOL).split(":", 1)[1]


class AnchorIndex:
    """Finds which of the given anchors match a rollout."""

    def __init__(self, anchors: Iterable[str]) -> None:
        self._anchors = frozenset(anchors)
        self._near: dict[tuple[int, str], list[str]] = {}
        for anchor in sorted(self._anchors):
            for place in _places(_select_words(anchor)):
                self._near.setdefault(place, []).append(anchor)

    def match(
        self, kind: str | None, tools: Sequence[str], words: str | None, task_key: str
    ) -> frozenset[str]:
        """Return the anchors that match a rollout with these columns."""
        names = [TOOL + tool for tool in tools]
        names.append(TASK + task_key)
        if kind is not None:
            names.append(KIND + kind)
        matches = self._anchors.intersection(names)
        return matches if words is None else matches.union(self._match_words(words, tools))

    def _match_words(self, words: str, tools: Sequence[str]) -> list[str]:
        equal: dict[str, int] = {}
        for place in _places(words):
            for anchor in self._near.get(place, ()):
                equal[anchor] = equal.get(anchor, 0) + 1
        wide = {None, *(TOOL + tool for tool in tools)}
        return [
            anchor
            for anchor, places in equal.items()
            if places >= NEAR and find_wide_anchor(anchor) in wide
        ]


def _select_words(anchor: str) -> str:
    if anchor.startswith(NEAR_TOOL):
        return anchor.removeprefix(NEAR_TOOL).split(":", 1)[0]
    return anchor.removeprefix(WORDS) if anchor.startswith(WORDS) else ""


def _places(signature: str) -> list[tuple[int, str]]:
    return [
        (start, signature[start : start + _DIGITS]) for start in range(0, len(signature), _DIGITS)
    ]
