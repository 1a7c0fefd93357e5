"""Count a failure pattern's calls that tools refused. Imports are few, as the status needs it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from consumers.diagnosis.round_counts import Pair, count_refusals

if TYPE_CHECKING:
    from sqlalchemy import Connection

LEAST_REFUSED: Final = 2
"""Fewest failures with a refused call for `is_basis` to hold; a single one is an accident."""


@dataclass(frozen=True, slots=True)
class Refusals:
    """Number of a pattern's failures, without duplicates, and of those with a refused call."""

    failures: int
    refused: int

    @property
    def is_basis(self) -> bool:
        """Return whether most failures, and at least `LEAST_REFUSED`, hold a refused call."""
        return self.refused >= LEAST_REFUSED and 2 * self.refused > self.failures

    def describe(self) -> str:
        """Return a sentence with both counts."""
        return f"{self.refused} of {self.failures} failures hold a call that a tool refused"


def read_refusals(connection: "Connection", pair: Pair, number: int) -> dict[str, Refusals]:
    """Return pattern -> its refusals in round `number` of an agent."""
    counts = count_refusals(connection, pair, number)
    return {name: Refusals(*count) for name, count in counts.items()}
