"""Similarity of two texts by their words.

    Sim(a, b) = clip(.6 J1 + .3 J2 + .1 min(|a|, |b|) / max(|a|, |b|), 0, 1)

with the Jaccard index Jn of the sets of n words in a row and |.| in characters; 1 for equal texts,
0 where one is empty. Case and runs of white space count for nothing. Source: the released reward of
Structured Reflection (MeiGen-AI/Tool-Reflection-Bench@291bb3e, train/swift/plugin/orm.py) without
an embedding model. Two texts of one length without a common word come to .1.
"""

from collections.abc import Set
from itertools import pairwise
from typing import Final

UNIGRAMS, BIGRAMS, LENGTH = 0.6, 0.3, 0.1

_EPSILON: Final = 1e-8
"""Added to the denominators of Jaccard indices, as in the source."""


def compute_similarity(a: str, b: str) -> float:
    """Return how similar two texts are, between 0 and 1."""
    if not a or not b:
        return 0.0
    words, others = a.lower().split(), b.lower().split()
    if words == others:
        return 1.0
    # Of the texts with single spaces between their words.
    sizes = sorted(sum(map(len, part)) + max(len(part) - 1, 0) for part in (words, others))
    score = (
        UNIGRAMS * _jaccard(set(words), set(others))
        + BIGRAMS * _jaccard(_collect_bigrams(words), _collect_bigrams(others))
        + LENGTH * sizes[0] / sizes[1]
    )
    return min(max(score, 0.0), 1.0)


def _collect_bigrams(words: list[str]) -> Set[tuple[str, ...]]:
    """Return the pairs of words in a row; of a text of one word, that word."""
    return set(pairwise(words)) if len(words) > 1 else {tuple(words)}


def _jaccard(a: Set[object], b: Set[object]) -> float:
    common = len(a & b)
    return common / (len(a) + len(b) - common + _EPSILON)
