"""`kintsugi explain`: the reasons for something, traced back to the rollouts."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from daemon.cli.command import Cli, command
from daemon.cli.output import plain_line
from events.errors import KintsugiError

if TYPE_CHECKING:
    from rich.tree import Tree

    from consumers.reads.explanation import Node


class PageUnwritable(KintsugiError):
    """The page cannot be written to this file."""


_TASKS: Final = 3
"""Number of tasks per pattern that a terminal shows."""


def register(app: typer.Typer) -> None:
    """Register the command with the command line's application `app`."""
    command(app)(explain)


def explain(
    cli: Cli,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A route's alias, an adapter, job, cycle, pattern, task or rollout.",
        ),
    ],
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="The graph as well, in a page of its own."),
    ] = None,
) -> None:
    """Why it is as it is: back from a route to the very rollouts."""
    from consumers.reads import explanation
    from daemon.replay import lineage

    with cli.app() as app, app.reading() as connection:
        node = explanation.explain(connection, name)
    if html is not None:
        _write(html, lineage.page(node))
        cli.out.hint(f"the graph is in {html}")
    if cli.out.json:
        cli.out.document(asdict(node))
    else:
        cli.out.show(tree(node))


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise PageUnwritable(
            f"{path} cannot be written: {error.strerror}; name a file in a folder that is there"
        ) from error


def tree(node: "Node") -> "Tree":
    """Return a node and its reasons as a tree for a terminal."""
    from rich.text import Text
    from rich.tree import Tree

    name, why = plain_line(node.node), plain_line(node.said)
    drawn = Tree(Text.assemble((f"{node.kind} ", "dim"), (name, "bold"), f"  {why}"))
    tasks = [child for child in node.because if child.kind == "task"]
    left_out = set(map(id, tasks[_TASKS:]))
    for child in node.because:
        if id(child) not in left_out:
            drawn.add(tree(child))
    if left_out:
        drawn.add(Text(f"and {len(left_out)} more tasks (--json has all)", "dim"))
    return drawn
