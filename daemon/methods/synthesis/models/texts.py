"""Check a model's texts before they are stored (pure).

A set of plans, or a round of revisions, is one event in one record. With these limits 64 plans,
with the rules of three rounds, are smaller than events/streams.MAX_VALUE_BYTES.
"""

from typing import Annotated, Final

from pydantic import AfterValidator, StringConstraints

from events.canonical import exact_json

MOST_TEXT: Final = 1_500
"""Most bytes of a plan's text, as JSON in UTF-8."""
MOST_SENTENCE: Final = 450
"""Most bytes of a rule or a reason, as JSON in UTF-8."""
MOST_REFUSAL: Final = 300
"""Most characters of the reason why a plan was refused."""


def check_text(text: str) -> str:
    """Return the text. Raise ValueError for the character NUL, which no table can hold."""
    if "\x00" in text:
        raise ValueError("a text has the character NUL; leave it out")
    return text


def check_plan_text(text: str) -> str:
    """Return a plan's text. Raise ValueError if it cannot be stored."""
    return _check_size(check_text(text), MOST_TEXT)


PlanText = Annotated[
    str,
    StringConstraints(strip_whitespace=True, min_length=1, max_length=1_000),
    AfterValidator(check_plan_text),
]


def check_sentence(text: str) -> str:
    """Return a rule or a reason. Raise ValueError if it cannot be stored."""
    return _check_size(check_text(text), MOST_SENTENCE)


def _check_size(text: str, most: int) -> str:
    size = len(exact_json(text).encode())
    if size > most:
        raise ValueError(f"a text takes {size:,} bytes, and {most:,} may be; shorten it")
    return text


def clean_line(text: str) -> str:
    """Return the text on one line, without unprintable characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
