"""Databases that `kintsugi replay` and `whatif` work in: never the live one."""

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError
from sqlalchemy import Engine

from consumers import database, snapshots
from consumers.digest_tracker import DigestTracker
from consumers.replay import is_empty, replay
from daemon.config.settings import ConfigurationError, Scheduler
from events.archive.archive import Cut
from events.errors import KintsugiError, WrongUsage
from events.log import EventLog
from events.privacy.database_url import parse_database_url, render_database_url, render_name
from migrations.upgrade import upgrade

if TYPE_CHECKING:
    from daemon.core.app import App

_PREFIX = "scheduler."


class NoTarget(KintsugiError):
    """The named database or file may not be the target of a replay."""


@dataclass(frozen=True, slots=True)
class Request:
    """The range to fold, and its target."""

    into: str
    """Path of a new file, or URL of an empty database."""
    end: Cut
    start: Cut | None = None
    every: int | None = None
    snapshots: Path | None = None
    """Folder of the snapshots that the replay may begin at."""
    logs: tuple[str, ...] = ()
    """Paths of the log, which snapshots record so that it can be found later."""


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """Result of a replay."""

    events: int
    seconds: float
    hash: str
    end: Cut
    began_at: int
    """Number of events in the snapshot that the replay began with; 0 without one."""
    snapshots: int
    into: str
    """Name of the target database, without a password."""


def replay_into(
    app: "App", log: EventLog, request: Request, advance: Callable[[int], None]
) -> ReplayResult:
    """Fold the requested range of a log into the target. Remove a new file if folding fails."""
    from daemon.core.app import explain_errors

    began = time.monotonic()
    path = _file(app, request)
    url = request.into if path is None else database.sqlite_url(path)
    begun = _begin(request, path)
    snapshot_count = 0

    def keep(events: int) -> None:
        nonlocal snapshot_count
        assert path is not None, "snapshots are of files alone"
        assert tracked is not None, "they were asked for"
        snapshots.keep(
            engine, tracked, path.with_name(f"{path.name}.snapshots"), events, request.logs
        )
        snapshot_count += 1

    tracked: DigestTracker | None = None
    engine = database.open_database(url)
    try:
        with explain_errors(engine):
            if path is None:
                _check_empty(engine)
            upgrade(engine)
            tracked = None if request.every is None else DigestTracker(engine)
            done = replay(
                log, engine, request.end, start=request.start, every=request.every, keep=keep,
                on_progress=advance,
            )  # fmt: skip
    except BaseException:
        engine.dispose()
        _remove(path)
        raise
    engine.dispose()
    seconds = time.monotonic() - began
    into = render_name(request.into)
    return ReplayResult(done.events, seconds, done.hash, done.end, begun, snapshot_count, into)


def _file(app: "App", request: Request) -> Path | None:
    """Return the file to make; None if the target is a database server. Raise NoTarget."""
    named = request.into
    if "://" in named:
        try:
            url = parse_database_url(named)
            live = url == parse_database_url(app.settings.database)
        except ValueError as error:
            raise WrongUsage(f"--into is no database URL: {error}") from error
        if live:
            shown = render_database_url(url)
            raise NoTarget(f"{shown} is the live database; name another one")
        if url.get_backend_name() != "sqlite":
            if request.every is not None or request.snapshots is not None:
                shown = render_database_url(url)
                raise WrongUsage(f"snapshots are of SQLite alone: name a file, and not {shown}")
            return None
        # A file, however it is named, must not exist yet.
        named = url.database or ""
    if named in ("", ":memory:"):
        shown = render_name(request.into)
        raise WrongUsage(f"--into {shown!r} names no file; name one that is to be made")
    path = Path(named).absolute()
    if path.exists():
        raise NoTarget(f"{path} exists; name a file that does not, or remove it")
    if not path.parent.is_dir():
        raise NoTarget(f"{path} cannot be made: its folder does not exist; make it")
    if database.sqlite_url(path) == app.settings.database:
        raise NoTarget(f"{path} is the live database; name another file")
    return path


def _check_empty(engine: Engine) -> None:
    if not is_empty(engine):
        raise NoTarget(
            f"database {render_database_url(engine.url)} holds tables; name an empty one"
        )


def _begin(request: Request, path: Path | None) -> int:
    """Copy the nearest snapshot to the target; return its number of events, 0 without one."""
    if request.snapshots is None or path is None:
        return 0
    if request.start is not None:
        raise WrongUsage(
            "--from and --snapshots exclude each other: a snapshot holds what was before"
        )
    if not request.snapshots.is_dir():
        raise WrongUsage(f"{request.snapshots} is no folder; name the .snapshots of a replay")
    snapshot = snapshots.nearest(request.snapshots, request.end)
    if snapshot is None:
        return 0
    shutil.copyfile(snapshot.path, path)
    return snapshot.events


def _remove(path: Path | None) -> None:
    if path is not None:
        for suffix in ("", "-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)


@contextmanager
def open_snapshot(path: Path | None) -> Iterator[Engine | None]:
    """Open the tables of a snapshot, if one is named."""
    if path is None:
        yield None
        return
    if not path.is_file():
        raise WrongUsage(f"{path} does not exist; name a file of a replay's .snapshots")
    engine = database.open_tables(str(path))
    try:
        yield engine
    finally:
        engine.dispose()


@contextmanager
def scratch(path: Path) -> Iterator[Engine]:
    """Yield empty tables in a temporary file."""
    engine = database.open_database(database.sqlite_url(path))
    try:
        upgrade(engine)
        yield engine
    finally:
        engine.dispose()


def override_scheduler(settings: Scheduler, changed: Sequence[str]) -> Scheduler:
    """Return the settings with each KEY=VALUE applied. Raise ConfigurationError."""
    values = settings.model_dump()
    for assignment in changed:
        key, equals, value = assignment.partition("=")
        name = key.strip().removeprefix(_PREFIX)
        if not equals or not key.strip().startswith(_PREFIX) or name not in values:
            known = ", ".join(f"{_PREFIX}{each}" for each in values)
            raise ConfigurationError(
                f"--set {assignment!r} sets nothing here; write KEY=VALUE with {known}"
            )
        values[name] = value.strip()
    try:
        return Scheduler.model_validate(values)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in problem["loc"])
        raise ConfigurationError(
            f"--set {_PREFIX}{name}: {problem['msg']} (got {str(problem.get('input'))[:80]!r})"
        ) from error
