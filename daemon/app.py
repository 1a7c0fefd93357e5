"""The one place that wires objects: settings in, an application out.

    spool      this home's own log: whatever this process appends goes here first
    log        what is folded: the spool itself, or Kafka when it is configured
    shipper    copies the spool to Kafka; absent on the embedded log
    engine     the projection database

Everything is opened on first use, so that a command pays only for what it needs.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from events.sqlite import SqliteLog
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from consumers import database, position, reads
from consumers.runner import Runner
from consumers.tables import REVISION
from daemon.settings import Settings
from events.blobs import BlobStore
from events.codec import encode
from events.envelope import Envelope, minted_id, utc_now
from events.learning import PatternsDiagnosed
from events.log import Entry, EventLog, now_ms
from events.position import Position, ahead
from events.streams import ROLLOUTS

if TYPE_CHECKING:
    from events.kafka import KafkaLog
    from sqlalchemy import Engine

Progress = Callable[[int], None]
"""Told how many more events were folded."""


class App:
    """An application over one home; a context manager that closes what it opened."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._open: list[Callable[[], None]] = []

    def __enter__(self) -> "App":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close everything that was opened, newest first."""
        while self._open:
            self._open.pop()()

    @property
    def on_kafka(self) -> bool:
        """Whether Kafka is the log that is folded."""
        return bool(self.settings.kafka_bootstrap_servers)

    @cached_property
    def home(self) -> Path:
        """The home, created on first use."""
        self.settings.home.mkdir(parents=True, exist_ok=True)
        return self.settings.home

    @cached_property
    def spool(self) -> SqliteLog:
        """This home's own log."""
        log = SqliteLog(self.home / "log.db", durability=self.settings.log.durability)
        self._open.append(log.close)
        return log

    @cached_property
    def blobs(self) -> BlobStore:
        """Bodies too large for a record."""
        return BlobStore(self.home / "blobs")

    @cached_property
    def log(self) -> EventLog:
        """The log that is folded."""
        return self.kafka if self.on_kafka else self.spool

    @cached_property
    def kafka(self) -> "KafkaLog":
        """The broker's log, with its topics ensured."""
        from daemon.broker import open_kafka

        log = open_kafka(self.settings)
        self._open.append(log.close)
        return log

    @cached_property
    def engine(self) -> "Engine":
        """The projection database at this version's revision: SQLite migrates itself."""
        engine = database.open_database(self.settings.database)
        self._open.append(engine.dispose)
        if engine.dialect.name == "sqlite":
            Path(str(engine.url.database)).parent.mkdir(parents=True, exist_ok=True)
        if revision(engine) != REVISION:
            # Alembic takes a while to import: only when it has something to do or to say.
            from migrations import upgrade

            if engine.dialect.name == "sqlite":
                upgrade.upgrade(engine)
            else:
                upgrade.require_head(engine)
        return engine

    def append(self, entries: Sequence[Entry]) -> None:
        """Append to the spool, durably."""
        self.spool.append(entries)

    def settle(self, on_progress: Progress | None = None) -> Runner:
        """Bring everything that was appended so far into the tables.

        Does the work of shipper and fold itself where no such process runs, and shares it where
        one does: both are fenced, so two at once do the work once.
        """
        if self.on_kafka:
            from daemon.broker import ship

            ship(self.spool, self.settings)
        runner = Runner(self.log, self.engine, on_progress=on_progress)
        runner.catch_up()
        return runner

    def diagnose(
        self, trigger: Literal["import", "diagnose"], on_progress: Progress | None = None
    ) -> reads.RoundLine | None:
        """Close a round over everything folded so far; the last round when nothing is new."""
        self.settle(on_progress)
        with database.reading(self.engine) as connection:
            folded = position.position(connection)
            last = reads.last_position(connection)
        reached: Position = {ROLLOUTS.name: folded.get(ROLLOUTS.name, {})}
        if ahead(reached, last):
            data = PatternsDiagnosed(trigger=trigger, position=reached)
            envelope = Envelope(
                id=minted_id(),
                type=data.TYPE,
                version=data.VERSION,
                subject=data.key(),
                time=utc_now(),
            )
            self.append([encode(envelope, data, now_ms()).entry])
            self.settle(on_progress)
        with database.reading(self.engine) as connection:
            return reads.last_round(connection)


def revision(engine: "Engine") -> str | None:
    """The revision of a database; None for an empty one. Raises DatabaseUnavailable."""
    try:
        with database.reading(engine) as connection:
            return str(connection.execute(text("SELECT version_num FROM alembic_version")).scalar())
    except DBAPIError as error:
        explained = database.explain(error, engine)
        if isinstance(explained, database.DatabaseOutdated):
            return None
        raise explained from error
