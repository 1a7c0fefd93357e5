"""Prepares the home for the roles of `kintsugi up`, and finds out which services are away.

This process makes the home, its log and embedded tables, so that the roles do not make them at
once. It tries a remote log and a remote database once, at the same time. If they are away, the
roles start anyway and wait for them; the gateway needs neither. Guarantee: remote services delay
the start by `PATIENCE_SECONDS` at most, and no connection is left. Errors that waiting does not
mend are raised. Not covered: old tables of a database that is away; roles refuse these until
`kintsugi db upgrade`.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from daemon.core.app import App, explain_errors
from events.errors import LogUnavailable
from events.streams import ROLLOUTS

if TYPE_CHECKING:
    from daemon.config.settings import Settings

PATIENCE_SECONDS: Final = 10.0
"""Seconds the start waits for log and database; a connection to a dead host hangs longer."""

_LOOK_SECONDS: Final = 0.05


def prepare(settings: "Settings", stop: threading.Event) -> list[str]:
    """Make the home's files; return why services are away, as sentences. `stop` ends the waiting.
    Raises ConfigurationError, LogError, DatabaseMismatch, FoldVersionMismatch."""
    with App(settings) as app:
        app.spool.start(ROLLOUTS.name)
        embedded = app.database.dialect.name == "sqlite"
    tables = _Look("the tables", settings, _see_tables)
    elsewhere = [] if embedded else [tables]
    if settings.kafka_bootstrap_servers:
        elsewhere.append(_Look("the broker", settings, _see_topics))
    if embedded:
        # Without a limit: two processes that migrate at once would only wait for each other.
        tables.ask()
    _ask_at_once(elsewhere, stop)
    looks = [tables, *elsewhere] if embedded else elsewhere
    return [reason for look in looks if (reason := look.away()) is not None]


class _Look:
    def __init__(self, what: str, settings: "Settings", see: Callable[[App], object]) -> None:
        self._what = what
        self._settings = settings
        self._see = see
        self._error: Exception | None = None
        self.is_over = False

    def ask(self) -> None:
        """Try the service, and store an error for the waiting thread."""
        try:
            with App(self._settings) as app:
                self._see(app)
        except Exception as error:
            self._error = error
        self.is_over = True

    def away(self) -> str | None:
        """Return why the service is away, or None. Raises errors that waiting does not mend."""
        from consumers.database import DatabaseUnavailable

        if not self.is_over:
            return f"{self._what} did not answer within {PATIENCE_SECONDS:g} s"
        if self._error is None:
            return None
        if isinstance(self._error, LogUnavailable | DatabaseUnavailable):
            return str(self._error)
        raise self._error


def _see_tables(app: App) -> None:
    from consumers.runner import ensure_version

    with explain_errors(app.database):
        ensure_version(app.engine)


def _see_topics(app: App) -> object:
    return app.kafka.start(ROLLOUTS.name)


def _ask_at_once(looks: Sequence[_Look], stop: threading.Event) -> None:
    """Make the attempts in threads; wait `PATIENCE_SECONDS` at most. Late ones then clean up."""
    for look in looks:
        threading.Thread(target=look.ask, name="preparing", daemon=True).start()
    until = time.monotonic() + PATIENCE_SECONDS
    while not all(look.is_over for look in looks) and time.monotonic() < until:
        if stop.wait(_LOOK_SECONDS):
            return
