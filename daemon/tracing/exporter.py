"""The role `trace`: read the log up to the fold's position and send spans of its events.

It stores in HOME/tracing.json the position up to which all was sent, and sends new events together
every few seconds. No other role waits for it: a slow or absent receiver delays this role only, and
gets everything later, as long as the log keeps it.

Guarantee: each span is sent at least once, under an id that follows from its event, so a repetition
is the same span. Spans that the receiver refuses for good, and those of trimmed events, are dropped
and counted.
"""

import json
import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from consumers.position import offsets
from daemon.config.settings import ConfigurationError
from daemon.tracing.calls import CallSpans, Headers
from daemon.tracing.decisions import DecisionSpans
from daemon.tracing.otlp_client import Sender, SendResult, Unreachable
from daemon.tracing.spans import Span
from events.codec import Event, decode_value
from events.envelope import from_headers
from events.errors import AheadOfLog, BadRecord, LogCorrupt, LogTruncated
from events.files import replace_file
from events.learning import CycleEnded, JobEnded
from events.log import Record
from events.rollouts import CallEnded, RolloutEnded
from events.serving import AdapterStaged, GateDecided, RouteChanged
from events.streams import LEARNING, STREAMS

if TYPE_CHECKING:
    from daemon.core.app import App

POSITION: Final = "tracing.json"
SPAN_EVENT_TYPES: Final = frozenset(
    event_type.TYPE.encode()
    for event_type in (
        CallEnded, RolloutEnded, CycleEnded, JobEnded, AdapterStaged, GateDecided, RouteChanged,
    )
)  # fmt: skip
"""Types of the events that have spans; other events are not decoded."""

_PAGE: Final = 500
"""Events read at once, and about as many as one request covers."""
_ROUND_SECONDS: Final = 2.0
"""Seconds between two reads of the log."""
_SIGN_SECONDS: Final = 5.0
"""Seconds within which a waiting role reports that it is alive."""
_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 60.0

At = tuple[str, int]
"""Stream and partition."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Counters:
    """Counters of an exporter since it started."""

    sent: SendResult = field(default_factory=SendResult)
    trimmed: int = 0
    """Number of events that were trimmed from the log before they were read."""
    retries: int = 0
    looked: float = 0.0
    """When it last began to look for events; 0 before the first time."""
    newest_ms: int = 0
    """When the newest sent event was recorded."""
    unsent_ms: int | None = None
    """When the oldest event being sent was recorded."""


@dataclass(slots=True)
class Batch:
    """Events of one or more partitions, whose spans are sent together."""

    reached: dict[At, int] = field(default_factory=dict)
    """Offset of each partition up to which the batch has the events."""
    records: int = 0
    calls: list[Event] = field(default_factory=list)
    decisions: list[Event] = field(default_factory=list)
    oldest_ms: int | None = None
    newest_ms: int = 0

    def add(self, at: At, page: Sequence[Record], reached: int) -> None:
        """Add the events of a page that have spans."""
        self.reached[at] = reached
        self.records += len(page)
        into = self.decisions if at[0] == LEARNING.name else self.calls
        into.extend(event for record in page if (event := _decode_head(record)) is not None)
        times = [record.recorded_ms for record in page]
        if times:
            oldest = min(times)
            self.oldest_ms = oldest if self.oldest_ms is None else min(oldest, self.oldest_ms)
            self.newest_ms = max(self.newest_ms, *times)


class Exporter:
    """Sends the spans of one home's log."""

    def __init__(self, app: "App", sender: Sender, content: bool = False) -> None:
        self._app = app
        self._sender = sender
        self._content = content
        self._path = app.home / POSITION
        self._reached = self._read_position()
        self._headers = Headers()
        self.counters = Counters()

    def rewind(self) -> None:
        """Go back to the start of the log, so that everything is sent again."""
        self._reached = self._starts()

    def run(self, stop: threading.Event) -> None:
        """Send until told to stop. Raise errors that waiting does not mend."""
        from consumers.database import DatabaseUnavailable
        from events.errors import LogUnavailable

        while not stop.is_set():
            began = time.monotonic()
            try:
                self.catch_up(stop)
            except (LogUnavailable, DatabaseUnavailable) as error:
                log.warning("%s", error)
                self.counters.retries += 1
            stop.wait(_ROUND_SECONDS - min(_ROUND_SECONDS, time.monotonic() - began))

    def catch_up(self, stop: threading.Event) -> int:
        """Send the events folded until now; return the number of events read."""
        self.counters.looked = time.time()
        with self._app.reading() as connection:
            folded = offsets(connection)
        if not self._reached:
            # The first time: earlier events are sent only with --from-start.
            self._reached = {**self._starts(), **folded}
            self._write_position()
        done = 0
        for batch in self._batches(folded):
            if not self._tell(batch, stop):
                break
            self._reached |= batch.reached
            self._write_position()
            done += batch.records
        return done

    def _starts(self) -> dict[At, int]:
        return {
            (stream, partition): start
            for stream in STREAMS
            for partition, start in enumerate(self._app.log.start(stream))
        }

    def _check(self, at: At, folded: int) -> None:
        """Raise AheadOfLog if more of a partition was sent than this log has."""
        reached = self._reached.get(at, 0)
        if reached > folded and reached > (end := self._app.log.end(at[0])[at[1]]):
            raise AheadOfLog(
                f"{self._path} says that {at[0]}/{at[1]} was sent up to offset {reached}, and the "
                f"log ends at {end}: it is of another log; remove the file"
            )

    def _batches(self, folded: Mapping[At, int]) -> Iterator[Batch]:
        batch = Batch()
        for at, end in sorted(folded.items()):
            self._check(at, end)
            for page, reached in self._pages(at, end):
                batch.add(at, page, reached)
                if batch.records >= _PAGE:
                    yield batch
                    batch = Batch()
        if batch.reached:
            yield batch

    def _pages(self, at: At, end: int) -> Iterator[tuple[Sequence[Record], int]]:
        """Yield pages of records before an offset, each with the offset at which it ends."""
        offset = self._reached.get(at, 0)
        while offset < end:
            try:
                records = self._app.log.read(*at, offset, min(_PAGE, end - offset))
            except LogTruncated:
                start = self._app.log.start(at[0])[at[1]]
                self.counters.trimmed += start - offset
                log.warning(
                    "%s/%s was trimmed to offset %s; the spans of %s events are lost",
                    *at, start, start - offset,
                )  # fmt: skip
                offset = self._reached[at] = start
                continue
            page = [record for record in records if record.offset < end]
            # A broker's log may lack offsets, even the last ones.
            offset = page[-1].offset + 1 if page else end
            yield page, offset

    def _tell(self, batch: Batch, stop: threading.Event) -> bool:
        """Send the spans of some events; return False if told to stop before."""
        self.counters.unsent_ms = batch.oldest_ms
        spans = self._spans(batch)
        pause = _FIRST_PAUSE
        while not stop.is_set():
            try:
                self.counters.sent += self._sender.send(spans)
            except Unreachable as error:
                self.counters.retries += 1
                log.warning("%s; %s spans wait", error, len(spans))
                self._wait(error.wait_seconds or pause, stop)
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                self.counters.newest_ms = max(self.counters.newest_ms, batch.newest_ms)
                self.counters.unsent_ms = None
                return True
        return False

    def _wait(self, seconds: float, stop: threading.Event) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not stop.is_set():
            self.counters.looked = time.time()
            stop.wait(min(left, _SIGN_SECONDS))

    def _spans(self, batch: Batch) -> list[Span]:
        if not batch.calls and not batch.decisions:
            return []
        with self._app.reading() as connection:
            calls = CallSpans(self._app, connection, self._content, self._headers)
            decisions = DecisionSpans(self._app, connection)
            return [*decisions.of(batch.decisions), *calls.of(batch.calls)]

    def _read_position(self) -> dict[At, int]:
        try:
            text = self._path.read_text()
        except FileNotFoundError:
            return {}
        try:
            return {
                (stream, int(partition)): int(offset)
                for name, offset in json.loads(text).items()
                for stream, _, partition in [name.rpartition("/")]
            }
        except (ValueError, AttributeError, TypeError) as error:
            raise LogCorrupt(
                f"{self._path} holds no position ({error}); remove it, and send what was missed "
                "with kintsugi trace --from-start"
            ) from error

    def _write_position(self) -> None:
        document = {f"{stream}/{p}": offset for (stream, p), offset in self._reached.items()}
        content = json.dumps(document, sort_keys=True).encode()
        replace_file(self._path, content, is_private=True)


def open_sender(app: "App") -> Sender:
    """Return a sender to the receiver of the settings. Raise ConfigurationError without one."""
    settings = app.settings.tracing
    if not settings.endpoint:
        raise ConfigurationError(
            "setting tracing.endpoint is empty, so there is nobody to send spans to; set it to a "
            "URL such as http://127.0.0.1:4318/v1/traces"
        )
    headers = {name: value.get_secret_value() for name, value in settings.headers.items()}
    return Sender(settings.endpoint, headers, settings.compression == "gzip")


def _decode_head(record: Record) -> Event | None:
    """Return the head of an event with spans; None for any other, and for a dead letter."""
    if not any(name == "ce_type" and raw in SPAN_EVENT_TYPES for name, raw in record.headers):
        return None
    try:
        return decode_value(record, from_headers(record.headers), content=False)
    except BadRecord:
        return None
