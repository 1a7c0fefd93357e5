"""`kintsugi whatif`: which cycles would have begun with other settings."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from daemon.cli.command import Cli, command
from daemon.cli.output import Columns, plain_line
from daemon.cli.replay import From, To

if TYPE_CHECKING:
    from daemon.config.settings import Scheduler
    from daemon.replay.cycle_history import PastCycle
    from daemon.replay.whatif import WhatIfResult
    from events.archive.archive import Cut
    from events.log import EventLog

_LOOKS: Final = 1_000
"""Most evaluations of the scheduler's rule over the log."""


def register(app: typer.Typer) -> None:
    """Register the command with the command line's application `app`."""
    command(app)(whatif)


def whatif(
    cli: Cli,
    changed: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting scheduler.*; may be repeated."),
    ] = None,
    start: From = None,
    to: To = None,
    every: Annotated[
        float | None,
        typer.Option("--every", min=0, metavar="SECONDS", help="Between two looks, at least."),
    ] = None,
) -> None:
    """When cycles would have begun with other settings, and on what, beside those that did."""
    from daemon.core.task_kinds import list_agent_kinds
    from daemon.replay import whatif as asking
    from daemon.replay.cycle_history import read_past_cycles
    from daemon.replay.log_range import between
    from daemon.replay.replay import override_scheduler, scratch

    scheduler = override_scheduler(cli.settings.scheduler, changed or [])
    with cli.app() as app, tempfile.TemporaryDirectory(prefix="kintsugi-whatif-") as folder:
        log = app.readable_log
        begin, end = between(log, start, to)
        with app.reading() as connection:
            past = read_past_cycles(connection)
        environments = {
            item.alias: item.environment for item in app.settings.agents if item.environment
        }
        seconds = _seconds_between(log, end, scheduler) if every is None else every
        with (
            scratch(Path(folder) / "tables.db") as engine,
            cli.out.progress("Asking", sum(end.values())) as advance,
        ):
            result = asking.whatif(
                log, engine, past, environments, scheduler,
                kinds=list_agent_kinds(app.settings),
                start=begin, end=end, every_ms=int(seconds * 1000), advance=advance,
            )  # fmt: skip
    did = [item for item in past if item.within(begin, end)]
    _show_whatif(cli, changed or [], seconds, did, result)


def _seconds_between(log: "EventLog", end: "Cut", scheduler: "Scheduler") -> float:
    """Return the seconds between evaluations: the leader's, or more to make at most `_LOOKS`."""
    from events.archive.views import find_time_span

    first, last = find_time_span(log, end)
    return max(scheduler.tick_seconds, (last - first) / 1000 / _LOOKS)


_PAST_FIELDS: Final = Columns(
    ("alias", "row.alias"), ("base", "row.base"), ("number", "row.number"), ("at", "row.started"),
    ("trigger", "row.trigger"), ("reason", "row.reason"), "rollouts", ("position", "row.position"),
    ("cycle", "row.cycle"), ("outcome", "row.outcome"),
)  # fmt: skip

_COLUMNS: Final = Columns(
    "at", "", "alias", ("cycle", "number"), "trigger", "rollouts", "reason", right=("rollouts",)
)


def _show_whatif(
    cli: Cli, changed: list[str], seconds: float, past: "list[PastCycle]", result: "WhatIfResult"
) -> None:
    from events.envelope import timestamp

    would_fields = Columns(
        "alias", "base", "number", ("at", lambda cycle: timestamp(cycle.at)), "trigger", "reason",
        "rollouts", "failures", "priority", "position",
    )  # fmt: skip
    would = [would_fields.document(cycle) for cycle in result.cycles]
    did = [_PAST_FIELDS.document(cycle) for cycle in past]
    if cli.out.json:
        waiting = {alias: list(missing) for alias, missing in result.waiting.items()}
        cli.out.document(
            {
                "set": changed, "looks": result.looks, "every_seconds": round(seconds, 3),
                "would": would, "did": did, "waiting": waiting,
            }
        )  # fmt: skip
        return
    rows = [{**cycle, "": "would"} for cycle in would] + [{**cycle, "": "did"} for cycle in did]
    rows.sort(key=lambda row: (str(row["at"]), row[""]))
    cli.out.show(_COLUMNS.build_table(rows) if rows else "no cycle did begin, and none would have")
    for alias, missing in result.waiting.items():
        for sentence in missing:
            cli.out.show(plain_line(f"at the end {alias} would wait for: {sentence}"))
