"""Redaction rules: a name and a text search. Pure. A rule is built in, or an operator's pattern in
RE2's syntax. RE2 takes linear time, so a bad pattern cannot block the gateway. It refuses
back-references and look-around at the start. Built-in rules find the usual spellings, but cards and
IBANs only with a correct checksum and no adjacent digits."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal

from events.errors import KintsugiError

Span = tuple[int, int]
"""Character positions of a match: the first, and the one after the last."""

BuiltIn = Literal["email", "card", "iban", "secret", "phone"]
"""Mail address, payment card, bank account, API key, token or private key, international phone."""

_MOST_DIGITS: Final = 19
_FEWEST_DIGITS: Final = 13
_LONGEST_IBAN: Final = 34
_SHORTEST_IBAN: Final = 15


class BadRule(KintsugiError):
    """A rule that cannot be used."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A finder of one kind of text."""

    name: str
    find: Callable[[str], Iterator[Span]]
    """Yields the matches in a text, which must have no lone surrogates."""


def find_builtin(name: BuiltIn) -> Rule:
    """Return a built-in rule."""
    return Rule(name, _BUILT_IN[name])


def own(name: str, pattern: str) -> Rule:
    """Return an operator's rule. Raises BadRule if RE2 refuses it or it matches the empty text."""
    compiled = _compile(pattern, name)
    if compiled.search("") is not None:
        raise BadRule(f"rule {name!r}: {pattern!r} matches the empty text; let it match more")
    return Rule(name, lambda text: _spans(compiled, text))


@cache
def _compile(pattern: str, name: str) -> Any:
    """Compile a pattern with RE2, which is only imported if there are rules. Raises BadRule."""
    import re2

    options = re2.Options()
    options.log_errors = False  # raised instead
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        why = b"".join(error.args).decode(errors="replace")
        raise BadRule(
            f"rule {name!r}: {pattern!r} is no expression of RE2 ({why}); see "
            "https://github.com/google/re2/wiki/Syntax"
        ) from error


def _spans(compiled: Any, text: str) -> Iterator[Span]:
    for match in compiled.finditer(text):
        begin, end = match.span()
        if end > begin:
            yield begin, end


def _pattern(name: str, pattern: str) -> Callable[[str], Iterator[Span]]:
    return lambda text: _spans(_compile(pattern, name), text)


_SEPARATORS: Final = " \u00a0-"

_DIGITS: Final = r"[0-9](?:[ \x{00A0}-]?[0-9]){12,}"
_ACCOUNT: Final = r"(?i)\b[A-Z]{2}[0-9]{2}(?:[ \x{00A0}-]?[A-Z0-9]){11,}"


def _cards(text: str) -> Iterator[Span]:
    for begin, end in _spans(_compile(_DIGITS, "card"), text):
        yield from _windows(text, begin, end, _FEWEST_DIGITS, _MOST_DIGITS, _is_card)


def _ibans(text: str) -> Iterator[Span]:
    for begin, end in _spans(_compile(_ACCOUNT, "iban"), text):
        yield from _windows(text, begin, end, _SHORTEST_IBAN, _LONGEST_IBAN, _is_iban)


def _windows(
    text: str, begin: int, end: int, fewest: int, most: int, right: Callable[[str], bool]
) -> Iterator[Span]:
    """Yield runs of whole digit groups that satisfy `right` and have `fewest` to `most` characters:
    from the left, the longest first. Neighbouring text may look like groups, so any may be the
    first or last."""
    groups = list(_groups(text, begin, end))
    first = 0
    while first < len(groups):
        last = _last(text, groups, first, fewest, most, right)
        if last is None:
            first += 1
            continue
        yield groups[first][0], groups[last][1]
        first = last + 1


def _groups(text: str, begin: int, end: int) -> Iterator[Span]:
    at = begin
    for place in range(begin, end):
        if text[place] in _SEPARATORS:
            yield at, place
            at = place + 1
    yield at, end


def _last(
    text: str,
    groups: Sequence[Span],
    first: int,
    fewest: int,
    most: int,
    right: Callable[[str], bool],
) -> int | None:
    longest: int | None = None
    joined = ""
    for last in range(first, len(groups)):
        joined += text[slice(*groups[last])]
        if len(joined) > most:
            break
        if len(joined) >= fewest and right(joined):
            longest = last
    return longest


def _is_card(digits: str) -> bool:
    """Return whether Luhn's checksum holds; no card begins with 0, 1, 7, 8 or 9."""
    if digits[0] not in "23456":
        return False
    doubled = [int(digit) * 2 for digit in digits[-2::-2]]
    plain = [int(digit) for digit in digits[-1::-2]]
    return (sum(plain) + sum(twice // 10 + twice % 10 for twice in doubled)) % 10 == 0


def _is_iban(account: str) -> bool:
    """Return whether the checksum of ISO 7064 mod 97-10 holds."""
    if not (account[:2].isalpha() and account[2:4].isdigit()):
        return False
    return int("".join(str(int(char, 36)) for char in account[4:] + account[:4])) % 97 == 1


_MAIL: Final = (
    r"[\p{L}\p{N}_%+-](?:[\p{L}\p{N}._%+'-]*[\p{L}\p{N}_%+-])?"
    r"@[\p{L}\p{N}-]+(?:\.[\p{L}\p{N}-]+)*"
    r"\.[\p{L}]{2,}"
)
_PHONE: Final = r"\+[1-9](?:[ ().\x{00A0}-]{0,2}[0-9]){6,14}\b"
_SECRET: Final = "|".join(
    (
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----[^-]*(?:-----END [A-Z ]*PRIVATE KEY-----)?",
        r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*",  # JSON Web Token
        r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",  # AWS
        r"\bAIza[\w-]{35}",  # Google
        r"\bgh[pousr]_[A-Za-z0-9]{20,}",
        r"\bgithub_pat_\w{20,}",
        r"\bglpat-[\w-]{16,}",
        r"\bhf_[A-Za-z0-9]{16,}",
        r"\bkg-[\w-]{43}",  # ours
        r"\b[rsp]k_(?:live|test)_\w{10,}",  # Stripe
        r"\bsk-[\w-]{16,}",  # OpenAI, Anthropic and others
        r"\bxox[abeprs]-[A-Za-z0-9-]{10,}",  # Slack
        r"(?i:\bbearer\s+)[\w.~+/=-]{8,}",
    )
)

_BUILT_IN: Final[Mapping[BuiltIn, Callable[[str], Iterator[Span]]]] = {
    "email": _pattern("email", _MAIL),
    "card": _cards,
    "iban": _ibans,
    "secret": _pattern("secret", _SECRET),
    "phone": _pattern("phone", _PHONE),
}
