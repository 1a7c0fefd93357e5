"""Counts of a failure pattern's refused calls. Imports stay light for the status."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from consumers.diagnosis.round_counts import Pair, count_refusals

if TYPE_CHECKING:
    from sqlalchemy import Connection

LEAST_REFUSED: Final = 2
"""Fewest failures with a refused call on which a pattern stands: one is an accident."""


@dataclass(frozen=True, slots=True)
class Refusals:
    """Deduplicated failures of a pattern, and those with a call that a tool refused."""

    failures: int
    refused: int

    @property
    def is_basis(self) -> bool:
        """Return whether the pattern stands on failed calls: most of its failures hold one."""
        return self.refused >= LEAST_REFUSED and 2 * self.refused > self.failures

    def describe(self) -> str:
        """Return the counts as a sentence."""
        return f"{self.refused} of {self.failures} failures hold a call that a tool refused"


def read_refusals(connection: "Connection", pair: Pair, number: int) -> dict[str, Refusals]:
    """Return pattern -> refusals in a round."""
    counts = count_refusals(connection, pair, number)
    return {name: Refusals(*count) for name, count in counts.items()}
