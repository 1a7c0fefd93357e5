"""Types of the tools' arguments, with their ranges, and a check of phone numbers."""

from functools import lru_cache
from typing import Annotated, Any, Final

import phonenumbers
from pydantic import Field

from envs.tools import ToolError

OMITTED: Final[Any] = None
"""Default of an argument that may be left out but may not be null. The tool gets None."""

Latitude = Annotated[float, Field(ge=-90, le=90)]
Longitude = Annotated[float, Field(ge=-180, le=180)]
EARLIEST: Final = 315_529_200.0
LATEST: Final = 2_524_604_400.0
"""POSIX seconds of 1980 and 2050; every time lies between them."""

Timestamp = Annotated[float, Field(ge=EARLIEST, le=LATEST)]
"""POSIX seconds. Milliseconds are out of range."""

Year = Annotated[int, Field(ge=1980, le=2049)]
Month = Annotated[int, Field(ge=1, le=12)]
Day = Annotated[int, Field(ge=1, le=31)]
Hour = Annotated[int, Field(ge=0, le=23)]
Minute = Annotated[int, Field(ge=0, le=59)]
Second = Annotated[int, Field(ge=0, le=59)]
Shift = Annotated[int, Field(ge=-1_000_000_000, le=1_000_000_000)]


_LONGEST: Final = 60
"""Largest number of characters of a text that is tested as a phone number."""


@lru_cache(maxsize=4096)
def _is_phone_number(text: str) -> bool:
    try:
        phonenumbers.parse(text)
    except phonenumbers.NumberParseException:
        return False
    return True


def check_phone_number(text: str | None) -> None:
    """Raise ToolError if a text is no phone number with a country code. Accept None."""
    if text is not None and not (len(text) <= _LONGEST and _is_phone_number(text)):
        raise ToolError(
            f"{text[:40]!r} is no phone number in international form; write + and the country code "
            "before it, as in +15550100"
        )
