"""Count a failure pattern's calls that tools refused. This module imports little, since the status
command needs it quickly."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from consumers.diagnosis.round_counts import Pair, count_refusals

if TYPE_CHECKING:
    from sqlalchemy import Connection

LEAST_REFUSED: Final = 2
"""Fewest failures with a refused call for a pattern to stand on refused calls; one is an
accident."""


@dataclass(frozen=True, slots=True)
class Refusals:
    """Numbers of a pattern's failures, without duplicates, and of those with a call that a tool
    refused."""

    failures: int
    refused: int

    @property
    def is_basis(self) -> bool:
        """Return whether most of the pattern's failures hold a refused call, and at least
        `LEAST_REFUSED` do."""
        return self.refused >= LEAST_REFUSED and 2 * self.refused > self.failures

    def describe(self) -> str:
        """Return a sentence with both counts."""
        return f"{self.refused} of {self.failures} failures hold a call that a tool refused"


def read_refusals(connection: "Connection", pair: Pair, number: int) -> dict[str, Refusals]:
    """Return pattern -> its refusals in round `number` of an agent."""
    counts = count_refusals(connection, pair, number)
    return {name: Refusals(*count) for name, count in counts.items()}
