"""`kintsugi rebuild`: fold the log from the start, compare with the live tables, and swap."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from daemon.cli.command import DONE, FAILED, Cli, command
from daemon.cli.replay import Folder, read_log

if TYPE_CHECKING:
    from consumers.rebuild import Rebuilt
    from daemon.core.app import App
    from events.log import EventLog


def register(app: typer.Typer) -> None:
    """Register the command with the command line's application `app`."""
    command(app, "rebuild")(rebuild_tables)


def rebuild_tables(
    cli: Cli,
    yes: Annotated[
        bool, typer.Option("--yes", help="Swap the fresh tables in where they differ.")
    ] = False,
    archive: Folder = None,
    snapshot: Annotated[
        Path | None,
        typer.Option("--snapshot", metavar="FILE", help="Trust it for what lies before it."),
    ] = None,
) -> int:
    """Fold the log again beside the live tables and compare; with --yes, swap a difference in."""
    from consumers.rebuild import rebuild
    from daemon.core.app import explain_errors
    from daemon.core.health import events_in
    from daemon.replay.replay import open_snapshot

    with cli.app() as app, read_log(app, archive) as log, open_snapshot(snapshot) as beginning:
        _fold_the_rest(cli, app, log)
        with (
            explain_errors(app.engine),
            cli.out.progress("Rebuilding", events_in(log)) as advance,
        ):
            rebuilt = rebuild(
                log, app.engine, confirmed=yes, snapshot=beginning, on_progress=advance
            )
        if rebuilt.swapped:
            _fold_the_rest(cli, app, log)
    _print(cli, rebuilt)
    return FAILED if rebuilt.equal is False and not rebuilt.swapped else DONE


def _fold_the_rest(cli: Cli, app: "App", log: "EventLog") -> None:
    """Bring the live tables to the end of the log, so that all of it is compared. Tables of another
    fold version or another log stay as they are, since a rebuild replaces them."""
    from consumers.runner import FoldVersionMismatch
    from events.errors import AheadOfLog, LogDiverged

    try:
        with cli.out.progress("Folding") as advance:
            app.settle(advance, log)
    except FoldVersionMismatch as error:
        cli.out.hint(str(error).partition(";")[0])
    except (AheadOfLog, LogDiverged) as error:
        cli.out.warn(str(error))


def _print(cli: Cli, rebuilt: "Rebuilt") -> None:
    if cli.out.json:
        document: dict[str, Any] = {
            "events": rebuilt.events,
            "seconds": round(rebuilt.seconds, 3),
            "hash": rebuilt.hash,
            "equal": rebuilt.equal,
            "swapped": rebuilt.swapped,
        }
        if rebuilt.equal is not True:
            document["changed"] = rebuilt.changed
        cli.out.document(document)
    else:
        verdict = {True: "equal", False: "not equal", None: "a new fold version"}[rebuilt.equal]
        swapped = ", swapped in" if rebuilt.swapped else ""
        cli.out.show(
            f"{rebuilt.events:,} events in {rebuilt.seconds:.1f} s: {verdict}{swapped}",
            f"hash {rebuilt.hash}",
            *(f"changed: {name}, {rows:,} rows" for name, rows in rebuilt.changed.items()),
        )
    if rebuilt.difference is not None and rebuilt.equal is False:
        cli.out.warn(f"first difference: {rebuilt.difference}")
    if not rebuilt.swapped and rebuilt.equal is not True:
        cli.out.hint("the live tables were kept; swap the fresh ones in: kintsugi rebuild --yes")
