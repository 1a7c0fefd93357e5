"""`kintsugi whatif`: when cycles would have begun with other settings."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from daemon.cli.command import Cli, command
from daemon.cli.output import plain_line, table
from daemon.cli.replay import From, To

if TYPE_CHECKING:
    from daemon.config.settings import Scheduler
    from daemon.replay.cycle_history import PastCycle
    from daemon.replay.whatif import WhatIfResult
    from events.archive.archive import Cut
    from events.log import EventLog

_LOOKS: Final = 1_000
"""At most, by default."""


def register(app: typer.Typer) -> None:
    """Add the command."""
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
    """Return the seconds between two looks: those of the leader, or more where the log is so long
    that there would be more than `_LOOKS`."""
    from events.archive.views import find_time_span

    first, last = find_time_span(log, end)
    return max(scheduler.tick_seconds, (last - first) / 1000 / _LOOKS)


def _show_whatif(
    cli: Cli, changed: list[str], seconds: float, past: "list[PastCycle]", result: "WhatIfResult"
) -> None:
    from events.envelope import timestamp

    would: list[dict[str, Any]] = [
        {
            "alias": cycle.alias, "base": cycle.base, "number": cycle.number,
            "at": timestamp(cycle.at),
            "trigger": cycle.trigger, "reason": cycle.reason, "rollouts": cycle.rollouts,
            "failures": cycle.failures, "priority": cycle.priority, "position": cycle.position,
        }
        for cycle in result.cycles
    ]  # fmt: skip
    did: list[dict[str, Any]] = [
        {
            "alias": cycle.row.alias, "base": cycle.row.base, "number": cycle.row.number,
            "at": cycle.row.started, "trigger": cycle.row.trigger, "reason": cycle.row.reason,
            "rollouts": cycle.rollouts, "position": cycle.row.position, "cycle": cycle.row.cycle,
            "outcome": cycle.row.outcome,
        }
        for cycle in past
    ]  # fmt: skip
    if cli.out.json:
        waiting = {alias: list(missing) for alias, missing in result.waiting.items()}
        cli.out.document(
            {
                "set": changed, "looks": result.looks, "every_seconds": round(seconds, 3),
                "would": would, "did": did, "waiting": waiting,
            }
        )  # fmt: skip
        return
    rows = sorted(
        [
            [cycle["at"], what, cycle["alias"], cycle["number"], cycle["trigger"],
            cycle["rollouts"],
             cycle["reason"]]
            for what, cycles in (("would", would), ("did", did))
            for cycle in cycles
        ],
        key=lambda row: (str(row[0]), str(row[1])),
    )  # fmt: skip
    cli.out.show(
        table(["at", "", "alias", "cycle", "trigger", "rollouts", "reason"], rows, ("rollouts",))
        if rows
        else "no cycle did begin, and none would have"
    )
    for alias, missing in result.waiting.items():
        for sentence in missing:
            cli.out.show(plain_line(f"at the end {alias} would wait for: {sentence}"))
