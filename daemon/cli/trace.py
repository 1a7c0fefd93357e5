"""`kintsugi trace`: send the log's events as OpenTelemetry spans."""

import logging
import os
from dataclasses import asdict
from typing import Annotated

import typer

from daemon.cli.command import Cli, command
from daemon.core import systemd

_NICENESS = 19

log = logging.getLogger(__name__)


def register(app: typer.Typer) -> None:
    """Register the command with the command line's application `app`."""
    command(app)(trace)


def trace(
    cli: Cli,
    once: Annotated[bool, typer.Option("--once", help="Send what is folded, then end.")] = False,
    from_start: Annotated[
        bool, typer.Option("--from-start", help="Everything in the log, sent before or not.")
    ] = False,
) -> None:
    """Send what the log tells as spans, over OTLP, until stopped."""
    from daemon.cli.roles import stop_on_signal
    from daemon.metrics.exposition import serve_metrics
    from daemon.metrics.roles import trace_metrics
    from daemon.tracing.exporter import Exporter, open_sender

    with stop_on_signal(cli) as stop, cli.app() as app, open_sender(app) as sender:
        exporter = Exporter(app, sender, app.settings.tracing.content)
        if from_start:
            exporter.rewind()
        if once:
            app.settle()
            events = exporter.catch_up(stop)
            cli.out.document({"events": events, **asdict(exporter.counters.sent)})
            return
        with serve_metrics(app.settings, "trace") as registry:
            registry.register(trace_metrics(exporter.counters))
            # After the start of the metrics thread, which keeps its priority.
            _give_way()
            systemd.notify_ready()
            log.info("sending spans to %s", app.settings.tracing.endpoint)
            exporter.run(stop)
            log.info("stopped: %s", exporter.counters)


def _give_way() -> None:
    """Lower this process's priority: if CPU time is short, spans can wait."""
    try:
        # Not SCHED_IDLE: on a busy machine a read of the tables might take minutes, and SQLite's
        # write-ahead log would grow meanwhile.
        os.setpriority(os.PRIO_PROCESS, 0, _NICENESS)
    except PermissionError:
        # A service manager may forbid it and set the priority itself, as ops/systemd does.
        log.info("the priority of this process may not be lowered; it stays as it was given")
