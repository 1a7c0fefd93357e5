"""The spellings of values and names: whether a word is a value, and whether a text has it (pure).
`is_value("O85")` is True; for "24-hour", "9th-10th" and "12.00" it is False.
`has_value("onmay16th", "2024-05-16")` is True; its text is squeezed (words.py)."""

import re
from collections.abc import Container, Iterable, Iterator
from datetime import date
from typing import Final

from envs.evidence.words import squeeze, squeeze_word
from envs.patterns.search import matches

_LONG_NUMBER: Final = 4
"""Number of digits from which on a number counts as a value."""

_UNIT: Final = "(?:st|nd|rd|th|am|pm|x|k|h|hrs?|mins?|[gmk]b|kg|lbs?|cm|mm|ft)?"
_MEASURE: Final = re.compile(rf"\d{{1,3}}{_UNIT}(?:-(?:\d{{1,3}}{_UNIT}|[a-z]+))*", re.IGNORECASE)
"""A time, an ordinal, a size: `2-3pm`, `9th`, `24-hour`."""
_YEAR: Final = re.compile(r"(?:19|20)\d\d")
_DECIMAL: Final = re.compile(r"(\d+)\.(\d+)")
_DATE: Final = re.compile(r"(\d{4})-(\d\d)-(\d\d)")
_OTHER_DATE: Final = re.compile(r"(\d\d?)([.-])(\d\d?)\2(\d{4}|\d\d)")
"""A date with day and month, in either order, before the year."""
_SHORTEST_ID: Final = 5
"""Number of characters from which on an id is looked for in other spellings."""
_LONGEST_ID: Final = 100
"""Number of characters up to which an id is looked for in other spellings."""
_PARTICLES: Final = frozenset(
    {"in", "out", "up", "on", "off", "down", "back", "over", "away", "by", "through", "around"}
)
"""Last words of phrasal verbs. Written as one word, such a verb is also a noun."""
_LEAST_PARTS: Final = 3
"""Number of words from which on a name with hyphens is not taken for English."""
_DIGITS: Final = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_DIGIT_WORD: Final = re.compile(rf"\b(?:{'|'.join(_DIGITS)})\b", re.IGNORECASE)
_NUMBER_WORD: Final = re.compile(
    r"\b(?:zero|oh|one|two|three|four|five|six|seven|eight|nine|ten|\w+teen|\w+ty|hundred|thousand)"
    r"\b",
    re.IGNORECASE,
)


def is_value(word: str) -> bool:
    """Return whether a word is an id of letters and digits, or a long number other than a year."""
    digits = sum(character.isdigit() for character in word)
    if not digits or _MEASURE.fullmatch(word) or _YEAR.fullmatch(word):
        return False
    if (decimal := _DECIMAL.fullmatch(word)) and not decimal[2].strip("0"):
        return is_value(decimal[1])
    return digits >= _LONG_NUMBER or any(character.isalpha() for character in word)


def has_value(text: str, value: str) -> bool:
    """Return whether `text` (lower-case letters and digits only) has a value, in any usual
    spelling."""
    return squeeze(value) in text or any(spelling in text for spelling in _respell(value))


def has_id(text: str, value: str) -> bool:
    """Return whether a text has an id with a digit, in one of several spellings. It may follow a
    sign or a word, have signs or spaces between its characters, or have its digits in words."""
    if not _SHORTEST_ID <= len(value) <= _LONGEST_ID or not any(map(str.isdigit, value)):
        return False
    plain = _DIGIT_WORD.sub(lambda word: str(_DIGITS.index(word[0].lower())), text)
    before = r"\D" if value[0].isdigit() else r"[\W_]"
    characters = r"[\W_]{0,2}".join(map(re.escape, value))
    return matches(rf"(?:^|{before}){characters}(?:\D|\Z)", plain)


def find_name(
    words: Iterable[str], names: Iterable[str], common: Container[str] = ()
) -> str | None:
    """Return the name with an underscore that one of the words spells, in lower case; else None. A
    word may have the name behind a point (`shop.cancel_order`), without underscores
    (`cancelorder`), or with hyphens (from three parts on). English words (`common`, or phrasal
    verbs such as `checkin`) count only with their underscores."""
    spelled = {squeeze_word(name): name for name in names if "_" in name}
    for word in sorted(words):
        for piece in word.split("."):
            name = spelled.get(squeeze_word(piece))
            if name is None:
                continue
            if "_" in piece.strip("_") or not (piece in common or _is_english(piece, name)):
                return name
    return None


def _is_english(word: str, name: str) -> bool:
    """Return whether a word without underscores may be English and not a name."""
    parts = name.lower().strip("_").split("_")
    return parts[-1] in _PARTICLES or ("-" in word and len(parts) < _LEAST_PARTS)


def has_number_words(text: str) -> bool:
    """Return whether a text has at least two number words, such as "twenty five"."""
    return len(_NUMBER_WORD.findall(text)) > 1


def _respell(value: str) -> Iterator[str]:
    """Yield other spellings of an amount or a date, as lower-case letters and digits only."""
    if decimal := _DECIMAL.fullmatch(value):
        yield decimal[1] + decimal[2].rstrip("0")
    if parts := _OTHER_DATE.fullmatch(value):
        first, second = int(parts[1]), int(parts[3])
        for century in ("",) if len(parts[4]) > len("24") else ("19", "20"):
            year = century + parts[4]
            yield f"{year}{first:02}{second:02}"
            yield f"{year}{second:02}{first:02}"
    if parts := _DATE.fullmatch(value):
        try:
            day = date(*map(int, parts.groups()))
        except ValueError:  # no day of the calendar: it has no other spelling
            return
        month = f"{day:%b}".lower()
        whole = f"{day:%B}".lower()
        for name in (month, whole):
            yield f"{name}{day.day}"
            yield f"{name}{day.day:02}"
            yield f"{name}the{day.day}"
        for ending in ("", "st", "nd", "rd", "th", "of", "stof", "ndof", "rdof", "thof"):
            yield f"{day.day}{ending}{month}"
        for first, second in ((day.month, day.day), (day.day, day.month)):
            yield f"{first}{second}{day.year}"
            yield f"{first:02}{second:02}{day.year}"
