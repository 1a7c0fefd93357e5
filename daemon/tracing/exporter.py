"""The role `trace`: reads the log and sends what it tells as spans (log, tables -> receiver).

    exporter.run(stop)        until stopped
    exporter.catch_up(stop)   what is folded now; how many events that was

It reads behind the fold, for spans are made of rows, and remembers in HOME/tracing.json up to where
everything was sent. Nobody waits for it: a receiver that is away or slow holds up this role and
nothing else, and gets everything when it is back, as long as the log keeps it.

Guarantee: each span is sent at least once, under an id that follows from its event; sent twice, it
is the same span. Dropped is what the receiver refuses for good, and what the log had trimmed before
it was read: both are counted.
"""

import json
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from consumers.position import offsets
from daemon.settings import ConfigurationError
from daemon.tracing.calls import CallSpans
from daemon.tracing.decisions import DecisionSpans
from daemon.tracing.sending import Sender, Sent, Unreachable
from daemon.tracing.spans import Span
from events.codec import Event, decode_value
from events.envelope import from_headers
from events.errors import AheadOfLog, BadRecord, LogCorrupt, LogTruncated
from events.learning import CycleEnded, JobEnded
from events.log import Record
from events.rollouts import CallEnded, RolloutEnded
from events.serving import AdapterStaged, GateDecided, RouteChanged
from events.streams import LEARNING, STREAMS

if TYPE_CHECKING:
    from daemon.app import App

POSITION: Final = "tracing.json"
TELLING: Final = frozenset(
    one.TYPE.encode()
    for one in (
        CallEnded, RolloutEnded, CycleEnded, JobEnded, AdapterStaged, GateDecided, RouteChanged,
    )
)  # fmt: skip
"""Types of the events that spans are made of; of the others not even the head is read."""

_PAGE: Final = 500
"""Events of one request."""
_IDLE_SECONDS: Final = 0.5
_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 60.0

At = tuple[str, int]
"""A stream's partition."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Counters:
    """What an exporter did since it started."""

    sent: Sent = field(default_factory=Sent)
    trimmed: int = 0
    """Events that the log had no longer."""
    retries: int = 0
    looked: float = 0.0
    """When it last began to look for events; 0 before the first time."""
    newest_ms: int = 0
    """When the newest event that was sent had been recorded."""


class Exporter:
    """Sends the spans of one home's log."""

    def __init__(self, app: "App", sender: Sender, content: bool = False) -> None:
        self._app = app
        self._sender = sender
        self._content = content
        self._path = app.home / POSITION
        self._reached = self._read_position()
        self.counters = Counters()

    def rewind(self) -> None:
        """Begin where the log begins: everything is sent again."""
        self._reached = self._starts()

    def run(self, stop: threading.Event) -> None:
        """Send until told to stop. Raises what waiting does not heal."""
        from consumers.database import DatabaseUnavailable
        from events.errors import LogUnavailable

        while not stop.is_set():
            try:
                busy = self.catch_up(stop)
            except (LogUnavailable, DatabaseUnavailable) as error:
                log.warning("%s", error)
                busy = 0
                self.counters.retries += 1
                stop.wait(_FIRST_PAUSE)
            if not busy:
                stop.wait(_IDLE_SECONDS)

    def catch_up(self, stop: threading.Event) -> int:
        """Send what was folded until now; how many events were read."""
        self.counters.looked = time.time()
        with self._app.reading() as connection:
            folded = offsets(connection)
        if not self._reached:
            # For the first time: what was before is told by --from-start alone.
            self._reached = {**self._starts(), **folded}
            self._write_position()
        done = 0
        for at, end in sorted(folded.items()):
            self._check(at, end)
            for page in self._pages(at, end):
                if not self._tell(at, page, stop):
                    return done
                self._reached[at] = page[-1].offset + 1
                self._write_position()
                done += len(page)
        return done

    def _starts(self) -> dict[At, int]:
        return {
            (stream, partition): start
            for stream in STREAMS
            for partition, start in enumerate(self._app.log.start(stream))
        }

    def _check(self, at: At, folded: int) -> None:
        """A position behind the fold is waited for; one beyond the log is of another log."""
        reached = self._reached.get(at, 0)
        if reached > folded and reached > (end := self._app.log.end(at[0])[at[1]]):
            raise AheadOfLog(
                f"{self._path} says that {at[0]}/{at[1]} was sent up to offset {reached}, and the "
                f"log ends at {end}: it is of another log; remove the file"
            )

    def _pages(self, at: At, end: int) -> Iterator[Sequence[Record]]:
        while (offset := self._reached.get(at, 0)) < end:
            try:
                found = self._app.log.read(*at, offset, min(_PAGE, end - offset))
            except LogTruncated:
                start = self._app.log.start(at[0])[at[1]]
                self.counters.trimmed += start - offset
                log.warning(
                    "%s/%s was trimmed to offset %s; the spans of %s events are lost",
                    *at, start, start - offset,
                )  # fmt: skip
                self._reached[at] = start
                continue
            page = [record for record in found if record.offset < end]
            if not page:
                # A broker may have holes.
                self._reached[at] = end
                return
            yield page

    def _tell(self, at: At, page: Sequence[Record], stop: threading.Event) -> bool:
        """Send the spans of some events; False where told to stop before."""
        spans = self._spans(at, page)
        pause = _FIRST_PAUSE
        while not stop.is_set():
            try:
                self.counters.sent += self._sender.send(spans)
            except Unreachable as error:
                self.counters.retries += 1
                log.warning("%s; %s spans wait", error, len(spans))
                stop.wait(error.wait_seconds or pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                self.counters.newest_ms = max(self.counters.newest_ms, page[-1].recorded_ms)
                return True
        return False

    def _spans(self, at: At, page: Sequence[Record]) -> list[Span]:
        events = [event for record in page if (event := _telling(record)) is not None]
        if not events:
            return []
        with self._app.reading() as connection:
            if at[0] == LEARNING.name:
                return list(DecisionSpans(self._app, connection).of(events))
            return list(CallSpans(self._app, connection, self._content).of(events))

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
        unfinished = self._path.with_name(f"tmp-{POSITION}")
        unfinished.write_text(json.dumps(document, sort_keys=True))
        unfinished.replace(self._path)


def open_sender(app: "App") -> Sender:
    """The receiver that the settings name. Raises ConfigurationError without one."""
    settings = app.settings.tracing
    if not settings.endpoint:
        raise ConfigurationError(
            "setting tracing.endpoint is empty, so there is nobody to send spans to; set it to a "
            "URL such as http://127.0.0.1:4318/v1/traces"
        )
    headers = {name: value.get_secret_value() for name, value in settings.headers.items()}
    return Sender(settings.endpoint, headers)


def _telling(record: Record) -> Event | None:
    """The head of an event that spans are made of; None for any other, and for a dead letter."""
    if not any(name == "ce_type" and raw in TELLING for name, raw in record.headers):
        return None
    try:
        return decode_value(record, from_headers(record.headers), content=False)
    except BadRecord:
        return None
