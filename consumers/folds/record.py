"""The input of a fold: an event together with its record in the log."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from consumers.batch import Batch, Row
from events.codec import Event
from events.envelope import timestamp
from events.log import Record


@dataclass(frozen=True, slots=True)
class FoldInput:
    """An event and its record, the input of every fold."""

    event: Event
    record: Record

    @property
    def time(self) -> str | None:
        """Return the time of the event (RFC 3339), if it has one."""
        moment = self.event.envelope.time
        return None if moment is None else timestamp(moment)

    def pointer(self, prefix: str = "") -> Row:
        """Return the columns that say where the event is in the log."""
        return {
            "partition": self.record.partition,
            "event_source": self.record.source,
            f"{prefix}sequence": self.record.sequence,
            f"{prefix}offset": self.record.offset,
        }

    def place(self) -> Row:
        """Return the columns of `pointer` without the partition; `learning` has only one."""
        return {name: value for name, value in self.pointer().items() if name != "partition"}


Fold = Callable[[FoldInput, Any, Batch], None]
"""The fold of an event of `learning`; it may read the tables with the results of earlier events."""
