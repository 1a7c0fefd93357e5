"""Anchors: the places where the neighbours of a failure are found. Pure. Source: docs/patterns.md.

A rollout can lie in several neighbourhoods, which its row in the tables names:

    kind    the generator of its task, `ENV/GENERATOR` (kinds.py), if it was generated
    tools   every tool of its gold actions and of the agent's calls
    words   a min-hash of its opening request, without a kind: two requests that share words have
            equal values at many of its places

A failure has one anchor, the first of: its kind; its pivot tool with its words, where the near
rollouts with that tool lie; the tool alone; its words; its own task. A pattern keeps the anchors of
its failures with a weight, the number of failures, halved with every round.

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
"""The words, a colon and the tool follow."""
WORDS: Final = "words:"
TASK: Final = "task:"

PLACES: Final = 16
"""Values of a signature; each takes four hexadecimal digits."""
NEAR: Final = 6
"""Least equal values of near requests: shares of common words of .2, .4 and .6 are near with
probabilities of about .08, .67 and .98."""

TOOLS: Final = 64
"""Most tools that a rollout's row names."""
TOOL_CHARACTERS: Final = 100
"""Longest kept name of a tool: that of a gold action's."""

_DIGITS: Final = 4
_REQUEST_CHARACTERS: Final = 4_000
_REQUEST_WORDS: Final = 64
_WORD: Final = re.compile(r"[^\W\d_]{3,}")
_LEAST_WEIGHT: Final = 2.0**-20


def sign_request(messages: Sequence[Message]) -> str | None:
    """Return the signature of the user's first message; None if it has no words."""
    text = next((message.text for message in messages if message.role == "user"), "")
    words = sorted(set(_WORD.findall(text[:_REQUEST_CHARACTERS].lower())))[:_REQUEST_WORDS]
    if not words:
        return None
    hashes = [unpack(f"<{PLACES}H", _hash(word)) for word in words]
    return "".join(f"{min(column):04x}" for column in zip(*hashes, strict=True))


def _hash(word: str) -> bytes:
    return blake2b(word.encode(), digest_size=2 * PLACES).digest()


def select_tools(names: Iterable[str]) -> list[str]:
    """Return the tools that a row names: sorted, at most `TOOLS`, without overlong names."""
    return sorted({name for name in names if 0 < len(name) <= TOOL_CHARACTERS})[:TOOLS]


def add_round(weights: Mapping[str, float], failures: Mapping[str, int]) -> dict[str, float]:
    """Return a pattern's `ANCHORS` heaviest anchors after one more round with these failures. Equal
    ones are ranked by a hash, because names would prefer one wording."""
    added = {
        anchor: weights.get(anchor, 0.0) / 2 + failures.get(anchor, 0)
        for anchor in weights.keys() | failures.keys()
    }
    ranked = sorted(added, key=lambda anchor: (-added[anchor], _hash(anchor)))[:ANCHORS]
    return {anchor: added[anchor] for anchor in sorted(ranked) if added[anchor] >= _LEAST_WEIGHT}


def find_wide_anchor(anchor: str) -> str | None:
    """Return the anchor of the tool alone for the one of a tool and words; None for any other."""
    if not anchor.startswith(NEAR_TOOL):
        return None
    return TOOL + anchor.removeprefix(NEAR_TOOL).split(":", 1)[1]


class AnchorIndex:
    """Finds those of some anchors at which a rollout lies."""

    def __init__(self, anchors: Iterable[str]) -> None:
        self._anchors = frozenset(anchors)
        self._near: dict[tuple[int, str], list[str]] = {}
        for anchor in sorted(self._anchors):
            for place in _places(_select_words(anchor)):
                self._near.setdefault(place, []).append(anchor)

    def match(
        self, kind: str | None, tools: Sequence[str], words: str | None, task_key: str
    ) -> frozenset[str]:
        """Return the anchors at which a rollout with these columns lies."""
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
