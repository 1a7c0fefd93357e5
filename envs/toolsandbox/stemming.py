"""Porter's stemmer (M. F. Porter, An algorithm for suffix stripping, Program 14(3), 1980), in the
variant of the distribution nltk that rouge-score and so ToolSandbox uses.

The variant differs in a few irregular words, in `y` (`days` is `day`), in short words in `-ies` and
`-ied`, and in `-fully` and `-logy`. The library takes seconds to import and brings numpy and scipy.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Final

_Rule = tuple[str, str, Callable[[str], bool]]
"""Suffix, its replacement, and a condition on the text before the suffix."""

_LONGEST: Final = 50
"""Largest length of a word that is stemmed. No English word is longer."""

_IRREGULAR: Final = {
    "sky": "sky",
    "skies": "sky",
    "dying": "die",
    "lying": "lie",
    "tying": "tie",
    "news": "news",
    "inning": "inning",
    "innings": "inning",
    "outing": "outing",
    "outings": "outing",
    "canning": "canning",
    "cannings": "canning",
    "howe": "howe",
    "proceed": "proceed",
    "exceed": "exceed",
    "succeed": "succeed",
}


def stem(word: str) -> str:
    """Return a lower-case word's stem. Words under 3 or over 50 letters stay unchanged."""
    return _stem(word) if len(word) <= _LONGEST else word


@lru_cache(maxsize=16_384)
def _stem(word: str) -> str:
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if len(word) <= 2:
        return word
    for step in (_plural, _past, _final_y, _double_suffix, _suffix, _last_suffix, _final_e):
        word = step(word)
    return word


def _is_consonant(word: str, place: int) -> bool:
    letter = word[place]
    if letter == "y":
        return place == 0 or not _is_consonant(word, place - 1)
    return letter not in "aeiou"


@lru_cache(maxsize=16_384)
def _measure(text: str) -> int:
    """Return Porter's m in [C](VC)^m[V]: how many times a consonant follows a vowel."""
    kinds = [_is_consonant(text, place) for place in range(len(text))]
    return sum(not first and second for first, second in pairwise(kinds))


def _has_measure(text: str) -> bool:
    return _measure(text) > 0


def _is_long(text: str) -> bool:
    return _measure(text) > 1


def _has_vowel(text: str) -> bool:
    return any(not _is_consonant(text, place) for place in range(len(text)))


def _ends_double(word: str) -> bool:
    return len(word) >= 2 and word[-1] == word[-2] and _is_consonant(word, len(word) - 1)


def _ends_cvc(word: str) -> bool:
    """Return whether a word ends in consonant, vowel, consonant (not w, x, y), or is a VC word."""
    if len(word) == 2:
        return not _is_consonant(word, 0) and _is_consonant(word, 1)
    return (
        len(word) >= 3
        and _is_consonant(word, len(word) - 3)
        and not _is_consonant(word, len(word) - 2)
        and _is_consonant(word, len(word) - 1)
        and word[-1] not in "wxy"
    )


def _apply(word: str, rules: Sequence[_Rule]) -> str:
    """Apply the first rule whose suffix the word has. If its condition fails, change nothing."""
    for suffix, replacement, holds in rules:
        if word.endswith(suffix):
            rest = word[: len(word) - len(suffix)]
            return rest + replacement if holds(rest) else word
    return word


def _always(_: str) -> bool:
    return True


def _plural(word: str) -> str:
    if word.endswith("ies") and len(word) == 4:
        return word[:-1]
    return _apply(
        word,
        (
            ("sses", "ss", _always),
            ("ies", "i", _always),
            ("ss", "ss", _always),
            ("s", "", _always),
        ),
    )


def _past(word: str) -> str:
    if word.endswith("ied"):
        return word[:-1] if len(word) == 4 else word[:-2]
    if word.endswith("eed"):
        return word[:-1] if _has_measure(word[:-3]) else word
    for suffix in ("ed", "ing"):
        if word.endswith(suffix):
            rest = word[: -len(suffix)]
            return _restore_e(rest) if _has_vowel(rest) else word
    return word


def _restore_e(word: str) -> str:
    if word.endswith(("at", "bl", "iz")):
        return f"{word}e"
    if _ends_double(word):
        return word if word[-1] in "lsz" else word[:-1]
    return f"{word}e" if _measure(word) == 1 and _ends_cvc(word) else word


def _final_y(word: str) -> str:
    rest = word[:-1]
    if word.endswith("y") and len(rest) > 1 and _is_consonant(rest, len(rest) - 1):
        return f"{rest}i"
    return word


_DOUBLE: Final[tuple[_Rule, ...]] = tuple(
    (suffix, replacement, _has_measure)
    for suffix, replacement in (
        ("ational", "ate"),
        ("tional", "tion"),
        ("enci", "ence"),
        ("anci", "ance"),
        ("izer", "ize"),
        ("bli", "ble"),
        ("alli", "al"),
        ("entli", "ent"),
        ("eli", "e"),
        ("ousli", "ous"),
        ("ization", "ize"),
        ("ation", "ate"),
        ("ator", "ate"),
        ("alism", "al"),
        ("iveness", "ive"),
        ("fulness", "ful"),
        ("ousness", "ous"),
        ("aliti", "al"),
        ("iviti", "ive"),
        ("biliti", "ble"),
        ("fulli", "ful"),
    )
)


def _double_suffix(word: str) -> str:
    if word.endswith("alli") and _has_measure(word[:-4]):
        return _double_suffix(word[:-2])
    if word.endswith("logi"):
        return word[:-1] if _has_measure(word[:-3]) else word
    return _apply(word, _DOUBLE)


_SINGLE: Final[tuple[_Rule, ...]] = tuple(
    (suffix, replacement, _has_measure)
    for suffix, replacement in (
        ("icate", "ic"),
        ("ative", ""),
        ("alize", "al"),
        ("iciti", "ic"),
        ("ical", "ic"),
        ("ful", ""),
        ("ness", ""),
    )
)


def _suffix(word: str) -> str:
    return _apply(word, _SINGLE)


def _is_long_before_ion(text: str) -> bool:
    return _is_long(text) and text[-1] in "st"


_LAST: Final[tuple[_Rule, ...]] = tuple(
    (suffix, "", _is_long_before_ion if suffix == "ion" else _is_long)
    for suffix in (
        *("al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ion"),
        *("ou", "ism", "ate", "iti", "ous", "ive", "ize"),
    )
)


def _last_suffix(word: str) -> str:
    return _apply(word, _LAST)


def _final_e(word: str) -> str:
    if word.endswith("e"):
        rest = word[:-1]
        if _measure(rest) > 1 or (_measure(rest) == 1 and not _ends_cvc(rest)):
            word = rest
    return word[:-1] if word.endswith("ll") and _is_long(word[:-1]) else word
