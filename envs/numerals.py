"""The numbers that a text says.

Pure. A number is a value: "1,250.00", "$1,250" and "1250" say the same number, and "250" is said by
neither "1250" nor "250.75". Digits inside of a word, such as those of an order's id, are no number.
"""

import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Final

_NUMBER: Final = re.compile(
    r"(?<![\w.,])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?![\w]|[.,]\d)", re.ASCII
)


def find_numbers(text: str) -> Iterator[Decimal]:
    """Yield the numbers of a text, in order."""
    for match in _NUMBER.finditer(text):
        yield Decimal(match.group().replace(",", ""))
