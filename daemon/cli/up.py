"""`kintsugi up`: every role in one command."""

import typer

from daemon.cli.command import Cli, command
from daemon.cli.roles import until_stopped


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app)(up)


def up(cli: Cli) -> None:
    """Run every role of this home, each in a process of its own, until stopped."""
    from daemon.up import Supervisor, gateway_of, programs

    with until_stopped(cli) as stop:
        roles = programs(cli.settings, cli.home)
        # Made and migrated here once: not by five processes at the same time. Closed again before
        # they run, for a supervisor that lives for weeks needs neither database nor broker.
        with cli.app() as app:
            app.settle()
        cli.out.hint(f"where it stands, once it is up: {gateway_of(cli.settings)}/status")
        Supervisor(roles).run(stop)
