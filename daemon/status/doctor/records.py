"""Checks of the records: the log, its copy on the broker, and the tables folded from it."""

import time
from typing import TYPE_CHECKING, Final

from daemon.status.doctor.finding import Finding
from events.envelope import from_headers
from events.streams import ROLLOUTS, STREAMS

if TYPE_CHECKING:
    from daemon.core.app import App

QUICK_BYTES: Final = 256 << 20
"""Maximum bytes of a log that is read whole; of a larger log only the newest events are read."""

_NEWEST: Final = 100
"""Number of a partition's newest events whose keys are checked."""

WAITING_SECONDS: Final = 300.0
"""Seconds that an event may wait for the fold or for Kafka; the alerts have the same limit."""


def log(app: "App") -> Finding:
    """Check the embedded log: its file and its checksums."""
    from events.sqlite.log import SqliteLog

    path = app.settings.home / "log.db"
    if not path.exists():
        return True, f"{path} will be made by the first event"
    log = SqliteLog(path, read_only=True)
    try:
        stats = log.stats()
        events = sum(of["events"] for of in stats.values())
        held = sum(of["bytes"] for of in stats.values())
        if held <= QUICK_BYTES:
            problems = log.check()
            if problems:
                return False, " ".join(problems)
            return True, f"{path}, {events:,} events, all checksums hold"
        for stream in STREAMS:
            for partition, end in enumerate(log.end(stream)):
                if end > log.start(stream)[partition]:
                    log.read(stream, partition, end - 1)
        return True, f"{path}, {events:,} events; read them all: kintsugi log verify"
    finally:
        log.close()


def database(app: "App") -> Finding:
    """Check the tables' revision."""
    from consumers.database import read_revision
    from consumers.tables import OLDEST_REVISION, REVISION
    from events.privacy.database_url import render_database_url

    engine = app.database
    where = render_database_url(engine.url)
    current = read_revision(engine)
    if current == REVISION:
        return True, f"{where} at revision {current}"
    if current is not None and current < OLDEST_REVISION:
        return False, f"{where} is at revision {current}, too old to upgrade; see docs/upgrading.md"
    if engine.dialect.name == "sqlite":
        return True, f"{where} will be brought to revision {REVISION} by the next command"
    return False, f"{where} is at revision {current}, not {REVISION}; run kintsugi db upgrade"


def fold(app: "App") -> Finding:
    """Check that the fold is not halted, has no gaps, and is not behind for long."""
    from daemon.core.health import (
        describe_gaps,
        find_oldest_backlog_ms,
        halts,
        lag,
        read_fold_state,
    )

    if not app.on_kafka and not (app.settings.home / "log.db").exists():
        return True, "nothing to fold yet"
    with app.reading() as connection:
        reached = read_fold_state(connection)
    events = app.readable_log
    wrong = [*halts(events, reached), *describe_gaps(events, reached)]
    if wrong:
        return False, "; ".join(wrong)
    text = f"{sum(lag(events, reached).values()):,} events behind"
    waits = _age(min(find_oldest_backlog_ms(events, reached).values(), default=None))
    if waits > WAITING_SECONDS:
        return False, f"{text}, the oldest for {waits:,.0f} s; is kintsugi consume running?"
    return True, text


def keys(app: "App") -> Finding:
    """Check that the key store answers, has the newest events' keys, and no erased person's."""
    from consumers.folds.erasures import read_erasure_keys

    alone = app.settings.privacy.keys_url is None
    missing = alone and not (app.settings.home / "keys.db").exists()
    ids = frozenset() if missing else app.keys.ids()
    sealed = _collect_newest_keys(app)
    with app.reading() as connection:
        erased = read_erasure_keys(connection)
    if lost := sealed - ids - erased:
        return False, (
            f"{len(lost):,} keys of what was said last are not there, {min(lost)} for one; restore "
            "the key store from its backup (docs/privacy.md), or set privacy.keys_url"
        )
    if back := ids & erased:
        text = f"{len(back):,} keys of persons who were erased came back with a copy"
        return False, f"{text}; kintsugi work --once destroys them"
    if missing:
        return True, "keys.db will be made when a person is named"
    where = "in this home, for this machine alone" if alone else "in privacy.keys_url"
    return True, f"{len(ids):,} keys, {where}"


def _collect_newest_keys(app: "App") -> frozenset[str]:
    if not app.on_kafka and not (app.settings.home / "log.db").exists():
        return frozenset()
    log, ids = app.readable_log, set[str | None]()
    bounds = zip(log.start(ROLLOUTS.name), log.end(ROLLOUTS.name), strict=True)
    for partition, (start, end) in enumerate(bounds):
        newest = log.read(ROLLOUTS.name, partition, max(start, end - _NEWEST), _NEWEST)
        ids |= {from_headers(record.headers).keyid for record in newest}
    return frozenset(keyid for keyid in ids if keyid is not None)


def dead_letters(app: "App") -> Finding:
    """Check for events that could not be folded."""
    from consumers.reads import rollouts

    with app.reading() as connection:
        counts = rollouts.dead_letter_counts(connection)
    if counts:
        text = ", ".join(f"{count:,} of {stream}" for stream, count in counts.items())
        return False, f"{text} could not be folded; see kintsugi dlq list"
    return True, "none"


def spool(app: "App") -> Finding:
    """Check how many events of this home Kafka lacks, and that the spool was not restored."""
    from daemon.core.spool_check import SpoolBehindTables, check_spool
    from producers.spool.backlog import read_backlog

    if not (app.settings.home / "log.db").exists():
        return True, "nothing was recorded here"
    try:
        check_spool(app.reading, app.readable_spool)
    except SpoolBehindTables as error:
        return False, str(error)
    streams = read_backlog(app.readable_spool).values()
    waiting = sum(stream.unshipped for stream in streams)
    moments = [ms for stream in streams if (ms := stream.oldest_unshipped_ms) is not None]
    waits = _age(min(moments, default=None))
    text = f"{waiting:,} events wait for Kafka"
    if waits > WAITING_SECONDS:
        return False, f"{text}, the oldest for {waits:,.0f} s; is kintsugi ship running?"
    return True, text


def spools(app: "App") -> Finding:
    """Check for spools that stopped reporting and have events that are in no table."""
    from consumers.reads.spools import read_spools
    from daemon.core.spool_reporter import SILENT_SECONDS

    with app.reading() as connection:
        entries = read_spools(connection)
    silent = [entry for entry in entries if entry.age_seconds > SILENT_SECONDS and entry.unfolded]
    if silent:
        first = silent[0].report
        text = f"{first.path} on {first.host} is silent, and events of it are in no table"
        return False, f"{text}; see kintsugi spool ls"
    return True, f"{len(entries)} told of"


def _age(ms: int | None) -> float:
    return 0.0 if ms is None else max(0.0, time.time() - ms / 1000)


def kafka(app: "App") -> Finding:
    """Check the broker and its topics."""
    from daemon.core.broker import partitions

    missing: list[str] = []
    for topic, (wanted, count) in partitions(app.settings).items():
        if count is None:
            missing.append(topic)
        elif count != wanted:
            return False, f"topic {topic} has {count} partitions, {wanted} are needed; use another"
    where = app.settings.kafka_bootstrap_servers
    if missing:
        return True, f"{where} answers; {', '.join(missing)} will be made by the first event"
    return True, f"{where} answers, its topics have the right partitions"
