"""`kintsugi trace`: sends what happened, as spans."""

import logging
import os
from dataclasses import asdict
from typing import Annotated

import typer

from daemon import notifying
from daemon.cli.command import Cli, command

_NICENESS = 10

log = logging.getLogger(__name__)


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app)(trace)


def trace(
    cli: Cli,
    once: Annotated[bool, typer.Option("--once", help="Send what is folded, then end.")] = False,
    from_start: Annotated[
        bool, typer.Option("--from-start", help="Everything in the log, sent before or not.")
    ] = False,
) -> None:
    """Send what the log tells as spans, over OTLP, until stopped."""
    from daemon.cli.roles import until_stopped
    from daemon.metrics.exposition import exposed
    from daemon.metrics.roles import tracing
    from daemon.tracing.exporter import Exporter, open_sender

    with until_stopped(cli) as stop, cli.app() as app, open_sender(app) as sender:
        exporter = Exporter(app, sender, app.settings.tracing.content)
        if from_start:
            exporter.rewind()
        if once:
            app.settle()
            events = exporter.catch_up(stop)
            cli.out.document({"events": events, **asdict(exporter.counters.sent)})
            return
        # Spans are in no hurry: where cores are short, who serves goes first.
        os.nice(_NICENESS)
        with exposed(app.settings, "trace") as registry:
            registry.register(tracing(exporter.counters))
            notifying.ready()
            log.info("sending spans to %s", app.settings.tracing.endpoint)
            exporter.run(stop)
            log.info("stopped: %s", exporter.counters)
