"""Wires the objects of an application from its settings.

    spool      this home's own log: whatever this process appends goes here first
    log        the folded log: the spool, or Kafka when it is configured
    shipper    copies the spool to Kafka; absent on the embedded log
    engine     the projection database

Everything is imported and opened on first use, so that a command pays only for what it needs.
"""

import fcntl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from daemon.config.settings import ConfigurationError, Settings
from events import private
from events.errors import LogError

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

    from consumers.reads.rollouts import RoundLine
    from consumers.runner import Runner
    from events.blobs import BlobStore
    from events.bodies import Bodies, FindKey
    from events.kafka.log import KafkaLog
    from events.log import Entry, EventLog
    from events.privacy.keys import KeyStore
    from events.sqlite.log import SqliteLog

Progress = Callable[[int], None]
"""Callback that gets the number of newly folded events."""


class HomeUnusable(LogError):
    """The home directory can neither be used nor created."""


class FoldHaltError(LogError):
    """A fold has halted for a reason that does not go away by waiting."""


class App:
    """All parts of an application over one home; a context manager that closes opened parts."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._open: list[Callable[[], None]] = []

    def __enter__(self) -> "App":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close everything that was opened, newest first."""
        while self._open:
            self._open.pop()()

    @property
    def on_kafka(self) -> bool:
        """Whether the folded log is Kafka."""
        return bool(self.settings.kafka_bootstrap_servers)

    @cached_property
    def home(self) -> Path:
        """The home, created on first use."""
        _make_folder(self.settings.home, self._home_mode)
        return self.settings.home

    @property
    def _home_mode(self) -> int:
        """Allow an engine that runs as another user to reach the adapters in the home."""
        passed = self.settings.adapters.is_relative_to(self.settings.home)
        return private.PASSAGE if passed else private.FOLDER

    @cached_property
    def spool(self) -> "SqliteLog":
        """The log of events that this home recorded."""
        from events.sqlite.log import SqliteLog
        from producers.spool.owner import own

        log = SqliteLog(self.home / "log.db", durability=self.settings.log.durability)
        self._open.append(log.close)
        self._open.append(own(log.path).close)
        return log

    @cached_property
    def blobs(self) -> "BlobStore":
        """Store of bodies that are too large for their records."""
        from events.blobs import BlobStore

        return BlobStore(self.home / "blobs")

    @cached_property
    def keys(self) -> "KeyStore":
        """Store of the persons' keys. Raises KeysUnavailable, ConfigurationError."""
        from events.privacy.keys import KeyStore

        if self.settings.keys == self.settings.database:
            raise ConfigurationError(
                "privacy.keys_url is database_url; name another database, for keys are kept and "
                "backed up apart from what they open"
            )
        store = KeyStore(self.settings.keys)
        self._open.append(store.close)
        return store

    @cached_property
    def bodies(self) -> "Bodies":
        """The bodies of events, opened with the keys of `find_key`."""
        from events.bodies import Bodies

        return Bodies(self.blobs, self.find_key)

    @cached_property
    def find_key(self) -> "FindKey":
        """The function that returns a key by its id, or None if the key's person was erased."""
        from consumers.folds.erasures import read_erasure_keys
        from daemon.core.key_lookup import Opener

        def read_erasures() -> frozenset[str]:
            with self.reading() as connection:
                return read_erasure_keys(connection)

        return Opener(lambda keyid: self.keys.find(keyid), read_erasures)

    @cached_property
    def log(self) -> "EventLog":
        """The folded log."""
        return self.kafka if self.on_kafka else self.spool

    @cached_property
    def readable_log(self) -> "EventLog":
        """The folded log for reading only; needs no write permission and no free disk space."""
        return self.kafka if self.on_kafka else self.readable_spool

    @cached_property
    def readable_spool(self) -> "SqliteLog":
        """This home's own log, opened for reading only."""
        from events.sqlite.log import SqliteLog

        path = self.settings.home / "log.db"
        if not path.exists():
            return self.spool
        log = SqliteLog(path, read_only=True)
        self._open.append(log.close)
        return log

    @cached_property
    def kafka(self) -> "KafkaLog":
        """The log in Kafka; missing topics are created."""
        from daemon.core.broker import open_kafka

        log = open_kafka(self.settings)
        self._open.append(log.close)
        return log

    @cached_property
    def database(self) -> "Engine":
        """The projection database at any revision."""
        from consumers import database

        try:
            engine = database.open_database(self.settings.database)
        except database.DatabaseError as error:
            raise ConfigurationError(f"setting database_url: {error}") from error
        database.refuse_foreign(engine)
        self._open.append(engine.dispose)
        if engine.dialect.name == "sqlite" and engine.url.database:
            folder = Path(engine.url.database).parent
            at_home = folder == self.settings.home
            _make_folder(folder, self._home_mode if at_home else private.FOLDER)
        return engine

    @cached_property
    def engine(self) -> "Engine":
        """The projection database with this version's schema; SQLite is migrated if needed."""
        from consumers.database import read_revision
        from consumers.tables import REVISION

        engine = self.database
        if read_revision(engine) == REVISION:
            return engine
        from migrations.head import lay_out

        with explain_errors(engine):
            laid_out = lay_out(engine)
        if laid_out != REVISION:
            # Alembic is slow to import, so only for a migration or its error.
            from migrations import upgrade

            if engine.dialect.name == "sqlite":
                with explain_errors(engine):
                    upgrade.upgrade(engine)
            else:
                upgrade.require_head(engine)
        return engine

    @contextmanager
    def reading(self) -> "Iterator[Connection]":
        """Open a consistent view of the projection. Turn a driver's error into one sentence."""
        from consumers import database

        with explain_errors(self.engine), database.read_transaction(self.engine) as connection:
            yield connection

    def append(self, entries: "Sequence[Entry]") -> None:
        """Append to the spool, durably."""
        self.spool.append(entries)

    @contextmanager
    def lock_import(self) -> Iterator[None]:
        """Hold the lock that lets one import at a time run in this home. Otherwise an event that
        another import has not yet appended would be imported twice. Raises HomeUnusable."""
        path = self.home / "import.lock"
        try:
            lock = private.open_lock(path)
        except OSError as error:
            raise HomeUnusable(
                f"{path} cannot be written: {error.strerror}; make the home writable, or name "
                "another with --home or KINTSUGI_HOME"
            ) from error
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def ship(self) -> None:
        """If Kafka is configured, wait until it has the whole spool. Raises SpoolBehindTables."""
        if self.on_kafka:
            from daemon.core.broker import ship
            from daemon.core.spool_check import check_spool

            check_spool(self.reading, self.spool)
            ship(self.spool, self.kafka)

    def runner(
        self, on_progress: Progress | None = None, log: "EventLog | None" = None
    ) -> "Runner":
        """Return a fold of the log into the tables; `log` is another view of the same log."""
        from consumers.runner import Runner

        return Runner(self.log if log is None else log, self.engine, on_progress=on_progress)

    def settle(
        self, on_progress: Progress | None = None, log: "EventLog | None" = None
    ) -> "Runner":
        """Fold everything that was appended so far into the tables. A running shipper and fold may
        share the work: locks make sure that it is done once."""
        self.ship()
        runner = self.runner(on_progress, log)
        with explain_errors(self.engine):
            runner.catch_up()
        return runner

    def diagnose(
        self, trigger: Literal["import", "diagnose"], on_progress: Progress | None = None
    ) -> "RoundLine | None":
        """Close a round over all folded events and return it; if none is new, return the last
        round."""
        from consumers import position
        from consumers.reads import rollouts
        from events.position import Position, ahead
        from events.streams import ROLLOUTS

        self.settle(on_progress)
        with self.reading() as connection:
            folded = position.position(connection)
            last = rollouts.last_position(connection)
            undiagnosed = rollouts.count_backlog(connection).undiagnosed
        reached: Position = {ROLLOUTS.name: folded.get(ROLLOUTS.name, {})}
        if undiagnosed and ahead(reached, last):
            self._close_round(trigger, reached)
            self.settle(on_progress)
        with self.reading() as connection:
            return rollouts.last_round(connection)

    def _close_round(
        self, trigger: Literal["import", "diagnose"], reached: dict[str, dict[str, dict[str, int]]]
    ) -> None:
        from daemon.core.task_kinds import list_agent_kinds
        from events.codec import encode
        from events.envelope import Envelope, new_id, utc_now
        from events.learning import PatternsDiagnosed
        from events.log import now_ms

        data = PatternsDiagnosed(
            trigger=trigger, position=reached, kinds=list_agent_kinds(self.settings)
        )
        envelope = Envelope(
            id=new_id(),
            type=data.TYPE,
            version=data.VERSION,
            subject=data.key(),
            time=utc_now(),
        )
        self.append([encode(envelope, data, now_ms()).entry])


@contextmanager
def explain_errors(engine: "Engine") -> "Iterator[None]":
    """Translate errors of a database's driver into errors of this project."""
    from sqlalchemy.exc import DBAPIError

    from consumers import database

    try:
        yield
    except DBAPIError as error:
        raise database.explain(error, engine) from error


def _make_folder(folder: Path, mode: int) -> None:
    try:
        private.make_folder(folder, mode)
    except OSError as error:
        raise HomeUnusable(
            f"folder {folder} cannot be made: {error.strerror}; make its parent writable, or name "
            "another with --home or KINTSUGI_HOME"
        ) from error
