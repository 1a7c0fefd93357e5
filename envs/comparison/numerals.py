"""Decide whether a text says an output, in any of the forms in which people write numbers.

A number is one token by its value: "1,250.00", "$1,250" and "1250" are the same. Any other run of
letters and digits is a token in lower case. Signs between tokens mean nothing. A text says an
output if it has the output's tokens in a row.

    "-$5"   "**250**"   "1,250 EUR"    -5; 250; 1250 and the word eur
    "5-7"   "3,4,5"   ".5"   "25%"     5, 7; 3, 4, 5; 0.5; 25
    "250GB"   "250 GB"   "5-day"       a number and a word
    "12:30"   "3/4"   "2024-05-15"     no number: times, fractions, dates,
    "1.2.3"   "W123"   "15th"   "007"  versions, ids and ordinals

Guarantee: pure, in time linear in the text's length. Not covered: numbers in words ("twelve") or
with a power of ten ("1.5M"), and a comma as the decimal sign.
"""

import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Final

from events.canonical import canonical

_DIGITS: Final = 40
"""Largest number of characters of a number. A longer run of digits is a code."""

_SPACES: Final = "\u00a0\u2009\u202f"
"""Spaces without a line break. Between digits they group thousands."""
_HYPHENS: Final = str.maketrans(dict.fromkeys("\u2010\u2011\u2012\u2212", "-"))
"""Translation of other hyphens and of the minus sign to `-`."""

_RUN: Final = re.compile(
    rf"""
    (?P<sign>(?<![\w.,)\]%-])[-–](?=[$€£¥₹]?\.?[0-9]))?  # of "-5" and "-$5", not of a range
    [$€£¥₹]?
    (?P<run>
        (?:(?<![\w.])\.(?=[0-9]))?                    # of ".5"
        [^\W_]+
        (?:(?:
            (?<=[0-9])[.,:/{_SPACES}](?=[0-9])        # of "1,250.00", "12:30" and "3/4"
            | (?<=[0-9])–(?=[0-9])                    # the dash of ranges
            | -(?=[^\W_])                             # of "5-7", "5-day" and "2024-05-15"
            | _+(?=[^\W_])                            # of "gift_card_5"
        )[^\W_]+)*
    )
    """,
    re.VERBOSE,
)

_CURRENCY: Final = "usd|eur|gbp|cad|jpy|inr"
_NUMBER: Final = (
    rf"(?:(?:[1-9][0-9]{{0,2}}(?:[,{_SPACES}][0-9]{{3}})+|[1-9][0-9]*|0)(?:\.[0-9]+)?|\.[0-9]+)"
)
_QUANTITY: Final = re.compile(
    rf"(?P<currency>{_CURRENCY})?(?P<low>{_NUMBER})(?:[-–](?P<high>{_NUMBER}))?"
    rf"(?P<unit>[kmgt]b|[ckm]m|kg|lbs?|oz|hrs?|mins?|secs?|ms|am|pm|{_CURRENCY})?"
    r"(?P<words>(?:-[^\W\d_]+)*)"
)
"""A number or a range, with a currency, a unit or words that are attached without a space."""

_GROUPING: Final = re.compile(rf"[,{_SPACES}]")
_DIGIT_RUN: Final = re.compile(rf"[0-9]{{1,{_DIGITS}}}")
_PART: Final = re.compile(r"[0-9]+(?=[ap]m\b)|\w+")


def find_numbers(text: str) -> Iterator[Decimal]:
    """Yield the values of the numbers in a text, in order."""
    for token in _find_tokens(text):
        if token[0] == "=":
            yield Decimal(token[1:])


def find_values(text: str) -> Iterator[Decimal]:
    """Yield the numbers of a text, and digits in its other tokens, such as the parts of a date."""
    for token in _find_tokens(text):
        for value in (token[1:],) if token[0] == "=" else _DIGIT_RUN.findall(token):
            yield Decimal(value)


def says(text: str, output: str) -> bool:
    """Return whether a text says an output, by the tokens described above."""
    return not find_unsaid((output,), (text,))


def find_unsaid(outputs: Sequence[str], texts: Sequence[str]) -> tuple[str, ...]:
    """Return the outputs that no text says."""
    spoken = [(text.casefold(), _join_tokens(text)) for text in texts]
    return tuple(output for output in outputs if not _is_in(output, spoken))


def _is_in(output: str, spoken: Sequence[tuple[str, str]]) -> bool:
    # An output of signs alone, such as an emoji, has no token; it is compared as text.
    wanted = _join_tokens(output)
    if not wanted.strip():
        return any(output.casefold() in text for text, _ in spoken)
    return any(wanted in tokens for _, tokens in spoken)


@lru_cache(maxsize=64)
def _join_tokens(text: str) -> str:
    return f" {' '.join(_find_tokens(text))} "


def _find_tokens(text: str) -> Iterator[str]:
    """Yield the tokens of a text: numbers as `=` and their shortest form, others in lower case."""
    for match in _RUN.finditer(canonical(text).translate(_HYPHENS)):
        yield from _split_run(match["run"].casefold(), "-" if match["sign"] else "")


def _split_run(run: str, sign: str) -> Iterator[str]:
    whole = _QUANTITY.fullmatch(run)
    for part in (run,) if whole else run.split(","):
        quantity = whole or _QUANTITY.fullmatch(part)
        if quantity is None or len(part) > _DIGITS:
            yield from _PART.findall(part)
        else:
            yield from _read_quantity(quantity, sign)
        sign = ""


def _read_quantity(quantity: re.Match[str], sign: str) -> Iterator[str]:
    if quantity["currency"]:
        yield quantity["currency"]
    yield _shorten(quantity["low"], sign)
    if quantity["high"]:
        yield _shorten(quantity["high"])
    if quantity["unit"]:
        yield quantity["unit"]
    yield from quantity["words"].split("-")[1:]


def _shorten(number: str, sign: str = "") -> str:
    """Return the token of a number, without digit grouping and superfluous zeros."""
    integer, _, fraction = _GROUPING.sub("", number).partition(".")
    integer, fraction = integer or "0", fraction.rstrip("0")
    if integer == "0" and not fraction:
        return "=0"
    return f"={sign}{integer}.{fraction}" if fraction else f"={sign}{integer}"
