"""`kintsugi patterns`: an agent's failure patterns, ranked; an operator may pin or mute one."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from daemon.cli.command import Cli, command, default_command, noun
from daemon.cli.output import table
from daemon.cli.serving import ActorName, WhyNot, act_of

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from consumers.reads.rollouts import PatternLine
    from daemon.core.app import App
    from daemon.core.decision_log import Act

group = noun("patterns", "Failure patterns, ranked; pin or mute one.")

PatternName = Annotated[
    str, typer.Argument(metavar="PATTERN", help="CATEGORY|TOOL, or as kintsugi patterns shows it.")
]
OfAgent = Annotated[
    str | None, typer.Option("--alias", help="Whose pattern; where several agents have it.")
]

_WIDE = 110
"""Terminal width from which there is room for examples and longer bars."""

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_SPARKS = "▁▂▃▄▅▆▇█"

_FIELDS = (
    "alias", "base", "pattern", "category", "pivot", "failures", "attempts", "pass_rate",
    "priority", "status", "examples",
)  # fmt: skip
"""Fields of the JSON: the documented ones first, then `_MORE_FIELDS`."""

_MORE_FIELDS = ("passes", "round", "trend", "operator", "reason")

_SHOWN_ID = 13
"""Characters of an example's id; `rollouts show` needs no more."""

_STYLES = {
    "REGRESSED": "red", "PERSISTENT": "red", "NEW": "yellow", "RESOLVED": "green",
    "pinned": "bold", "muted": "dim",
}  # fmt: skip


def _describe_unusable(app: "App", connection: "Connection", alias: str | None) -> list[str]:
    """Return a sentence for each agent that has failures which no task can follow."""
    if not any(agent.environment for agent in app.settings.agents):
        return []
    from daemon.cycle.outlook import describe_unusable, read_outlooks
    from events.envelope import utc_now

    return [
        f"{outlook.alias}: no pattern counts {describe_unusable(outlook.unusable)}"
        for outlook in read_outlooks(connection, app.settings, utc_now())
        if outlook.unusable and alias in (None, outlook.alias)
    ]


@default_command(group)
def patterns(
    cli: Cli, alias: Annotated[str | None, typer.Option(help="Only this agent.")] = None
) -> None:
    """Failure patterns as of the last round, highest priority first."""
    from consumers.reads.rollouts import count_backlog, pattern_lines

    with cli.app() as app, app.reading() as connection:
        lines = pattern_lines(connection, alias)
        counts = count_backlog(connection)
        unusable = _describe_unusable(app, connection, alias)
    if cli.out.json:
        cli.out.document([_build_document(line) for line in lines])
    elif lines:
        cli.out.show(_build_table(lines, wide=cli.out.columns >= _WIDE))
    for line in unusable:
        cli.out.hint(line)
    if not counts.rollouts:
        cli.out.hint("no rollout is recorded yet: kintsugi import PATH")
    elif counts.undiagnosed:
        cli.out.hint(
            f"{counts.undiagnosed:,} rollouts came after the last round: kintsugi diagnose"
        )
    elif not lines:
        whose = f" of alias {alias!r}" if alias is not None else ""
        cli.out.hint(f"no failure{whose} among {counts.rollouts:,} rollouts forms a pattern")


@command(group)
def pin(
    cli: Cli, pattern: PatternName, reason: WhyNot, alias: OfAgent = None, actor: ActorName = None
) -> None:
    """Put a pattern first: its priority is at least the highest of its agent."""
    from consumers.folds.overrides import PIN

    _override(cli, PIN, pattern, alias, act_of(actor, _check_reason(reason)))


@command(group)
def mute(
    cli: Cli, pattern: PatternName, reason: WhyNot, alias: OfAgent = None, actor: ActorName = None
) -> None:
    """Give a pattern no priority: no task is written for it."""
    from consumers.folds.overrides import MUTE

    _override(cli, MUTE, pattern, alias, act_of(actor, _check_reason(reason)))


@command(group)
def release(
    cli: Cli,
    pattern: PatternName,
    alias: OfAgent = None,
    reason: WhyNot = "",
    actor: ActorName = None,
) -> None:
    """Leave a pattern to its numbers again."""
    from consumers.folds.overrides import RELEASE

    _override(cli, RELEASE, pattern, alias, act_of(actor, reason))


def _check_reason(reason: str) -> str:
    if not reason.strip():
        raise typer.BadParameter("say why, for the record", param_hint="--reason")
    return reason


def _override(cli: Cli, action: str, pattern: str, alias: str | None, act: "Act") -> None:
    from consumers.reads.rollouts import pattern_lines
    from daemon.core.decision_log import Decisions

    with cli.app() as app:
        app.settle()
        with app.reading() as connection:
            lines = pattern_lines(connection, alias)
        pattern = _find_name(lines, pattern)
        whose = _find_agent(lines, pattern, alias)
        acted = Decisions(app).act(act, action, {"alias": whose, "pattern": pattern})
        with app.reading() as connection:
            lines = [row for row in pattern_lines(connection, whose) if row.pattern == pattern]
    if cli.out.json:
        cli.out.document({"acted": acted, "patterns": [_build_document(line) for line in lines]})
        return
    for line in lines:
        state = line.operator or "left to its numbers"
        cli.out.show(
            f"{pattern} of {line.alias} on {line.base} is {state}, priority {line.priority:.3f}"
        )


def _find_name(lines: "list[PatternLine]", shown: str) -> str:
    return next((line.pattern for line in lines if _describe_pattern(line) == shown), shown)


def _find_agent(lines: "list[PatternLine]", pattern: str, alias: str | None) -> str:
    agents = sorted({line.alias for line in lines if line.pattern == pattern})
    if len(agents) == 1:
        return agents[0]
    if agents:
        raise typer.BadParameter(
            f"{', '.join(agents)} have {pattern}; name one of them", param_hint="--alias"
        )
    names = ", ".join(sorted({line.pattern for line in lines})) or "none"
    whose = "" if alias is None else f" of alias {alias!r}"
    raise typer.BadParameter(
        f"no pattern{whose} is called {pattern!r}; there are: {names}", param_hint="PATTERN"
    )


def _build_document(line: "PatternLine") -> dict[str, Any]:
    return {name: getattr(line, name) for name in (*_FIELDS, *_MORE_FIELDS)}


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
                _describe_pattern(line),
                Text.assemble(f"{line.priority:.3f} ", (share, "cyan")),
                sparkline(line.trend),
                f"{line.failures:,} of {line.attempts:,}",
                f"{line.pass_rate:.0%}",
                Text(line.operator or line.status, _STYLES.get(line.operator or line.status, "")),
                *([", ".join(id[:_SHOWN_ID] for id in line.examples[:2])] if wide else []),
            ]
        )
    columns = [
        "#", *(["agent"] if several else []), "pattern", "priority", "trend", "failures",
        "passes", "status", *(["examples"] if wide else []),
    ]  # fmt: skip
    right, whole = ("#", "failures", "passes"), ("priority", "trend", "status", "examples")
    return table(columns, rows, right=right, whole=whole)


def _describe_pattern(line: "PatternLine") -> str:
    return line.category if line.pivot == "*" else f"{line.category} at {line.pivot}"


def bar(value: float, highest: float, cells: int) -> str:
    """Return `value` as a bar in eighths of a cell; `highest` fills all `cells`."""
    eighths = round(cells * 8 * value / highest) if highest > 0 else 0
    full, rest = divmod(max(0, eighths), 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(cells)


def sparkline(values: list[float]) -> str:
    """Return the values as a line of small bars, from zero to the highest value."""
    highest = max(values, default=0.0)
    if highest <= 0:
        return _SPARKS[0] * len(values)
    top = len(_SPARKS) - 1
    return "".join(_SPARKS[round(top * max(0.0, value) / highest)] for value in values)
