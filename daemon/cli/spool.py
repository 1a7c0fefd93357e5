"""`kintsugi spool`: the events that homes recorded, and which of them Kafka lacks."""

import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from daemon.cli.command import Cli, command, noun
from daemon.cli.output import Columns, facts, table
from events.errors import KintsugiError

if TYPE_CHECKING:
    from consumers.reads.spools import SpoolState
    from daemon.core.app import App
    from events.errors import LogUnavailable
    from events.sqlite.log import SqliteLog
    from producers.spool.backlog import StreamBacklog

group = noun("spool", "What this home recorded, and what of it Kafka does not have yet.")

_RETRY_SECONDS = 0.5
_PATIENCE_SECONDS = 60.0

_ALONE = (
    "the log of this home is its spool; kafka_bootstrap_servers is empty, so nothing is shipped"
)


class UnknownSpool(KintsugiError):
    """The database knows no spool of this name."""


@command(group)
def status(cli: Cli) -> None:
    """Show what the spool holds, how far it was shipped, and the room on its disk."""
    import shutil

    from producers.spool.backlog import read_backlog

    with cli.app() as app:
        path, ships = app.readable_spool.path, app.on_kafka
        streams = read_backlog(app.readable_spool)
        now = time.time()
        free = shutil.disk_usage(path.parent).free
    lines = {name: _line(stream, ships, now) for name, stream in streams.items()}
    if cli.out.json:
        document = {"path": str(path), "ships": ships, "free_bytes": free, "streams": lines}
        cli.out.document(document)
        return
    cli.out.show(facts({"spool": path, "free on its disk": f"{free:,} bytes"}))
    columns = ["stream", "events", "bytes", *(["unshipped", "oldest"] if ships else [])]
    rows = [[name, *_cells(line, ships)] for name, line in lines.items()]
    cli.out.show(table(columns, rows, right=columns[1:]))
    if not ships:
        cli.out.hint(_ALONE)


def _line(stream: "StreamBacklog", ships: bool, now: float) -> dict[str, Any]:
    oldest = stream.oldest_unshipped_ms if ships else None
    return {
        "events": stream.events,
        "bytes": stream.bytes,
        "shipped": list(stream.shipped) if ships else None,
        "unshipped": stream.unshipped if ships else None,
        "oldest_unshipped_seconds": None if oldest is None else max(0.0, now - oldest / 1000),
    }


def _cells(line: dict[str, Any], ships: bool) -> list[str | None]:
    cells: list[str | None] = [f"{line['events']:,}", f"{line['bytes']:,}"]
    if ships:
        oldest = line["oldest_unshipped_seconds"]
        cells += [f"{line['unshipped']:,}", None if oldest is None else f"{oldest:,.0f} s ago"]
    return cells


@command(group, "ls")
def list_spools(cli: Cli) -> None:
    """List the spools that the database was told of, and what of each is in no table."""
    from consumers.reads.spools import read_spools

    with cli.app() as app, app.reading() as connection:
        lines = [_spool_line(item) for item in read_spools(connection)]
    if cli.out.json:
        cli.out.document(lines)
        return
    columns = Columns(
        "source", "host", "path", ("told", lambda item: f"{item['told_seconds']:,.0f} s ago"),
        ("unfolded", "unfolded:,"), "state",
        right=("told", "unfolded"),
    )  # fmt: skip
    cli.out.show(columns.build_table(lines))
    if not lines:
        cli.out.hint("no spool that is shipped was told of")


def _spool_line(entry: "SpoolState") -> dict[str, Any]:
    from daemon.core.spool_reporter import SILENT_SECONDS

    return {
        "source": entry.report.source,
        "host": entry.report.host,
        "path": entry.report.path,
        "told_seconds": max(0.0, entry.age_seconds),
        "unfolded": entry.unfolded,
        "state": "silent" if entry.age_seconds > SILENT_SECONDS else "live",
    }


@command(group)
def forget(
    cli: Cli,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="As `spool ls` names it.")],
) -> None:
    """Miss a spool no more: its disk is lost, or all of it was shipped by hand."""
    from consumers import database
    from consumers.reads import spools
    from daemon.core.app import explain_errors

    with cli.app() as app:
        engine = app.engine
        with explain_errors(engine), database.write_transaction(engine) as connection:
            known = {entry.report.source: entry for entry in spools.read_spools(connection)}
            if source not in known:
                raise UnknownSpool(
                    f"the database was told of no spool {source!r}; kintsugi spool ls names them"
                )
            spools.forget(connection, source)
        line = _spool_line(known[source])
    unfolded = line["unfolded"]
    cli.out.report(line, f"{source} is missed no more; {unfolded:,} of its events are in no table")


@command(group)
def renew(cli: Cli) -> None:
    """Give the spool of a home that was restored from before a new id; no process may run."""
    from producers.spool.renewal import renew

    result = renew(cli.settings.home)
    cli.out.report(
        {"was": result.before, "source": result.source, "events": result.events,
         "kept": str(result.kept)},
        f"the spool is {result.source} now, was {result.before}; {result.events:,} events are to "
        f"be shipped. {result.kept} holds what it was",
    )  # fmt: skip


@command(group)
def drain(
    cli: Cli,
    within: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="How long to try.")
    ] = _PATIENCE_SECONDS,
    other: Annotated[
        Path | None,
        typer.Option("--spool", metavar="HOME", help="Of a home whose owner never returns."),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Also what was shipped before: for topics that lost it.")
    ] = False,
) -> None:
    """Ship what is in the spool now; done when the broker has acknowledged all of it."""
    with cli.app() as app:
        ships = app.on_kafka
        if other is not None:
            drained = _drain_other(cli, app, other, within, again)
        elif ships:
            _check(app)
            drained = _drain(cli, app, app.spool, within, again)
        else:
            drained = 0
    text = f"{drained:,} events were acknowledged, none is left" if ships else _ALONE
    cli.out.report({"ships": ships, "drained": drained, "left": 0}, text)


def _check(app: "App") -> None:
    """Raise SpoolBehindTables if the spool is an earlier copy, unless the database is away."""
    from consumers.database import DatabaseError
    from daemon.core.spool_check import check_spool

    with suppress(DatabaseError):
        check_spool(app.reading, app.spool)


def _drain_other(cli: Cli, app: "App", home: Path, within: float, again: bool) -> int:
    """Drain another home's idle spool as `_drain` does, after copying its bodies to this home."""
    from daemon.config.settings import ConfigurationError
    from producers.spool.owner import bring_bodies, open_idle_spool

    if not app.on_kafka:
        raise ConfigurationError(
            f"{home} cannot be shipped: kafka_bootstrap_servers is empty; set it to the broker's"
        )
    with open_idle_spool(home) as spool:
        bring_bodies(spool, app.blobs, again)
        return _drain(cli, app, spool, within, again)


def _drain(cli: Cli, app: "App", spool: "SqliteLog", within: float, again: bool) -> int:
    """Ship the spool; return how many events were new to Kafka, or were sent `again`. Raise
    LogUnavailable; raise LogError if another process ships events that are to be sent again."""
    from daemon.core.broker import ship
    from events.errors import LogUnavailable
    from events.streams import STREAMS
    from producers.shipper import Shipper, count_backlog

    if again:
        Shipper(spool, lambda: app.kafka.sender()).begin_again()
    goal = {stream: spool.end(stream) for stream in STREAMS}
    before = count_backlog(spool, goal)
    deadline = time.monotonic() + within
    while count_backlog(spool, goal):
        try:
            ship(spool, app.kafka, max(0.0, deadline - time.monotonic()))
        except LogUnavailable as error:
            if time.monotonic() + _RETRY_SECONDS >= deadline:
                raise _timeout_error(spool, count_backlog(spool, goal), within, error) from error
            time.sleep(_RETRY_SECONDS)
    _tell(cli, app, spool)
    return before


def _tell(cli: Cli, app: "App", spool: "SqliteLog") -> None:
    """Report the drained spool to the database, so that a home without an owner is not missed."""
    from consumers.database import DatabaseError
    from daemon.core.spool_reporter import tell

    try:
        tell(app, spool, ends=True)
    except DatabaseError as error:
        cli.out.warn(f"the events are in Kafka, and the database was not told: {error}")


def _timeout_error(
    spool: "SqliteLog", left: int, within: float, error: "LogUnavailable"
) -> "LogUnavailable":
    from events.errors import LogUnavailable

    return LogUnavailable(
        f"{left:,} of the events in {spool.path} are not in Kafka after {within:g} s "
        f"({error}); they stay where they are, drain again when the broker answers"
    )
