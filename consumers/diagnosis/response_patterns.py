r"""Classify a sentence: a refusal, an open question, a handover, an overflowing context.

The rules of thumb are for English and for cases that the calls leave open. Each reads single
sentences, so that a word in one does not affect the next. Guarantee: time linear in the length of
any text. The patterns are Python's, not RE2's, which lacks look-ahead and Unicode `\w` and `\b`.
"""

import re
from collections.abc import Iterator
from typing import Final

READ_CHARACTERS: Final = 100_000
"""Most characters of a text that are read: half at its beginning, half at its end."""

_NEGATIONS: Final = ("not", "n't", "n’t", "unable", "ineligible", "against", "outside", "only")
"""Every refusal has one of these: most texts have none and are not read any further."""

_SENTENCE: Final = re.compile(r"[^.!?\n]+(?:[.!?](?=\w)[^.!?\n]+)*[.!?]*")
"""A full stop inside a word (`$23.50`) does not end a sentence."""

_ACTS: Final = (
    r"add|adjust|allow|alter|amend|apply|approve|arrange|book|cancel|change|combine|compensate|"
    r"complete|do|exchange|fulfil?l?|grant|honou?r|issue|make|modify|offer|override|perform|"
    r"proceed|process|provide|refund|remove|reschedule|resume|return|send|separate|split|switch|"
    r"undo|update|upgrade|waive"
)
_DONE: Final = (
    r"added|adjusted|altered|amended|approved|booked|cancell?ed|changed|compensated|done|"
    r"exchanged|fulfilled|issued|made|modified|processed|provided|refunded|removed|rescheduled|"
    r"resumed|returned|separated|split|switched|undone|updated|upgraded|waived"
)
_UNABLE: Final = (
    r"(?:can ?not|can['’]t|could(?: not|n['’]t)|unable to|(?:not|n['’]t)(?: be)? able to)"
)

_REFUSALS: Final = re.compile(
    rf"\b(?:i|we)\b[^,;]{{0,30}}?{_UNABLE}(?: \w+ly)? (?:{_ACTS})\b"
    rf"|\b(?:i|we) (?:do not|don['’]t) (?:offer|provide|allow|have the ability)\b"
    rf"|\b(?:can ?not|can['’]t|may not) (?:\w+ly )?be (?:\w+ly )?(?:{_DONE})\b"
    r"|\b(?:not|n['’]t)(?: be)?(?: \w+ly| currently)? (?:eligible|allowed|permitted|possible|"
    r"permit|allow|qualify|entitled)\b"
    rf"|\bcan only be (?:\w+ly )?(?:{_DONE}) (?:for|if|when|on)\b"
    r"|\b(?:ineligible|against (?:our|the|airline|company) policy|outside (?:of )?(?:our|the) "
    r"policy)\b"
)
_NO_REFUSAL: Final = re.compile(
    # A condition, a warning, or a request for missing data.
    r"^\s*(?:[-*\d.]+\s*)?(?:if|once|whether|unless)\b|\bonce\b|\bafterwards?\b|\blater on\b"
    r"|\b(?:without|until) (?:your|you|this|that|these|the)\b|\b(?:more|again) after\b"
)

_COURTESY: Final = re.compile(
    r"\b(?:any|some)thing else\b|\b(?:what|how) else\b|\bany (?:other|more|further|additional)\b"
    r"|\bfurther (?:assistance|help|questions?)\b|\b(?:assist|help) you (?:further|today)\b"
    r"|\bother (?:questions?|concerns?|requests?)\b|\bis there more\b"
)
_PROPOSAL: Final = re.compile(
    r"\b(?:proceed|confirm|would you like me to|do you want me to|shall i|should i)\b"
)

_REQUEST: Final = re.compile(
    r"\bplease (?:confirm|provide|specify|choose|select|tell me|share)\b"
    r"|\blet me know (?:which|what|how|when|whether|your)\b|\blet me know if (?:you['’]d like|you "
    r"would like|you want) (?:me )?to\b|\bonce (?:you (?:confirm|provide)|confirmed)\b"
)
"""Requests without a question mark."""

_HANDOVER: Final = re.compile(
    r"\b(?:you are|you['’]re) being transferred\b|\b(?:i am|i['’]m)(?: now)? transferring you\b"
    r"|\bi(?:['’]ll| will| am going to|['’]m going to)(?: now)? transfer (?:you|this|your)\b"
)

_OVERFLOW: Final = re.compile(
    r"context[ _-]?(?:window|length|limit|size)|max(?:imum)?[ _-](?:context|model[ _-]len)"
    r"|(?:prompt|input|request|conversation) (?:is )?too (?:long|large)|too many tokens"
    r"|token limit",
    re.IGNORECASE,
)
_EXCEED: Final = re.compile("exceed", re.IGNORECASE)
_REST_OF_WORD: Final = re.compile(r"\w*")
_TOKENS: Final = re.compile(r" .{0,40}\btokens\b", re.IGNORECASE)
r"""`exceed\w* .{0,40}\btokens\b` in three parts. A single pattern would take quadratic time."""


def refuses(text: str) -> bool:
    """Return whether the agent says that it will not or must not do something."""
    low = _read(text).lower()
    if not any(word in low for word in _NEGATIONS):
        return False
    return any(
        _REFUSALS.search(sentence) is not None and _NO_REFUSAL.search(sentence) is None
        for sentence in _sentences(low)
    )


def asks(text: str) -> bool:
    """Return whether the agent waits for an answer; "anything else?" does not count."""
    return any(
        _PROPOSAL.search(sentence) is not None or _COURTESY.search(sentence) is None
        for sentence in _sentences(_read(text).lower())
        if sentence.endswith("?") or _REQUEST.search(sentence) is not None
    )


def hands_over(text: str) -> bool:
    """Return whether the agent says that it hands the user over now; an offer is not enough."""
    low = _read(text).lower()
    return "transfer" in low and any(
        _HANDOVER.search(sentence) is not None
        for sentence in _sentences(low)
        if not sentence.endswith("?") and " if " not in f" {sentence.strip()} "
    )


def overflows(text: str) -> bool:
    """Return whether an error says that the conversation no longer fits the model's context."""
    text = _read(text)
    return _OVERFLOW.search(text) is not None or _exceeds_tokens(text)


def _exceeds_tokens(text: str) -> bool:
    """Return whether "tokens" closely follows a word with "exceed"; read each word once."""
    place = _EXCEED.search(text)
    while place is not None:
        rest = _REST_OF_WORD.match(text, place.end())
        assert rest is not None, "it may be empty"
        if _TOKENS.match(text, rest.end()) is not None:
            return True
        place = _EXCEED.search(text, rest.end())
    return False


def _sentences(text: str) -> Iterator[str]:
    return (match.group().rstrip() for match in _SENTENCE.finditer(text))


def _read(text: str) -> str:
    if len(text) <= READ_CHARACTERS:
        return text
    half = READ_CHARACTERS // 2
    return f"{text[:half]}\n{text[-half:]}"
