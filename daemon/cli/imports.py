"""`kintsugi import`: read files of rollouts into the log, fold and diagnose them."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from daemon.cli.command import DONE, FAILED, PARTLY, Cli, command

if TYPE_CHECKING:
    from daemon.core.app import App
    from producers.importers.importer import ImportResult

_SHOWN = 20
"""Number of rejections, warnings and skipped files that stderr shows; `--json` has all."""


def register(app: typer.Typer) -> None:
    """Register the command with the command line's application `app`."""
    command(app, "import")(import_rollouts)


def import_rollouts(
    cli: Cli,
    paths: Annotated[list[Path], typer.Argument(metavar="PATH", help="Files and folders.")],
    alias: Annotated[str, typer.Option(help="Name under which the agent is served.")] = "agent",
    base: Annotated[
        str | None, typer.Option(help="Base model; default: the one the file names.")
    ] = None,
    format: Annotated[str, typer.Option(help="auto, tau-bench, tau2, bfcl or openai.")] = "auto",
    diagnose: Annotated[
        bool, typer.Option("--diagnose/--no-diagnose", help="Close a round afterwards.")
    ] = True,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Return when the records are folded.")
    ] = True,
) -> int:
    """Import recorded rollouts. Importing the same again changes nothing."""
    from producers.importers.importer import FORMATS

    if format != "auto" and format not in FORMATS:
        raise typer.BadParameter(
            f"{format!r} is not one of auto, {', '.join(FORMATS)}", param_hint="--format"
        )
    with cli.app() as app:
        with app.lock_import():
            appended = _append(cli, app, paths, alias, base, format)
        try:
            if wait:
                _fold(cli, app, diagnose)
        finally:
            # The appended events are safe, even if they cannot be folded now.
            _print(cli, appended, paths)
    if appended.imported and wait and diagnose:
        cli.out.hint("see what fails: kintsugi patterns")
    return _exit_code(appended)


def _append(
    cli: Cli, app: "App", paths: list[Path], alias: str, base: str | None, format: str
) -> "ImportResult":
    from consumers.position import position
    from consumers.reads.rollouts import filter_rollout_ids
    from daemon.core.backlog import read_pending_ids
    from producers.importers.importer import Notes, append_rollouts, read_rollouts, total_bytes

    with app.reading() as connection:
        reached = position(connection)
    # Read before the tables are asked: what is folded from here on, the tables know.
    waiting = read_pending_ids(app.spool, reached)

    def find_duplicates(ids: list[str]) -> set[str]:
        with app.reading() as connection:
            return filter_rollout_ids(connection, ids) | waiting.intersection(ids)

    notes = Notes()
    with cli.out.progress("Reading", total_bytes(paths), "bytes") as advance:
        rollouts = read_rollouts(
            paths, alias=alias, base=base, format=format, progress=advance, notes=notes
        )
        result = append_rollouts(app.spool, app.blobs, rollouts, find_duplicates)
    result.warnings[:0] = notes.warnings
    result.skips = notes.skips
    return result


def _fold(cli: Cli, app: "App", diagnose: bool) -> None:
    with cli.out.progress("Folding") as advance:
        if diagnose:
            app.diagnose("import", advance)
        else:
            app.settle(advance)


def _print(cli: Cli, appended: "ImportResult", paths: list[Path]) -> None:
    for warned in appended.warnings[:_SHOWN]:
        cli.out.warn(
            f"{warned.file}: {warned.warning} ({warned.count:,} records, first {warned.position})"
        )
    for rejection in appended.rejected[:_SHOWN]:
        cli.out.warn(f"{rejection.file} {rejection.position}: {rejection.reason}")
    for skip in appended.skips[:_SHOWN]:
        cli.out.warn(f"skipped {skip.file}: {skip.reason}")
    for what, count in (
        ("warnings", len(appended.warnings)),
        ("rejections", len(appended.rejected)),
        ("skipped files", len(appended.skips)),
    ):
        if count > _SHOWN:
            cli.out.warn(f"{count - _SHOWN:,} more {what}")
    if cli.out.json:
        cli.out.document(_document(appended))
    else:
        skips = f", skipped {len(appended.skips):,} files" if appended.skips else ""
        cli.out.show(
            f"imported {appended.imported:,}, duplicates {appended.duplicates:,}, "
            f"rejected {len(appended.rejected):,}{skips}"
        )
    if _nothing(appended):
        cli.out.warn(
            f"nothing to import in {', '.join(str(path) for path in paths)}: of a folder, files "
            "named *.json and *.jsonl are read"
        )


def _document(appended: "ImportResult") -> dict[str, Any]:
    document: dict[str, Any] = {
        "imported": appended.imported,
        "duplicates": appended.duplicates,
        "rejected": [asdict(item) for item in appended.rejected],
    }
    if appended.warnings:
        document["warnings"] = [asdict(item) for item in appended.warnings]
    if appended.skips:
        document["skipped"] = [asdict(item) for item in appended.skips]
    return document


def _nothing(appended: "ImportResult") -> bool:
    return not (appended.imported or appended.duplicates or appended.rejected)


def _exit_code(appended: "ImportResult") -> int:
    if appended.imported or appended.duplicates:
        return PARTLY if appended.rejected else DONE
    return FAILED
