"""Shared parts of commands about adapters and routes: operator, engines and output. A command that
changes a route prints it once the live gateways follow (`print_live_route`)."""

import getpass
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from math import nan
from typing import TYPE_CHECKING, Annotated, Final

import typer

from daemon.cli.command import Cli
from daemon.cli.output import Columns

if TYPE_CHECKING:
    from collections.abc import Mapping

    from consumers.reads.serving import RouteLine, RouteRow
    from daemon.core.app import App
    from daemon.core.decision_log import Act
    from daemon.serving.fleet import Fleet
    from daemon.serving.publisher import Publisher

_FOLLOW_SECONDS: Final = 5.0
"""Seconds that a command waits for gateways to apply a route."""
_LOOK_SECONDS: Final = 0.05

EngineUrls = Annotated[
    list[str] | None, typer.Option("--upstream", metavar="URL", help="An engine; may be repeated.")
]
ActorName = Annotated[
    str | None, typer.Option("--actor", metavar="NAME", help="Who asks; default: who you are.")
]
WhyNot = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, for the record.")]


def act_of(actor: str | None, reason: str) -> "Act":
    """Return an operator's act (default: the user), with texts cut to 128 and 1,000 characters."""
    from daemon.core.decision_log import Act

    return Act((actor or getpass.getuser())[:128], reason[:1000])


def parse_share(text: str, hint: str) -> float:
    """Parse a share of the sessions. Raise BadParameter for a share that no policy can have."""
    from producers.gateway.routing.routes import SMALLEST_SHARE

    try:
        share = float(text)
    except ValueError:
        share = nan
    if share != 1 and not SMALLEST_SHARE <= share <= 1 - SMALLEST_SHARE:
        raise typer.BadParameter(
            f"{text!r} is no share of the sessions; give a number from {SMALLEST_SHARE:f}, one "
            f"session in a million, to {1 - SMALLEST_SHARE:f}, or 1",
            param_hint=hint,
        )
    return share


def locate_files(cli: Cli, path: str | None) -> str | None:
    """Return the local folder of an adapter's recorded path; None and "" stay."""
    return str(cli.settings.adapter_paths.locate(path)) if path else path


@contextmanager
def open_publisher(cli: Cli, urls: list[str] | None = None) -> "Iterator[Publisher]":
    """Open the publisher of the home's routes, over its engines (`open_engines`)."""
    from daemon.serving.publisher import Publisher

    with cli.app() as app, open_engines(app, urls) as fleet:
        yield Publisher(app, fleet)


def open_engines(app: "App", urls: list[str] | None) -> "Fleet":
    """Return the engines at `urls`, else those of the settings, else that of `kintsugi up`."""
    from daemon.core.own_engine import OwnEngine
    from daemon.serving.fleet import EngineOptions, open_fleet

    if urls or app.settings.upstreams:
        return open_fleet(app.settings, urls or ())
    own = OwnEngine.read(app.home)
    fleet = open_fleet(app.settings, [own.url] if own.url else (), own.trouble)
    for engine in fleet.engines.values():
        engine.started = EngineOptions(app.settings.engine_checkpoint)
    return fleet


def print_live_route(cli: Cli, app: "App", row: "RouteRow") -> None:
    """Print a route once the live gateways have applied it, or say how many have not."""
    from consumers.reads.serving import route_lines

    live, behind = _wait_for_gateways(app, row.offset)
    with app.reading() as connection:
        lines = route_lines(connection, row.alias)
    if cli.out.json:
        gateways = {"live": live, "behind": behind}
        cli.out.document({"route": [asdict(line) for line in lines], "gateways": gateways})
    else:
        cli.out.show(ROUTE_COLUMNS.build_table(lines))
    if behind:
        cli.out.hint(
            f"{behind} of {live} live gateways have not followed within {_FOLLOW_SECONDS:g} s; "
            "they will, and nothing is unloaded before"
        )


def _wait_for_gateways(app: "App", offset: int) -> tuple[int, int]:
    """Return the number of live gateways, and of those that have not applied the event in time."""
    from consumers.reads.gateways import read_live_gateways

    until = time.monotonic() + _FOLLOW_SECONDS
    while True:
        with app.reading() as connection:
            live = read_live_gateways(connection, app.settings.serving.gateway_timeout_seconds)
        behind = sum(gateway.report.position <= offset for gateway in live)
        if not behind or time.monotonic() >= until:
            return len(live), behind
        time.sleep(_LOOK_SECONDS)


def _name_policy(line: "RouteLine") -> str:
    held_out = " (held out)" if line.holdout else ""
    return f"{line.adapter or line.base}{held_out}{describe_members(line.members, line.base)}"


def describe_members(members: "Mapping[str, str | None] | None", base: str) -> str:
    """Return a text with a policy's members, to follow its name; "" without members."""
    if members is None:
        return ""
    return f" ({', '.join(f'{member}: {name or base}' for member, name in members.items())})"


def _format_share(share: float) -> str:
    return f"{share:.1%}" if 0.001 <= share <= 0.999 or share == 1 else f"{share:.4%}"


ROUTE_COLUMNS: Final = Columns(
    "alias",
    ("who answers", _name_policy),
    ("share", lambda line: "shadow" if line.shadow else _format_share(line.share)),
    ("by", "why"),
    "since",
    "reason",
    right=("share",),
    whole=("alias", "who answers"),
)
