"""`kintsugi status`: where everything stands."""

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import typer

from daemon.cli.command import DONE, UNAVAILABLE, Cli, command
from daemon.cli.output import facts

if TYPE_CHECKING:
    from consumers.learning import CycleRow
    from consumers.reads import RoundLine
    from daemon.app import App
    from daemon.health import Folded
    from daemon.outlook import Outlook

_GONE: Final = "collected"
"""State of adapters that nobody wants to see any more."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app)(status)


def status(cli: Cli) -> int:
    """Where everything stands: log, fold, rounds, cycles, and what the next one waits for."""
    with cli.app() as app:
        document = _document(app)
    if cli.out.json:
        cli.out.document(document)
    else:
        cli.out.show(_facts(document))
    if document["log"]["error"] is not None:
        cli.out.warn(document["log"]["error"])
        return UNAVAILABLE
    if not document["rollouts"]:
        cli.out.hint("no rollout is recorded yet: kintsugi import PATH")
    return DONE


def _document(app: "App") -> dict[str, Any]:
    from consumers.reads import dead_letters, last_round, waiting
    from consumers.serving import adapter_lines, route_lines
    from daemon.health import folded
    from daemon.outlook import newest, outlooks, step_of
    from events.envelope import utc_now

    with app.reading() as connection:
        counts = waiting(connection)
        letters = dead_letters(connection)
        line = last_round(connection)
        routes, adapters = route_lines(connection), adapter_lines(connection)
        reached = folded(connection)
        cycle = newest(connection)
        step = None if cycle is None else step_of(connection, cycle)
        expected = outlooks(connection, app.settings, utc_now())
    return {
        **_log(app, reached),
        "rollouts": counts.rollouts,
        "undiagnosed": counts.undiagnosed,
        "unjudged": counts.unjudged,
        "dead_letters": len(letters),
        "cycle": {**_round(line), **_cycle(cycle, step)},
        "next_cycle": _next_cycle(expected),
        "routes": [asdict(route) for route in routes],
        "adapters": [asdict(one) for one in adapters if one.state != _GONE],
        "home": str(app.settings.home),
    }


def _log(app: "App", reached: "Folded") -> dict[str, Any]:
    """Streams, lag and halts; where the log cannot be reached, null and why."""
    from daemon.health import halts, lag, streams
    from events.errors import LogError

    where = app.settings.kafka_bootstrap_servers or str(app.settings.home / "log.db")
    try:
        log = app.readable_log
        halted = halts(log, reached)
        return {
            "streams": streams(app),
            "lag": lag(log, reached),
            "log": {"at": where, "error": None},
            "projection": {
                "state": "halted" if halted else "live",
                "halted": halted,
                "gaps": reached.gaps,
            },
        }
    except LogError as error:
        return {
            "streams": None,
            "lag": None,
            "log": {"at": where, "error": str(error)},
            "projection": {"state": "unknown", "halted": [], "gaps": reached.gaps},
        }


def _round(line: "RoundLine | None") -> dict[str, Any]:
    """The last round of the training history; `round` is null before the first."""
    names = (
        "round", "trigger", "rollouts", "judged", "unjudged", "failed", "patterns", "other", "time",
    )  # fmt: skip
    return {name: getattr(line, name) if line else None for name in names}


def _cycle(row: "CycleRow | None", step: str | None) -> dict[str, Any]:
    """The open cycle, else the last; `cycle` is null before the first."""
    names = (
        "cycle", "alias", "base", "number", "reason", "job", "outcome", "ended_because", "started",
        "ended",
    )  # fmt: skip
    return {
        **{name: getattr(row, name) if row else None for name in names},
        "due_by": row.trigger if row else None,
        "step": step,
    }


def _next_cycle(expected: "list[Outlook]") -> dict[str, Any]:
    """Of all agents together, and of each."""
    several = len(expected) > 1
    missing = [
        f"{one.alias}: {sentence}" if several else sentence
        for one in expected
        for sentence in one.missing
    ]
    return {
        "due": any(one.due for one in expected),
        "missing": missing if expected else ["rollouts: none is recorded"],
        "agents": [asdict(one) for one in expected],
    }


def _facts(document: dict[str, Any]) -> Any:
    cycle = document["cycle"]
    values: dict[str, Any] = {"home": document["home"], "log": document["log"]["at"]}
    for name, of in (document["streams"] or {}).items():
        values[f"stream {name}"] = (
            f"{of['events']:,} events, {of['bytes']:,} bytes, lag {document['lag'][name]:,}"
        )
    fold = document["projection"]
    values["fold"] = "; ".join([fold["state"], *fold["halted"], *fold["gaps"]])
    values["rollouts"] = (
        f"{document['rollouts']:,}, unjudged {document['unjudged']:,}, not in a round yet "
        f"{document['undiagnosed']:,}"
    )
    values["dead letters"] = f"{document['dead_letters']:,}"
    values["last round"] = (
        "none"
        if cycle["round"] is None
        else f"{cycle['round']} by {cycle['trigger']}: {cycle['failed']:,} failures, "
        f"{cycle['patterns']:,} patterns, {cycle['other']:,} unexplained"
    )
    for route in document["routes"]:
        part = "shadow" if route["shadow"] else f"{route['share']:.0%}"
        who = f"{route['adapter'] or route['base']}, {part}"
        values[f"route {route['alias']}"] = "; ".join(
            filter(None, [values.get(f"route {route['alias']}"), who])
        )
    states = Counter(one["state"] for one in document["adapters"])
    values["adapters"] = ", ".join(f"{n:,} {state}" for state, n in states.items()) or "none"
    values |= _loop(document)
    return facts(values)


def _loop(document: dict[str, Any]) -> dict[str, str]:
    """The cycle that runs or ran last, and what the next one of each agent waits for."""
    cycle = document["cycle"]
    values = {"cycle": "none yet"}
    if cycle["cycle"] is not None:
        came = (
            f"needs {cycle['step']} next"
            if cycle["outcome"] is None
            else f"{cycle['outcome']}: {cycle['ended_because']}"
        )
        began = f"{cycle['number']} of {cycle['alias']} by {cycle['due_by']} ({cycle['reason']})"
        values["cycle"] = f"{began}, {came}"
    expected = document["next_cycle"]
    for one in expected["agents"]:
        missing = "; ".join(one["missing"])
        values[f"next cycle of {one['alias']}"] = "due" if one["due"] else f"not due; {missing}"
    if not expected["agents"]:
        values["next cycle"] = f"not due; missing {'; '.join(expected['missing'])}"
    return values
