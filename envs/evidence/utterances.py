"""The act of an utterance, by its English words alone (pure): agree, refuse, ask, say goodbye.
`turns_down("I cannot do that.")` is True; `wants_answer` of it is False. `is_readable` recognizes
English."""

import re
from typing import Final

_YES: Final = re.compile(r"\W*(yes|yeah|yep|sure|ok|okay|correct|please do|go ahead)\b", re.I)
_NO: Final = re.compile(
    r"\W*(no(?! (problem|worries|changes?|issues?|objections?)\b)|nope|don't(?! worry\b)|do not"
    r"|never mind|stop)\b",
    re.I,
)
_AGREES: Final = re.compile(
    r"(?<!not )(?<!n't )\b(yes|yeah|yep|sure|correct|right|fine|go ahead|proceed|please do)\b", re.I
)
"""Words that cancel a refusal, as in "No changes, go ahead"."""
_REFUSES: Final = re.compile(r"\b(no|not|nope|\w+n't|never mind|instead|stop)\b", re.I)
"""Words that cancel an agreement."""
_FAREWELL: Final = re.compile(
    r"\b(anything|something|what|how|nothing) (else|more)\b|\bfurther\b|\bmore I can\b"
    r"|\bfeel free to\b|\b(any|other|more|additional) (question|request|concern|issue)s?\b"
    r"|\b(that|this|it) (is |be )?(all|everything)\b|\ball set\b"
    r"|\b(great|good|nice|wonderful|lovely|pleasant) (rest of (the|your) )?day\b|\bsafe travels\b",
    re.I,
)
_REQUEST: Final = re.compile(
    r"\?|\bplease (tell|give|provide|confirm|share|enter|state|let|check|send|name|say|type|repeat"
    r"|reply|answer|choose|try|turn|open|restart)\b"
    r"|\b(tell|give|send|show) me\b|\blet me (know|have)\b"
    r"|\bI('ll| will)? need (your|the|to know)\b",
    re.I,
)
_TURNS_DOWN: Final = re.compile(
    r"\b(can ?not|can't|unable|not (able|possible|allowed|permitted|eligible)|impossible"
    r"|(do|does|did|could|will|would|may)(n't| not)|won't|sorry|unfortunately|declined?|denied)\b",
    re.I,
)
_ENGLISH: Final = re.compile(
    r"\b(the|you|yours?|what|which|how|would|could|should|shall|can|with|this|that|there|please"
    r"|anything|any|else|have|and|it|need|want|(?-i:I))\b",
    re.I,
)
"""Common English words. Most English lines of an agent have at least one of them."""
_SHORT_LINE: Final = 2
"""Number of words up to which an English line may have none of them, such as "Zip code?"."""
_NEGATES: Final = re.compile(
    r"\b(not|never|cannot|unable|without|instead|\w+n't|won't|leave)\b", re.I
)


def agrees(text: str) -> bool:
    """Return whether a text begins with a yes and has no word that cancels it."""
    return bool(_YES.match(text)) and not _REFUSES.search(text)


def refuses(text: str) -> bool:
    """Return whether a text begins with a no and has no word that cancels it."""
    return bool(_NO.match(text)) and not _AGREES.search(text)


def is_farewell(text: str) -> bool:
    """Return whether a user may hang up after a text, or answer "no" although it asks for a yes."""
    return bool(_FAREWELL.search(text))


def wants_answer(text: str) -> bool:
    """Return whether a text asks the listener for something."""
    return bool(_REQUEST.search(text))


def is_readable(text: str) -> bool:
    """Return whether a text looks English, so that the other functions can judge it."""
    return bool(_ENGLISH.search(text)) or (text.isascii() and len(text.split()) <= _SHORT_LINE)


def turns_down(text: str) -> bool:
    """Return whether a text refuses a request."""
    return bool(_TURNS_DOWN.search(text))


def negates(text: str) -> bool:
    """Return whether a text has a negation, so that a yes to it may mean the opposite."""
    return bool(_NEGATES.search(text))
