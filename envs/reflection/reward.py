"""The reward of a repair: completion and gold in, a number between 0 and 1 out.

    R = S F                                       .15 Sim(all of it) where that is below 1e-6
    S = sum of w_p s_p / sum of w_p               over the parts p that gold has; 1 if it has none
    F = clip(1 - .8 P r, 0, 1)                    r = .3 where the calls are equal, else 1
    P = sum of a_p over the parts that are missing
        + .8 sum of a_p over the parts that gold does not have
        + .6 a_call |n* - n| / max(n*, n)         for unequal numbers of calls, both above 0

Parts: reflection, calls, final answer, with w = a = (.1, .7, .2). s of the calls is 1 if they are
equal as multisets (parse.py), else 0; s of the other parts is Sim. n* and n count the calls of gold
and completion.

    Sim(a, b) = clip(.6 J1 + .3 J2 + .1 min(|a|, |b|) / max(|a|, |b|), 0, 1)

Jn is the Jaccard index of the sets of n consecutive words, and |.| the length in characters. The
released program's Sim also has a part from an embedding model.

Sources: Structured Reflection, arXiv 2509.18847, equations 11 to 25; the constants are those of its
released program (MeiGen-AI/Tool-Reflection-Bench@291bb3e, train/swift/plugin/orm.py). The form
`release` is that program's: if gold has calls and the completion's differ, the reward is 0 at once.
One difference to it remains: r is .3 too if neither has a call.
"""

import json
from collections.abc import Set
from itertools import pairwise
from typing import Final

from envs.reflection.parse import Parts, are_calls_equal
from events.algorithm import RepairForm

REFLECTION, CALLS, FINAL = 0.1, 0.7, 0.2
"""Weight of each part in the score, and importance of each in the penalty."""

EXTRA: Final = 0.8
"""Factor of a part's importance if the completion has the part and gold has not."""
COUNT: Final = 0.6
"""Factor of the calls' importance if the numbers of calls differ."""
PENALTY: Final = 0.8
"""Strength of the penalty."""
EQUAL_CALLS: Final = 0.3
"""Factor of the penalty if the calls are equal."""
LAST_RESORT: Final = 0.15
"""Factor of the whole texts' similarity, which is the reward if the reward is below `LEAST`."""
LEAST: Final = 1e-6
"""Reward below which `LAST_RESORT` applies."""

UNIGRAMS, BIGRAMS, LENGTH = 0.6, 0.3, 0.1
"""Weights of the parts of Sim."""

_EPSILON: Final = 1e-8
"""Term added to the denominators of Jaccard indices, as in the source."""

REPAIR_SHARE: Final = 0.5
"""Factor of a repair's reward beside its episode's verdict (a decision of this project)."""


def compute_reward(completion: Parts, gold: Parts, form: RepairForm = "paper") -> float:
    """Return a completion's reward, between 0 and 1. Gold may be parsed once for many."""
    equal = are_calls_equal(completion.calls, gold.calls)
    if form == "release" and gold.calls and not equal:
        return 0.0
    factor = 1 - PENALTY * _penalty(completion, gold) * (EQUAL_CALLS if equal else 1.0)
    value = _score(completion, gold, equal) * max(factor, 0.0)
    if value < LEAST:
        value = LAST_RESORT * compute_similarity(_line_up(completion), _line_up(gold))
    return min(max(value, 0.0), 1.0)


def combine_with_verdict(repair: float, verdict: float) -> float:
    """Return the larger of the episode's verdict and half of the repair's reward."""
    return max(REPAIR_SHARE * repair, verdict)


def _score(completion: Parts, gold: Parts, equal: bool) -> float:
    total = weight = 0.0
    if gold.reflection:
        weight += REFLECTION
        total += REFLECTION * compute_similarity(completion.reflection, gold.reflection)
    if gold.calls:
        weight += CALLS
        total += CALLS * equal
    if gold.final:
        weight += FINAL
        total += FINAL * compute_similarity(completion.final, gold.final)
    return total / weight if weight else 1.0


def _penalty(completion: Parts, gold: Parts) -> float:
    penalty = 0.0
    for importance, present, expected in (
        (REFLECTION, bool(completion.reflection), bool(gold.reflection)),
        (CALLS, bool(completion.calls), bool(gold.calls)),
        (FINAL, bool(completion.final), bool(gold.final)),
    ):
        if expected and not present:
            penalty += importance
        elif present and not expected:
            penalty += EXTRA * importance
    count, other = len(completion.calls), len(gold.calls)
    if count and other:
        penalty += COUNT * CALLS * abs(count - other) / max(count, other)
    return penalty


def _line_up(parts: Parts) -> str:
    calls = [{"name": call.name, "arguments": call.arguments} for call in parts.calls]
    return f"{parts.reflection} {json.dumps(calls)} {parts.final}"


def compute_similarity(a: str, b: str) -> float:
    """Return Sim of two texts: 0 if one is empty, 1 if their words are equal. Case and runs of
    white space do not matter. Texts of one length without a common word have .1."""
    if not a or not b:
        return 0.0
    words, others = a.lower().split(), b.lower().split()
    if words == others:
        return 1.0
    # Lengths of the texts with single spaces between words.
    sizes = sorted(sum(map(len, part)) + max(len(part) - 1, 0) for part in (words, others))
    score = (
        UNIGRAMS * _jaccard(set(words), set(others))
        + BIGRAMS * _jaccard(_collect_bigrams(words), _collect_bigrams(others))
        + LENGTH * sizes[0] / sizes[1]
    )
    return min(max(score, 0.0), 1.0)


def _collect_bigrams(words: list[str]) -> Set[tuple[str, ...]]:
    """Return the pairs of consecutive words, or the word itself if there is only one."""
    return set(pairwise(words)) if len(words) > 1 else {tuple(words)}


def _jaccard(a: Set[object], b: Set[object]) -> float:
    common = len(a & b)
    return common / (len(a) + len(b) - common + _EPSILON)
