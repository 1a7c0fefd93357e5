"""`kintsugi replay`: fold a range of the log. Also the shared options that name places in it."""

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from daemon.cli.command import Cli, command

if TYPE_CHECKING:
    from collections.abc import Iterator

    from daemon.core.app import App
    from events.archive.archive import Cut
    from events.log import EventLog

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


def register(app: typer.Typer) -> None:
    """Register the command with the command line's application `app`."""
    command(app)(replay)


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
    from daemon.replay.log_range import between
    from daemon.replay.replay import Request, replay_into

    with cli.app() as app, read_log(app, archive) as log:
        begin, end = between(log, start, to)
        request = Request(
            into=into,
            end=end,
            start=begin,
            every=every,
            snapshots=snapshots,
            logs=_where(app, archive),
        )
        with cli.out.progress("Replaying", sum(request.end.values())) as advance:
            done = replay_into(app, log, request, advance)
    document = {
        "into": done.into, "events": done.events, "seconds": round(done.seconds, 3),
        "hash": done.hash, "end": place_text(done.end), "began_at": done.began_at,
        "snapshots": done.snapshots,
    }  # fmt: skip
    if cli.out.json:
        cli.out.document(document)
        return
    cli.out.show(
        f"{done.events:,} events into {done.into} in {done.seconds:.1f} s, up to {document['end']}",
        f"hash {done.hash}",
    )


@contextmanager
def read_log(app: "App", archive: Path | None) -> "Iterator[EventLog]":
    """Open the home's log, or an archive that the home's log continues."""
    from events.archive.archive import Archive
    from events.archive.views import ArchiveWithLog

    yield (
        app.readable_log if archive is None else ArchiveWithLog(Archive(archive), app.readable_log)
    )


def _where(app: "App", archive: Path | None) -> tuple[str, ...]:
    """Return the files from which the log was read, for a later diff; a log in Kafka has none."""
    kept = () if archive is None else (str(archive.absolute()),)
    return kept if app.on_kafka else (*kept, str((app.home / "log.db").absolute()))


def place_text(end: "Cut") -> str:
    """Return a position in the log as a text that `--to` accepts."""
    from events.streams import STREAMS

    return ";".join(
        f"{stream}@"
        + ",".join(str(end.get((stream, p), 0)) for p in range(STREAMS[stream].partitions))
        for stream in STREAMS
    )
