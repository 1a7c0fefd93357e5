"""`kintsugi log export`, `import`, `trim`: write the log to files, read it, drop archived parts."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from daemon.cli.command import Cli, command
from daemon.cli.replay import From, To

if TYPE_CHECKING:
    from collections.abc import Callable

    from daemon.core.app import App
    from events.archive.archive import Archive, RestoreResult
    from events.log import EventLog


def register(group: typer.Typer) -> None:
    """Register the commands with the group `kintsugi log`."""
    command(group, "export")(export_log)
    command(group, "import")(import_log)
    command(group, "trim")(trim_log)


def export_log(
    cli: Cli,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="New, or an archive.")],
    start: From = None,
    to: To = None,
) -> None:
    """Write the log into a folder, bit for bit; into an archive of it, what that lacks."""
    from daemon.core.health import events_in
    from daemon.replay.log_range import between
    from events.archive.export import export

    with cli.app() as app:
        log: EventLog = app.readable_log
        begin, end = between(log, start, to)
        with cli.out.progress("Exporting", events_in(log)) as advance:
            done = export(log, app.blobs, folder, start=begin, end=end, advance=advance)
    if cli.out.json:
        cli.out.document(
            {
                "folder": str(folder), "events": done.events, "segments": done.segments,
                "blobs": done.blobs, "head": done.head,
            }
        )  # fmt: skip
        return
    cli.out.show(
        f"{done.events:,} events in {done.segments:,} segments and {done.blobs:,} blobs written to "
        f"{folder}",
        f"head {done.head}",
    )


def import_log(
    cli: Cli, folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="An archive.")]
) -> None:
    """Put an exported log into an empty home or, with Kafka, into its empty topics: the same bytes,
    sources and sequences."""
    from events.archive.archive import Archive

    archive = Archive(folder)
    with cli.app() as app:
        total = sum(segment.count for segment in archive.manifest.segments)
        with cli.out.progress("Importing", total) as advance:
            done = _restore(app, archive, advance)
        head = archive.manifest.head
    if cli.out.json:
        cli.out.document({"events": done.events, "blobs": done.blobs, "head": head})
    else:
        cli.out.show(f"{done.events:,} events and {done.blobs:,} blobs imported", f"head {head}")
        cli.out.hint("fold them: kintsugi rebuild")


def _restore(app: "App", archive: "Archive", advance: "Callable[[int], None]") -> "RestoreResult":
    if app.on_kafka:
        from events.archive import restore_kafka

        return restore_kafka.restore(archive, app.kafka, app.blobs, advance)
    from events.archive import restore_sqlite

    return restore_sqlite.restore(archive, app.home / "log.db", app.blobs, advance)


def trim_log(
    cli: Cli,
    folder: Annotated[
        Path, typer.Option("--archive", metavar="FOLDER", help="An export of what is trimmed.")
    ],
    before: Annotated[
        str, typer.Option("--before", metavar="PLACE", help="What was recorded before it may go.")
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would go; it is proven all the same.")
    ] = False,
) -> None:
    """Drop from this home's log, or with an archive of the broker's from its topics, the rollouts
    that the archive holds, proven record by record."""
    from daemon.maintenance import log_trim
    from daemon.replay.log_range import cut
    from events.archive.archive import Archive

    archive = Archive(folder)
    with cli.app() as app:
        log = log_trim.find_source_log(app, archive)
        planned = log_trim.plan(app, log, archive, cut(log, before))
        dropped = (
            sum(portion.events for portion in planned) if dry_run else log_trim.trim(log, planned)
        )
    portions = [
        {
            "partition": portion.partition, "start": portion.start, "before": portion.before,
            "events": portion.events, "kept_for": portion.kept_for,
        }
        for portion in planned
    ]  # fmt: skip
    if cli.out.json:
        cli.out.document(
            {
                "dropped": 0 if dry_run else dropped, "would_drop": dropped, "dry_run": dry_run,
                "partitions": portions,
            }
        )  # fmt: skip
        return
    verb = "would be dropped" if dry_run else "were dropped"
    cli.out.show(f"{dropped:,} events {verb}; {folder} holds them")
    kept = sorted({portion.kept_for for portion in planned if portion.kept_for is not None})
    if kept:
        cli.out.show(f"not all before {before}, because of: {', '.join(kept)}")
    if not dry_run and dropped:
        cli.out.hint(f"rebuild with it from now on: kintsugi rebuild --archive {folder}")
