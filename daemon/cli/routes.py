"""`kintsugi route`: which policies answer an alias."""

from math import fsum, isclose
from typing import Annotated

import typer

from daemon.cli.command import Cli, command, noun
from daemon.cli.serving import (
    ROUTE_COLUMNS,
    ActorName,
    EngineUrls,
    WhyNot,
    act_of,
    open_publisher,
    parse_share,
    print_live_route,
)

group = noun("route", "Who answers an alias.")

_BASE = "base"

_HINT = "ADAPTER=SHARE"


@command(group)
def show(
    cli: Cli,
    alias: Annotated[
        str | None, typer.Argument(metavar="ALIAS", help="Only this one; default: all.")
    ] = None,
) -> None:
    """List routes: each part of an alias' sessions, and who answers it."""
    from consumers.reads.serving import route_lines

    with cli.app() as app, app.reading() as connection:
        lines = route_lines(connection, alias)
    cli.out.show_rows(
        lines,
        ROUTE_COLUMNS,
        nothing="nothing was decided yet, so the base answers: kintsugi adapters promote NAME",
    )


@command(group, "set")
def set_(
    cli: Cli,
    alias: Annotated[str, typer.Argument(metavar="ALIAS", help="The agent's public name.")],
    shares: Annotated[
        list[str],
        typer.Argument(
            metavar="ADAPTER=SHARE...", help="Who answers which part; `base` is the base."
        ),
    ],
    shadow: Annotated[
        str | None, typer.Option(metavar="ADAPTER", help="Answers as well, unseen by anybody.")
    ] = None,
    base: Annotated[
        str | None, typer.Option(help="The base model, where nobody named tells it.")
    ] = None,
    upstream: EngineUrls = None,
    actor: ActorName = None,
    reason: WhyNot = "",
) -> None:
    """Decide by hand who answers an alias; nothing moves such a route by itself."""
    wanted = _shares(shares)
    with open_publisher(cli, upstream) as publisher:
        act = act_of(actor, reason)
        row = publisher.set_route(alias, wanted, act, base=base, shadow=shadow)
        print_live_route(cli, publisher.app, row)


def _shares(parts: list[str]) -> dict[str | None, float]:
    shares: dict[str | None, float] = {}
    for part in parts:
        name, _, text = part.rpartition("=")
        if not name:
            raise typer.BadParameter(
                f"{part!r} is not ADAPTER=SHARE, such as base=0.5", param_hint=_HINT
            )
        policy = None if name == _BASE else name
        if policy in shares:
            raise typer.BadParameter(f"{name} has two shares; give it one", param_hint=_HINT)
        shares[policy] = parse_share(text, _HINT)
    total = fsum(shares.values())
    if not isclose(total, 1.0, abs_tol=1e-9):
        raise typer.BadParameter(
            f"the shares sum to {total:.12g}, not to 1; correct one of them", param_hint=_HINT
        )
    return shares
