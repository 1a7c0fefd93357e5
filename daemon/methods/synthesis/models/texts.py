"""Texts of a model before they are kept (pure).

A set of plans and a round of revisions are one event each, which a record must hold: with the
bounds here, 64 plans with `MOST_TEXT` each for writing and judging, and with as many rules as three
rounds add, take less than events/streams.MAX_VALUE_BYTES.
"""

from typing import Annotated, Final

from pydantic import AfterValidator, StringConstraints

from events.canonical import exact_json

MOST_TEXT: Final = 1_500
"""Most bytes of a text of a plan, as JSON in UTF-8."""
MOST_SENTENCE: Final = 450
"""Most bytes of a rule and of a reason, likewise."""
MOST_REFUSAL: Final = 300
"""Most characters of why a plan was not taken."""


def check_text(text: str) -> str:
    """Return a text that can be stored. Raises ValueError for one with the character NUL, which no
    table holds."""
    if "\x00" in text:
        raise ValueError("a text has the character NUL; leave it out")
    return text


def check_plan_text(text: str) -> str:
    """Return a text of a plan that can be stored. Raises ValueError."""
    return _check_size(check_text(text), MOST_TEXT)


PlanText = Annotated[
    str,
    StringConstraints(strip_whitespace=True, min_length=1, max_length=1_000),
    AfterValidator(check_plan_text),
]
"""A text of a plan, as a model writes it."""


def check_sentence(text: str) -> str:
    """Return a rule or a reason that can be stored. Raises ValueError."""
    return _check_size(check_text(text), MOST_SENTENCE)


def _check_size(text: str, most: int) -> str:
    size = len(exact_json(text).encode())
    if size > most:
        raise ValueError(f"a text takes {size:,} bytes, and {most:,} may be; shorten it")
    return text


def clean_line(text: str) -> str:
    """Return a text on one line, without characters that no table holds or no terminal shows."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
