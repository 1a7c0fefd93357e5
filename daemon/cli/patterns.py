"""`kintsugi patterns`: what the agent keeps failing at, ranked."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from daemon.cli.command import Cli, command
from daemon.cli.output import table

if TYPE_CHECKING:
    from consumers.reads.rollouts import PatternLine

_WIDE = 110
"""Columns from which there is room for examples and longer bars."""

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_SPARKS = "▁▂▃▄▅▆▇█"

_FIELDS = (
    "alias", "base", "pattern", "category", "pivot", "failures", "attempts", "pass_rate",
    "priority", "status", "examples",
)  # fmt: skip
"""The promised ones first, then what may be added."""

_MORE_FIELDS = ("passes", "round", "trend")

_SHOWN_ID = 13
"""Characters of an example's id: enough to be unique, and `rollouts show` takes a prefix."""

_STYLES = {"REGRESSED": "red", "PERSISTENT": "red", "NEW": "yellow", "RESOLVED": "green"}


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app)(patterns)


def patterns(
    cli: Cli,
    alias: Annotated[str | None, typer.Option(help="Only this agent.")] = None,
) -> None:
    """Failure patterns as of the last round, highest priority first."""
    from consumers.reads.rollouts import count_backlog, pattern_lines

    with cli.app() as app, app.reading() as connection:
        lines = pattern_lines(connection, alias)
        counts = count_backlog(connection)
    if cli.out.json:
        cli.out.document(
            [{name: getattr(line, name) for name in (*_FIELDS, *_MORE_FIELDS)} for line in lines]
        )
    elif lines:
        cli.out.show(_build_table(lines, wide=cli.out.columns >= _WIDE))
    if not counts.rollouts:
        cli.out.hint("no rollout is recorded yet: kintsugi import PATH")
    elif counts.undiagnosed:
        cli.out.hint(
            f"{counts.undiagnosed:,} rollouts came after the last round: kintsugi diagnose"
        )
    elif not lines:
        whose = f" of alias {alias!r}" if alias is not None else ""
        cli.out.hint(f"no failure{whose} among {counts.rollouts:,} rollouts forms a pattern")


def _build_table(lines: "list[PatternLine]", wide: bool) -> Any:
    from rich.text import Text

    several = len({(line.alias, line.base) for line in lines}) > 1
    highest = max(line.priority for line in lines)
    rows = []
    for rank, line in enumerate(lines, start=1):
        share = bar(line.priority, highest, cells=10 if wide else 5)
        rows.append(
            [
                rank,
                *([f"{line.alias} ({line.base})"] if several else []),
                line.category if line.pivot == "*" else f"{line.category} at {line.pivot}",
                Text.assemble(f"{line.priority:.3f} ", (share, "cyan")),
                sparkline(line.trend),
                f"{line.failures:,} of {line.attempts:,}",
                f"{line.pass_rate:.0%}",
                Text(line.status, _STYLES.get(line.status, "")),
                *([", ".join(id[:_SHOWN_ID] for id in line.examples[:2])] if wide else []),
            ]
        )
    columns = [
        "#", *(["agent"] if several else []), "pattern", "priority", "trend", "failures",
        "passes", "status", *(["examples"] if wide else []),
    ]  # fmt: skip
    right, whole = ("#", "failures", "passes"), ("priority", "trend", "status", "examples")
    return table(columns, rows, right=right, whole=whole)


def bar(value: float, highest: float, cells: int) -> str:
    """`value` as a bar in eighths of a cell, `highest` filling all of them."""
    eighths = round(cells * 8 * value / highest) if highest > 0 else 0
    full, rest = divmod(max(0, eighths), 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(cells)


def sparkline(values: list[float]) -> str:
    """A series in one line, from zero to its own highest."""
    highest = max(values, default=0.0)
    if highest <= 0:
        return _SPARKS[0] * len(values)
    top = len(_SPARKS) - 1
    return "".join(_SPARKS[round(top * max(0.0, value) / highest)] for value in values)
