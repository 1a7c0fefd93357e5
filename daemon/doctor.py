"""The checks of `kintsugi doctor`: each says what it found, and what to do where that is bad.

A check never ends the others: whatever it raises is its finding.
"""

import os
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from daemon.app import App, revision
from events.errors import KintsugiError
from events.streams import STREAMS

PACKAGES: Final = ("events", "envs", "producers", "consumers", "migrations", "daemon")

OLDEST_SQLITE: Final = (3, 35, 0)
"""UPDATE ... RETURNING, which the embedded log takes its offsets with."""

FREE_BYTES: Final = 1 << 30
"""Below it a busy log fills the disk within hours."""

QUICK_BYTES: Final = 256 << 20
"""A log up to this size is read whole; of a larger one only the newest events."""


@dataclass(frozen=True, slots=True)
class Check:
    """One finding."""

    check: str
    ok: bool
    detail: str


Finding = tuple[bool, str]


def examine(app: App) -> list[Check]:
    """Every check that applies to this home."""
    checks: list[tuple[str, Callable[[App], Finding]]] = [
        ("packages", _packages),
        ("python", _python),
        ("sqlite", _sqlite),
        ("home", _home),
        ("blobs", _blobs),
        ("log", _log),
        ("database", _database),
        ("fold", _fold),
    ]
    if app.on_kafka:
        checks += [("crc32c", _crc32c), ("kafka", _kafka)]
    if app.settings.jobs.runner == "ray":
        checks.append(("jobs", _jobs))
    return [_checked(name, check, app) for name, check in checks]


def _checked(name: str, check: Callable[[App], Finding], app: App) -> Check:
    try:
        ok, detail = check(app)
    except KintsugiError as error:
        ok, detail = False, str(error)
    except OSError as error:
        ok, detail = False, f"{error.filename or ''} {error.strerror or error}".strip()
    return Check(name, ok, detail)


def _packages(_: App) -> Finding:
    found = list(_shadows())
    if found:
        return False, "; ".join(found) + "; install kintsugi in an environment of its own"
    return True, f"{', '.join(PACKAGES)} are ours"


def _shadows() -> Iterator[str]:
    """Flat package names are common ones: another distribution may bring the same."""
    ours = Path(__file__).parent.parent
    owners = packages_distributions()
    for name in PACKAGES:
        spec = find_spec(name)
        folder = Path(spec.origin).parent.parent if spec is not None and spec.origin else None
        if folder != ours:
            yield f"package {name} is imported from {folder or 'nowhere'} instead of {ours}"
        for owner in sorted(set(owners.get(name, [])) - {"kintsugi"}):
            yield f"distribution {owner} brings a package {name} too"


def _python(_: App) -> Finding:
    version = ".".join(str(part) for part in sys.version_info[:3])
    return sys.version_info >= (3, 11), f"{version} (3.11 or later)"


def _sqlite(_: App) -> Finding:
    needed = ".".join(str(part) for part in OLDEST_SQLITE)
    return (
        sqlite3.sqlite_version_info >= OLDEST_SQLITE,
        f"{sqlite3.sqlite_version} ({needed} or later)",
    )


def _home(app: App) -> Finding:
    home = app.home
    if not os.access(home, os.W_OK | os.X_OK):
        return False, f"{home} is not writable; make it so, or name another with --home"
    free = shutil.disk_usage(home).free
    detail = f"{home}, {free / (1 << 30):,.1f} GiB free"
    return free >= FREE_BYTES, detail if free >= FREE_BYTES else f"{detail}; free at least 1 GiB"


def _blobs(app: App) -> Finding:
    folder = app.blobs.folder
    if not folder.exists():
        return True, f"{folder} will be made when a body needs it"
    writable = os.access(folder, os.W_OK | os.X_OK)
    return writable, f"{folder}" if writable else f"{folder} is not writable; make it so"


def _log(app: App) -> Finding:
    from events.sqlite import SqliteLog

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


def _database(app: App) -> Finding:
    from consumers.tables import REVISION

    engine = app.database
    where = engine.url.render_as_string(hide_password=True)
    found = revision(engine)
    if found == REVISION:
        return True, f"{where} at revision {found}"
    if engine.dialect.name == "sqlite":
        return True, f"{where} will be brought to revision {REVISION} by the next command"
    return False, f"{where} is at revision {found}, not {REVISION}; run kintsugi db upgrade"


def _fold(app: App) -> Finding:
    from daemon.health import folded, halts, lag

    if not app.on_kafka and not (app.settings.home / "log.db").exists():
        return True, "nothing to fold yet"
    with app.reading() as connection:
        reached = folded(connection)
    halted = halts(app.readable_log, reached)
    behind = sum(lag(app.readable_log, reached).values())
    if halted:
        return False, "; ".join(halted)
    return True, f"{behind:,} events behind"


def _jobs(app: App) -> Finding:
    from daemon.jobs.chosen import jobs_of

    runner = jobs_of(app.settings)
    runner.check()
    runner.close()
    return True, f"{app.settings.jobs.ray.address} answers"


def _crc32c(_: App) -> Finding:
    from events.kafka_client import require_crc32c

    require_crc32c()
    return True, "checksums are computed in C"


def _kafka(app: App) -> Finding:
    from daemon.broker import partitions

    missing: list[str] = []
    for topic, (wanted, found) in partitions(app.settings).items():
        if found is None:
            missing.append(topic)
        elif found != wanted:
            return False, f"topic {topic} has {found} partitions, {wanted} are needed; use another"
    where = app.settings.kafka_bootstrap_servers
    if missing:
        return True, f"{where} answers; {', '.join(missing)} will be made by the first event"
    return True, f"{where} answers, its topics have the right partitions"
