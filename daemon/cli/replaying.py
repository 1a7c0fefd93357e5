"""`kintsugi replay`, `diff` and `whatif`: what the log made, and what it would make."""

import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from daemon.cli.command import DONE, FAILED, Cli, command
from daemon.cli.output import plain, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from daemon.app import App
    from daemon.comparing import Divergence, LogsCompared, TablesCompared
    from daemon.settings import Scheduler
    from daemon.whatif import Lived, Supposed
    from events.archive import Cut
    from events.log import EventLog, Record

_PLACE: Final = (
    "A time (2026-05-01T12:00:00Z), learning@N (before decision N), or "
    "rollouts@0,0,4,0,0,0,0,0;learning@5."
)
From = Annotated[str | None, typer.Option("--from", metavar="PLACE", help=_PLACE)]
To = Annotated[str | None, typer.Option("--to", metavar="PLACE", help=_PLACE)]
Folder = Annotated[
    Path | None,
    typer.Option("--archive", metavar="FOLDER", help="An export, and the log where that ends."),
]

_LOOKS: Final = 1_000
"""Of `whatif` at most, by default."""


def register(app: typer.Typer) -> None:
    """Add the commands."""
    command(app)(replay)
    command(app)(diff)
    command(app)(whatif)


def replay(
    cli: Cli,
    into: Annotated[
        str, typer.Option("--into", metavar="FILE|URL", help="A database that it makes.")
    ],
    start: From = None,
    to: To = None,
    every: Annotated[
        int | None,
        typer.Option("--every", min=1, metavar="N", help="A snapshot after each N events."),
    ] = None,
    snapshots: Annotated[
        Path | None,
        typer.Option("--snapshots", metavar="FOLDER", help="Begin at the nearest of these."),
    ] = None,
    archive: Folder = None,
) -> None:
    """Fold a range of the log into a database of its own; nothing else is touched."""
    from daemon.place import cut
    from daemon.replaying import Request, replay_into
    from events.archive import ends

    with cli.app() as app, read_log(app, archive) as log:
        request = Request(
            into=into,
            end=ends(log) if to is None else cut(log, to),
            start=None if start is None else cut(log, start),
            every=every,
            snapshots=snapshots,
        )
        with cli.out.progress("Replaying", sum(request.end.values())) as advance:
            done = replay_into(app, log, request, advance)
    document = {
        "into": into, "events": done.events, "seconds": round(done.seconds, 3), "hash": done.hash,
        "end": _place(done.end), "began_at": done.began_at, "snapshots": done.snapshots,
    }  # fmt: skip
    if cli.out.json:
        cli.out.document(document)
        return
    cli.out.show(
        f"{done.events:,} events into {into} in {done.seconds:.1f} s, up to {document['end']}",
        f"hash {done.hash}",
    )


def diff(
    cli: Cli,
    one: Annotated[str, typer.Argument(metavar="A", help="A home, export, log or database.")],
    other: Annotated[str, typer.Argument(metavar="B", help="Another one of the same kind.")],
    first_divergence: Annotated[
        bool, typer.Option("--first-divergence", help="Only where they part first.")
    ] = False,
) -> int:
    """Where two logs part, event by event, or two foldings, row by row; exit 1 when they do."""
    from daemon import comparing

    with ExitStack() as opened:
        sides = [comparing.side(name, opened) for name in (one, other)]
        left, right = sides
        if left.kind != right.kind:
            raise comparing.Incomparable(
                f"{one} is a {left.kind} and {other} is a {right.kind}; name two of a kind, or "
                "fold the log with kintsugi replay --into"
            )
        if left.log is not None and right.log is not None:
            with cli.out.progress("Comparing") as advance:
                logs = comparing.logs(left.log, right.log, advance)
            return _show_logs(cli, one, other, logs, first_divergence)
        from daemon.app import explained

        assert left.engine is not None, "it is no log"
        with explained(left.engine):
            tables = comparing.tables(left, right, first_divergence)
        return _show_tables(cli, one, other, tables)


def whatif(
    cli: Cli,
    changed: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting scheduler.*; may be repeated."),
    ] = None,
    to: To = None,
    every: Annotated[
        float | None,
        typer.Option("--every", min=0, metavar="SECONDS", help="Between two looks, at least."),
    ] = None,
) -> None:
    """When cycles would have begun with other settings, and on what, beside those that did."""
    from daemon import whatif as asking
    from daemon.place import cut
    from daemon.replaying import changed_scheduler, scratch
    from events.archive import ends

    scheduler = changed_scheduler(cli.settings.scheduler, changed or [])
    with cli.app() as app, tempfile.TemporaryDirectory(prefix="kintsugi-whatif-") as folder:
        log = app.readable_log
        end = ends(log) if to is None else cut(log, to)
        with app.reading() as connection:
            past = asking.lived(connection)
        environments = {
            one.alias: one.environment for one in app.settings.agents if one.environment
        }
        seconds = _seconds_between(log, end, scheduler) if every is None else every
        with (
            scratch(Path(folder) / "tables.db") as engine,
            cli.out.progress("Asking", sum(end.values())) as advance,
        ):
            found = asking.whatif(
                log, engine, past, environments, scheduler,
                end=end, every_ms=int(seconds * 1000), advance=advance,
            )  # fmt: skip
    _show_whatif(cli, changed or [], seconds, past, found)


@contextmanager
def read_log(app: "App", archive: Path | None) -> "Iterator[EventLog]":
    """The home's log, or an archive that goes on as it."""
    from events.archive import Archive
    from events.spans import Continued

    yield app.readable_log if archive is None else Continued(Archive(archive), app.readable_log)


def _place(end: "Cut") -> str:
    from events.streams import STREAMS

    return ";".join(
        f"{stream}@"
        + ",".join(str(end.get((stream, p), 0)) for p in range(STREAMS[stream].partitions))
        for stream in STREAMS
    )


def _seconds_between(log: "EventLog", end: "Cut", scheduler: "Scheduler") -> float:
    """As often as the leader looks, or as a log of this length allows."""
    from events.spans import recorded_span

    first, last = recorded_span(log, end)
    return max(scheduler.tick_seconds, (last - first) / 1000 / _LOOKS)


def _show_logs(cli: Cli, one: str, other: str, found: "LogsCompared", first_only: bool) -> int:
    kept = found.divergences[:1] if first_only else found.divergences
    if cli.out.json:
        cli.out.document(
            {
                "a": one, "b": other, "kind": "log", "equal": not found.divergences,
                "events": found.events, "read": found.read,
                "divergences": [_divergence(each) for each in kept],
            }
        )  # fmt: skip
    elif not found.divergences:
        cli.out.show(f"equal: {found.events:,} events")
    else:
        for each in kept:
            cli.out.show(plain(_sentence(each, one, other)))
    return FAILED if found.divergences else DONE


def _divergence(found: "Divergence") -> dict[str, Any]:
    return {
        "stream": found.stream, "partition": found.partition, "offset": found.offset,
        "what": found.what, "a": _said(found.one), "b": _said(found.other),
    }  # fmt: skip


def _said(record: "Record | None") -> dict[str, Any] | None:
    """An event as far as a person can tell it from another one."""
    from events.envelope import from_headers
    from events.errors import BadRecord
    from events.segments import digest

    if record is None:
        return None
    said: dict[str, Any] = {
        "id": None, "type": None, "source": record.source, "sequence": record.sequence,
        "recorded_ms": record.recorded_ms, "sha256": digest(record),
    }  # fmt: skip
    try:
        envelope = from_headers(record.headers)
    except BadRecord as error:
        return said | {"error": str(error)}
    return said | {"id": envelope.id, "type": envelope.type}


def _sentence(found: "Divergence", one: str, other: str) -> str:
    place = f"{found.stream}/{found.partition}@{found.offset}"
    left, right = _said(found.one), _said(found.other)
    if left is None or right is None:
        there, said = (one, left) if right is None else (other, right)
        assert said is not None, "one of the two has it"
        return f"{place}: {there} alone has {said['type']} {said['id']}"
    return (
        f"{place}: {found.what} is not the same: {left['type']} {left['id']} in {one}, "
        f"{right['type']} {right['id']} in {other}"
    )


def _show_tables(cli: Cli, one: str, other: str, found: "TablesCompared") -> int:
    difference, parted = found.difference, found.parted
    if cli.out.json:
        snapshots = None
        if parted is not None:
            snapshots = {
                "equal_at": None if parted.equal is None else _place(parted.equal.offsets),
                "differ_at": _place(parted.one.offsets),
                "events": [0 if parted.equal is None else parted.equal.events, parted.one.events],
            }
        cli.out.document(
            {
                "a": one, "b": other, "kind": "database", "equal": difference is None,
                "difference": None if difference is None else asdict(difference),
                "changed": found.changed, "between": snapshots,
            }
        )  # fmt: skip
    elif difference is None:
        cli.out.show("equal")
    else:
        cli.out.show(plain(difference.between(one, other)))
        if parted is not None:
            before = 0 if parted.equal is None else parted.equal.events
            cli.out.show(f"they parted after event {before:,} and up to {parted.one.events:,}")
        for name, rows in found.changed.items():
            cli.out.show(f"changed: {name}, {rows:,} rows")
    return DONE if difference is None else FAILED


def _show_whatif(
    cli: Cli, changed: list[str], seconds: float, past: "list[Lived]", found: "Supposed"
) -> None:
    from events.envelope import timestamp

    would: list[dict[str, Any]] = [
        {
            "alias": one.alias, "base": one.base, "number": one.number, "at": timestamp(one.at),
            "trigger": one.trigger, "reason": one.reason, "rollouts": one.rollouts,
            "failures": one.failures, "priority": one.priority, "position": one.position,
        }
        for one in found.cycles
    ]  # fmt: skip
    did: list[dict[str, Any]] = [
        {
            "alias": one.row.alias, "base": one.row.base, "number": one.row.number,
            "at": one.row.started, "trigger": one.row.trigger, "reason": one.row.reason,
            "rollouts": one.rollouts, "position": one.row.position, "cycle": one.row.cycle,
            "outcome": one.row.outcome,
        }
        for one in past
    ]  # fmt: skip
    if cli.out.json:
        waiting = {alias: list(missing) for alias, missing in found.waiting.items()}
        cli.out.document(
            {
                "set": changed, "looks": found.looks, "every_seconds": round(seconds, 3),
                "would": would, "did": did, "waiting": waiting,
            }
        )  # fmt: skip
        return
    rows = sorted(
        [
            [one["at"], what, one["alias"], one["number"], one["trigger"], one["rollouts"],
             one["reason"]]
            for what, cycles in (("would", would), ("did", did))
            for one in cycles
        ],
        key=lambda row: (str(row[0]), str(row[1])),
    )  # fmt: skip
    cli.out.show(
        table(["at", "", "alias", "cycle", "trigger", "rollouts", "reason"], rows, ("rollouts",))
        if rows
        else "no cycle did begin, and none would have"
    )
    for alias, missing in found.waiting.items():
        for sentence in missing:
            cli.out.show(plain(f"at the end {alias} would wait for: {sentence}"))
