"""Metrics read from log, tables and files in a separate thread, and cached for some seconds.

    with BackgroundCollector("loop", LOOP, settings, read) as observed:
        registry.register(observed)

Guarantee: a scrape waits for at most `PATIENCE_SECONDS`, whatever broker and database do, and gets
the last values; nothing is read between scrapes. Three metrics report the age of the values and
whether the last reading succeeded. The thread has an application, and so connections, of its own.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, Self

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from daemon.metrics.families import Family, Sheet
from events.errors import KintsugiError

if TYPE_CHECKING:
    from daemon.config.settings import Settings
    from daemon.core.app import App

PATIENCE_SECONDS: Final = 2.0
"""Seconds a scrape waits for a reading; below the timeout of any scrape."""

KEPT_SECONDS: Final = 4.0
"""Seconds a reading is reused; below the scrape interval, so that each scrape gets new values."""

log = logging.getLogger(__name__)


def about(what: str) -> tuple[Family, Family, Family]:
    """Return the metrics that describe the readings of the collector named `what`."""
    return (
        Family(f"kintsugi_{what}_readable", "Whether the last reading came off."),
        Family(f"kintsugi_{what}_read_timestamp_seconds", "When this was read; 0 before it was."),
        Family(f"kintsugi_{what}_read_seconds", "How long that took."),
    )


class BackgroundCollector(Collector):
    """Collector that reads in a thread of its own; a context manager that ends the thread."""

    def __init__(
        self,
        what: str,
        families: Sequence[Family],
        settings: "Settings",
        read: "Callable[[App, Sheet], None]",
        kept_seconds: float = KEPT_SECONDS,
    ) -> None:
        self._what = what
        self._families = families
        self._settings = settings
        self._read = read
        self._kept_seconds = kept_seconds
        self._changed = threading.Condition()
        self._asked = False
        self._over = False
        self._sheet = Sheet(families)
        self._readable = False
        self._at = 0.0
        self._took = 0.0
        self._answered = -kept_seconds
        """When the last reading ended, even without success, on the monotonic clock."""
        self._thread = threading.Thread(target=self._run, name=f"metrics {what}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()
        # A thread that waits for an unreachable broker does not delay the end of a role.
        self._thread.join(PATIENCE_SECONDS)

    def describe(self) -> Iterator[Metric]:
        """Yield the declared metrics without samples, for the registration."""
        yield from Sheet((*self._families, *about(self._what))).metrics()

    def collect(self) -> Iterator[Metric]:
        """Yield the last values, read again if they are too old."""
        readable, at, took = about(self._what)
        with self._changed:
            if time.monotonic() - self._answered >= self._kept_seconds:
                self._asked = True
                self._changed.notify_all()
                self._changed.wait_for(lambda: not self._asked, PATIENCE_SECONDS)
            sheet = self._sheet
            status = Sheet((readable, at, took))
            status.say(readable.name, self._readable)
            status.say(at.name, self._at)
            status.say(took.name, self._took)
        yield from status.metrics()
        yield from sheet.metrics()

    def _run(self) -> None:
        from daemon.core.app import App

        with App(self._settings) as app:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._asked or self._over)
                    if self._over:
                        return
                self._look(app)

    def _look(self, app: "App") -> None:
        began, sheet, at = time.monotonic(), Sheet(self._families), time.time()
        try:
            self._read(app, sheet)
        except (KintsugiError, OSError) as error:
            # A file may be gone between two looks at its folder.
            log.warning("the metrics of the %s are old: %s", self._what, error)
            readable = False
        except BaseException:
            # An unexpected error ends the thread; the scrape must see that nothing is read.
            self._note(False, None, 0.0, 0.0)
            raise
        else:
            readable = True
        self._note(readable, sheet if readable else None, at, time.monotonic() - began)

    def _note(self, readable: bool, sheet: Sheet | None, at: float, took: float) -> None:
        with self._changed:
            self._readable = readable
            if sheet is not None:
                self._sheet, self._at, self._took = sheet, at, took
            self._answered = time.monotonic()
            self._asked = False
            self._changed.notify_all()
