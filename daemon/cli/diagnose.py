"""`kintsugi diagnose`: close a round by hand."""

import typer

from daemon.cli.command import Cli, command


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app)(diagnose)


def diagnose(cli: Cli) -> None:
    """Close a round of the training history over everything that was recorded."""
    with cli.app() as app, cli.out.progress("Folding") as advance:
        line = app.diagnose("diagnose", advance)
    if cli.out.json:
        cli.out.document(
            {
                "round": line.round if line else None,
                "patterns": line.patterns if line else 0,
                "unjudged": line.unjudged if line else 0,
                "other": line.other if line else 0,
            }
        )
    elif line is not None:
        cli.out.show(
            f"round {line.round}: {line.failed:,} failures in {line.patterns:,} patterns, "
            f"{line.other:,} that no rule explains, {line.unjudged:,} of {line.rollouts:,} "
            "rollouts unjudged"
        )
    if line is None:
        cli.out.hint("no rollout is recorded yet: kintsugi import PATH")
