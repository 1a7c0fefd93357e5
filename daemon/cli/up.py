"""`kintsugi up`: run every role with one command."""

import logging

import typer

from daemon.cli.command import Cli, command
from daemon.cli.roles import stop_on_signal

log = logging.getLogger(__name__)


def register(app: typer.Typer) -> None:
    """Register the command with the command line's application `app`."""
    command(app)(up)


def up(cli: Cli) -> None:
    """Run every role of this home, each in a process of its own, until stopped."""
    from daemon.core.start_mark import mint
    from daemon.roles.startup import prepare
    from daemon.roles.supervisor import Supervisor, alone, engine_of, gateway_of, programs

    roles = programs(cli.settings, cli.home)
    with cli.app() as app:
        home = app.home
    with stop_on_signal(cli) as stop, alone(home, engine_of(cli.settings)):
        # The application is closed before they run: the supervisor lives for weeks and needs
        # neither database nor broker.
        if away := prepare(cli.settings, stop):
            log.warning(
                "starting without what is away: %s; the gateway answers and records, the other "
                "roles wait for it",
                "; ".join(away),
            )
        cli.out.hint(f"where it stands, once it is up: {gateway_of(cli.settings)}/status")
        Supervisor(roles, mint(home)).run(stop)
