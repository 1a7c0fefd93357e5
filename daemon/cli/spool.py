"""`kintsugi spool`: what this home recorded, and what of it Kafka does not have yet."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from daemon.cli.command import Cli, command, noun
from daemon.cli.output import facts, table

if TYPE_CHECKING:
    from daemon.app import App
    from events.errors import LogUnavailable
    from events.kafka import KafkaLog
    from events.sqlite import SqliteLog
    from producers.unshipped import Held

group = noun("spool", "What this home recorded, and what of it Kafka does not have yet.")

_RETRY_SECONDS = 0.5
_PATIENCE_SECONDS = 60.0

_ALONE = (
    "the log of this home is its spool; kafka_bootstrap_servers is empty, so nothing is shipped"
)


@command(group)
def status(cli: Cli) -> None:
    """What the spool holds, how far it was shipped, and the room on its disk."""
    import shutil

    from producers.unshipped import held

    with cli.app() as app:
        path, ships = app.readable_spool.path, app.on_kafka
        streams = held(app.readable_spool)
        now = time.time()
        free = shutil.disk_usage(path.parent).free
    lines = {name: _line(one, ships, now) for name, one in streams.items()}
    if cli.out.json:
        found = {"path": str(path), "ships": ships, "free_bytes": free, "streams": lines}
        cli.out.document(found)
        return
    cli.out.show(facts({"spool": path, "free on its disk": f"{free:,} bytes"}))
    columns = ["stream", "events", "bytes", *(["unshipped", "oldest"] if ships else [])]
    rows = [[name, *_cells(line, ships)] for name, line in lines.items()]
    cli.out.show(table(columns, rows, right=columns[1:]))
    if not ships:
        cli.out.hint(_ALONE)


def _line(one: "Held", ships: bool, now: float) -> dict[str, Any]:
    """A stream in JSON; null is what has no meaning where nothing is shipped."""
    oldest = one.oldest_unshipped_ms if ships else None
    return {
        "events": one.events,
        "bytes": one.bytes,
        "shipped": list(one.shipped) if ships else None,
        "unshipped": one.unshipped if ships else None,
        "oldest_unshipped_seconds": None if oldest is None else max(0.0, now - oldest / 1000),
    }


def _cells(line: dict[str, Any], ships: bool) -> list[str | None]:
    cells: list[str | None] = [f"{line['events']:,}", f"{line['bytes']:,}"]
    if ships:
        oldest = line["oldest_unshipped_seconds"]
        cells += [f"{line['unshipped']:,}", None if oldest is None else f"{oldest:,.0f} s ago"]
    return cells


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
) -> None:
    """Ship what is in the spool now; done when the broker has acknowledged all of it."""
    with cli.app() as app:
        ships = app.on_kafka
        if other is not None:
            drained = _drain_other(app, other, within)
        else:
            drained = _drain(app.spool, app.kafka, within) if ships else 0
    if cli.out.json:
        cli.out.document({"ships": ships, "drained": drained, "left": 0})
        return
    cli.out.show(f"{drained:,} events were acknowledged, none is left" if ships else _ALONE)


def _drain_other(app: "App", home: Path, within: float) -> int:
    """As `_drain`, of another home that nobody appends to; the bodies come into this one."""
    from daemon.settings import ConfigurationError
    from producers.owning import abandoned, bring_bodies

    if not app.on_kafka:
        raise ConfigurationError(
            f"{home} cannot be shipped: kafka_bootstrap_servers is empty; set it to the broker's"
        )
    with abandoned(home) as spool:
        bring_bodies(spool, app.blobs)
        return _drain(spool, app.kafka, within)


def _drain(spool: "SqliteLog", kafka: "KafkaLog", within: float) -> int:
    """How many events were not in Kafka before and are now. Raises LogUnavailable."""
    from daemon.broker import ship
    from events.errors import LogUnavailable
    from events.streams import STREAMS
    from producers.shipper import unshipped

    goal = {stream: spool.end(stream) for stream in STREAMS}
    before = unshipped(spool, goal)
    deadline = time.monotonic() + within
    while unshipped(spool, goal):
        try:
            ship(spool, kafka, max(0.0, deadline - time.monotonic()))
        except LogUnavailable as error:
            if time.monotonic() + _RETRY_SECONDS >= deadline:
                raise _left(spool, unshipped(spool, goal), within, error) from error
            time.sleep(_RETRY_SECONDS)
    return before


def _left(
    spool: "SqliteLog", left: int, within: float, error: "LogUnavailable"
) -> "LogUnavailable":
    from events.errors import LogUnavailable

    return LogUnavailable(
        f"{left:,} of the events in {spool.path} are not in Kafka after {within:g} s "
        f"({error}); they stay where they are, drain again when the broker answers"
    )
