"""A log in memory, for tests: the shortest implementation of events/log.py."""

import threading
import time
from collections.abc import Sequence

from events.envelope import new_id
from events.log import Cursor, Entry, Place, Record, check_bounds, check_size, within_bytes
from events.streams import STREAMS


class MemoryLog:
    """An EventLog in lists, which are lost with the process."""

    def __init__(self) -> None:
        self.source = new_id()
        self._changed = threading.Condition()
        self._records = {
            (stream.name, partition): list[Record]()
            for stream in STREAMS.values()
            for partition in range(stream.partitions)
        }
        self._starts = dict.fromkeys(self._records, 0)

    def append(self, entries: Sequence[Entry]) -> list[Place]:
        for entry in entries:
            check_size(entry)
        with self._changed:
            places = [self._append(entry) for entry in entries]
            self._changed.notify_all()
        return places

    def _append(self, entry: Entry) -> Place:
        at = (entry.stream, entry.partition)
        offset = self._starts[at] + len(self._records[at])
        self._records[at].append(
            Record(
                entry.stream,
                entry.partition,
                offset,
                self.source,
                offset,
                entry.key,
                entry.headers,
                entry.value,
                entry.recorded_ms,
            )
        )
        return Place(entry.stream, entry.partition, offset)

    def read(
        self, stream: str, partition: int, offset: int, limit: int = 500, max_bytes: int = 32 << 20
    ) -> list[Record]:
        with self._changed:
            records = self._records[stream, partition]
            start = self._starts[stream, partition]
            check_bounds(stream, partition, offset, start, start + len(records))
            page = records[offset - start : offset - start + limit]
        return within_bytes(page, max_bytes)

    def start(self, stream: str) -> tuple[int, ...]:
        with self._changed:
            return tuple(self._starts[stream, p] for p in range(STREAMS[stream].partitions))

    def end(self, stream: str) -> tuple[int, ...]:
        with self._changed:
            return tuple(
                self._starts[stream, p] + len(self._records[stream, p])
                for p in range(STREAMS[stream].partitions)
            )

    def wait(self, cursor: Cursor, timeout_seconds: float) -> bool:
        deadline = time.monotonic() + timeout_seconds
        with self._changed:
            while not any(
                self._starts[at] + len(self._records[at]) > offset for at, offset in cursor.items()
            ):
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return False
                self._changed.wait(remaining)
            return True

    def trim(self, stream: str, partition: int, before: int) -> None:
        with self._changed:
            at = (stream, partition)
            dropped = max(0, min(before - self._starts[at], len(self._records[at])))
            del self._records[at][:dropped]
            self._starts[at] += dropped

    def close(self) -> None:
        """Do nothing: there is nothing to release."""
