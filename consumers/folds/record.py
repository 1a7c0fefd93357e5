"""An event on its way into the tables, together with the record that names it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from consumers.batch import Batch, Row
from events.codec import Event
from events.envelope import timestamp
from events.log import Record


@dataclass(frozen=True, slots=True)
class FoldInput:
    """The input of every fold."""

    event: Event
    record: Record

    @property
    def time(self) -> str | None:
        """Return when it happened, RFC 3339."""
        moment = self.event.envelope.time
        return None if moment is None else timestamp(moment)

    def pointer(self, prefix: str = "") -> Row:
        """Return the columns that name the event."""
        return {
            "partition": self.record.partition,
            "event_source": self.record.source,
            f"{prefix}sequence": self.record.sequence,
            f"{prefix}offset": self.record.offset,
        }

    def place(self) -> Row:
        """Return the same for `learning`, which has one partition."""
        return {name: value for name, value in self.pointer().items() if name != "partition"}


Fold = Callable[[FoldInput, Any, Batch], None]
"""The fold of a decision: it reads the results of earlier ones."""
