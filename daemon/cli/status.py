"""`kintsugi status`: where everything stands."""

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import typer

from daemon.cli.command import DONE, UNAVAILABLE, Cli, command
from daemon.cli.output import facts

if TYPE_CHECKING:
    from consumers.reads import RoundLine, Waiting
    from daemon.app import App
    from daemon.health import Folded

_MISSING = ("a scheduler: this version records and diagnoses, and runs no cycle",)
"""What a cycle waits for, beside rollouts."""

_GONE: Final = "collected"
"""State of adapters that nobody wants to see any more."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app)(status)


def status(cli: Cli) -> int:
    """Where everything stands: log, fold, rounds, and what the next cycle waits for."""
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

    with app.reading() as connection:
        counts = waiting(connection)
        letters = dead_letters(connection)
        line = last_round(connection)
        routes, adapters = route_lines(connection), adapter_lines(connection)
        reached = folded(connection)
    return {
        **_log(app, reached),
        "rollouts": counts.rollouts,
        "undiagnosed": counts.undiagnosed,
        "unjudged": counts.unjudged,
        "dead_letters": len(letters),
        "cycle": _cycle(line),
        "next_cycle": {"due": False, "missing": _missing(counts)},
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


def _cycle(line: "RoundLine | None") -> dict[str, Any]:
    """The last round of the training history; `round` is null before the first."""
    names = (
        "round", "trigger", "rollouts", "judged", "unjudged", "failed", "patterns", "other", "time",
    )  # fmt: skip
    return {name: getattr(line, name) if line else None for name in names}


def _missing(counts: "Waiting") -> list[str]:
    rollouts = [] if counts.rollouts else ["rollouts: none is recorded"]
    undiagnosed = (
        [f"a round: {counts.undiagnosed:,} rollouts came after the last one (kintsugi diagnose)"]
        if counts.undiagnosed
        else []
    )
    return [*rollouts, *undiagnosed, *_MISSING]


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
    values["next cycle"] = "not due; missing " + "; ".join(document["next_cycle"]["missing"])
    return facts(values)
