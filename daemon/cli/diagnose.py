"""`kintsugi diagnose`: close a round of the training history by hand."""

from typing import TYPE_CHECKING, Annotated

import typer

from daemon.cli.command import Cli, command

if TYPE_CHECKING:
    from daemon.repair.background import RepairReport


def register(app: typer.Typer) -> None:
    """Register the command with the command line's application `app`."""
    command(app)(diagnose)


def diagnose(
    cli: Cli,
    repair: Annotated[
        bool, typer.Option("--repair", help="First search the repair of every failed rollout.")
    ] = False,
) -> None:
    """Close a round of the training history over everything that was recorded."""
    from consumers.reads.rollouts import last_round
    from daemon.repair.background import RepairQueue

    with cli.app() as app:
        report = None
        if repair:
            with cli.out.progress("Searching repairs") as advance:
                report = RepairQueue(app).drain(advance)
        with app.reading() as connection:
            before = last_round(connection)
        with cli.out.progress("Folding") as advance:
            line = app.diagnose("diagnose", advance)
    for trouble in report.troubles if report else ():
        cli.out.hint(trouble)
    if cli.out.json:
        cli.out.document(
            {
                "round": line.round if line else None,
                "patterns": line.patterns if line else 0,
                "unjudged": line.unjudged if line else 0,
                "other": line.other if line else 0,
                **({} if report is None else {"repairs": dict(sorted(report.outcomes.items()))}),
            }
        )
    else:
        if report is not None:
            cli.out.show(_describe(report))
        if line is not None:
            cli.out.show(
                f"round {line.round}: {line.failed:,} failures in {line.patterns:,} patterns, "
                f"{line.other:,} that no rule explains, {line.unjudged:,} of {line.rollouts:,} "
                "rollouts unjudged"
            )
    if line is None:
        cli.out.hint("no rollout is recorded yet: kintsugi import PATH")
    elif before is not None and before.round == line.round:
        late = report is not None and report.outcomes["repaired"]
        counted = "; what was repaired now counts in no closed round" if late else ""
        cli.out.hint(f"nothing is new since round {line.round}{counted}")


def _describe(report: "RepairReport") -> str:
    outcomes = ", ".join(f"{n:,} {name}" for name, n in sorted(report.outcomes.items()))
    return f"repairs: {report.searches:,} searched{f' ({outcomes})' if outcomes else ''}"
