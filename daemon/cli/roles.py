"""`kintsugi consume`, `ship`, `schedule` and `work`, which run until SIGTERM or SIGINT. Then they
finish the present batch and exit with code 0."""

import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from daemon.cli.command import PARTLY, Cli, command
from daemon.cli.serving import EngineUrls
from daemon.core import systemd

if TYPE_CHECKING:
    from daemon.config.settings import Settings
    from daemon.core.leadership import Leadership
    from daemon.cycle.leader import Leader
    from daemon.metrics.roles import LeaderRounds
    from daemon.roles.worker import RoundResult, Worker

T = TypeVar("T")

_FIRST_PAUSE_SECONDS = 0.5
_LONGEST_PAUSE_SECONDS = 30.0
_WORK_SECONDS = 2.0

log = logging.getLogger(__name__)


def register(app: typer.Typer) -> None:
    """Register the commands with the command line's application `app`."""
    command(app)(consume)
    command(app)(ship)
    command(app)(schedule)
    command(app)(work)


def consume(cli: Cli) -> None:
    """Fold the log into the tables until stopped; exit 4 when the fold halts."""
    from daemon.core.app import FoldHaltError
    from daemon.metrics.exposition import serve_metrics
    from daemon.metrics.roles import fold_metrics
    from events.errors import KintsugiError
    from events.privacy.database_url import render_database_url

    with (
        stop_on_signal(cli) as stop,
        cli.app() as app,
        serve_metrics(app.settings, "consume") as registry,
    ):
        runner = _patiently(app.runner, stop)
        if runner is None:
            return
        registry.register(fold_metrics(runner.counters))
        systemd.notify_ready()
        log.info("folding into %s", render_database_url(app.database.url))
        try:
            runner.run(stop)
        except KintsugiError as error:
            # The runner has already waited for errors that may pass.
            raise FoldHaltError(f"the fold halted: {error}") from error
        log.info("stopped: %s", runner.counters)


def ship(cli: Cli) -> None:
    """Copy this home's own log to Kafka until stopped; exit 4 where it was restored from before."""
    from daemon.config.settings import ConfigurationError

    if not cli.settings.kafka_bootstrap_servers:
        raise ConfigurationError(
            "setting kafka_bootstrap_servers is empty, so there is nowhere to ship to; set it"
        )
    from consumers.database import DatabaseError
    from daemon.core.spool_check import SpoolBehindTables, check_spool
    from daemon.core.spool_reporter import report_in_background
    from daemon.metrics.exposition import serve_metrics
    from daemon.metrics.roles import ship_metrics
    from producers.gateway.metrics.gauges import SpoolFigures
    from producers.shipper import Shipper

    troubles: list[SpoolBehindTables] = []

    def on_restore(error: SpoolBehindTables) -> None:
        troubles.append(error)
        stop.set()

    with (
        stop_on_signal(cli) as stop,
        cli.app() as app,
        serve_metrics(app.settings, "ship") as registry,
        report_in_background(app, on_restore),
    ):
        kafka = _patiently(lambda: app.kafka, stop)
        if kafka is not None:
            # If the database is away now, the spool is checked again when it is back.
            with suppress(DatabaseError):
                check_spool(app.reading, app.spool)
            log.info("shipping %s to %s", app.spool.path, app.settings.kafka_bootstrap_servers)
            shipper = Shipper(app.spool, kafka.sender)
            registry.register(ship_metrics(shipper.counters))
            registry.register(SpoolFigures(app.spool, ships=True))
            systemd.notify_ready()
            shipper.run(stop)
            log.info("stopped: %s records shipped", shipper.counters.records)
    if troubles:
        raise troubles[0]


def schedule(
    cli: Cli,
    once: Annotated[
        bool, typer.Option("--once", help="One look at every agent, then end.")
    ] = False,
    upstream: EngineUrls = None,
) -> int | None:
    """Lead: begin cycles when they are due, and take them on, until stopped."""
    from daemon.config.upstreams import key_of
    from daemon.core.leadership import Leadership
    from daemon.cycle.leader import Leader
    from daemon.cycle.methods import bind_teacher
    from daemon.cycle.planner import CyclePlanner
    from daemon.jobs.user_endpoints import export_key
    from daemon.proposer.probe import Engine

    with stop_on_signal(cli) as stop, cli.app() as app:
        export_key(app.settings)
        if _patiently(app.settle, stop) is None:
            return None
        leadership = Leadership(app)
        urls = upstream or [item.url for item in app.settings.upstreams]
        engines = [Engine(url.rstrip("/"), key_of(app.settings, url.rstrip("/"))) for url in urls]
        teacher = bind_teacher(upstream or ())
        planner = CyclePlanner(app, engines, stop.is_set, teach_chooser=teacher)
        leader = Leader(app, planner, leadership)
        try:
            if once:
                result = leader.tick()
                cli.out.document(asdict(result))
                return PARTLY if result.failed else None
            _lead(app.settings, leader, leadership, stop)
        finally:
            _resign(leadership)
    return None


def _resign(leadership: "Leadership") -> None:
    from consumers.database import DatabaseUnavailable

    try:
        leadership.resign()
    except DatabaseUnavailable as error:
        log.warning("the lease was not given back, and runs out by itself: %s", error)


def _lead(
    settings: "Settings", leader: "Leader", leadership: "Leadership", stop: threading.Event
) -> None:
    from daemon.cli.methods import build_loop_metrics
    from daemon.metrics.exposition import serve_metrics
    from daemon.metrics.log import log as log_figures
    from daemon.metrics.loop import loop as loop_figures
    from daemon.metrics.roles import LeaderRounds

    with (
        loop_figures(settings, build_loop_metrics()) as of_loop,
        log_figures(settings) as of_log,
        serve_metrics(settings, "schedule") as registry,
    ):
        registry.register(of_loop)
        registry.register(of_log)
        rounds = LeaderRounds(registry, leadership)
        systemd.notify_ready()
        repeat(lambda: _look(leader, rounds), settings.scheduler.tick_seconds, stop)


def repeat(look: Callable[[], None], seconds: float, stop: threading.Event) -> None:
    """Call `look` at once and then every `seconds`, until stopped. One call makes up for all missed
    ones. The clock is monotonic, so that setting the system clock back delays no call."""
    due = time.monotonic()
    while not stop.is_set():
        if stop.wait(max(0.0, due - time.monotonic())):
            return
        look()
        due = max(due + seconds, time.monotonic())


def _look(leader: "Leader", rounds: "LeaderRounds") -> None:
    from consumers.database import DatabaseUnavailable
    from events.errors import LogUnavailable

    rounds.looks()
    try:
        result = leader.tick()
    except (LogUnavailable, DatabaseUnavailable) as error:
        rounds.count_troubles(1)
        log.warning("%s", error)
        return
    rounds.count_round(result)
    for note in result.told:
        log.info("%s", note)
    for trouble in result.troubles:
        log.warning("%s", trouble)


def work(
    cli: Cli,
    once: Annotated[bool, typer.Option("--once", help="Do what is due, then end.")] = False,
    upstream: EngineUrls = None,
) -> int | None:
    """Make ended sessions into rollouts, keep engines as routes want them, and watch canaries."""
    from daemon.jobs.user_endpoints import export_key
    from daemon.roles.worker import Worker
    from daemon.serving.fleet import open_fleet

    if once:
        with cli.app() as app, open_fleet(app.settings, upstream or ()) as fleet:
            export_key(app.settings)
            worker = Worker(app, fleet)
            worker.check()
            done = worker.work()
            worker.close()
        for trouble in done.troubles:
            cli.out.warn(trouble)
        cli.out.document(asdict(done))
        return PARTLY if done.failed else None
    with (
        stop_on_signal(cli) as stop,
        cli.app() as app,
        open_fleet(app.settings, upstream or ()) as fleet,
    ):
        export_key(app.settings)
        worker = Worker(app, fleet)
        _work(app.settings, worker, stop)
        worker.close()
    return None


def _work(settings: "Settings", worker: "Worker", stop: threading.Event) -> None:
    from consumers.database import DatabaseUnavailable
    from daemon.metrics.exposition import serve_metrics
    from daemon.metrics.jobs import jobs as job_figures
    from daemon.metrics.roles import WorkerRounds
    from events.errors import LogUnavailable

    with job_figures(settings) as of_jobs, serve_metrics(settings, "work") as registry:
        registry.register(of_jobs)
        rounds = WorkerRounds(registry)
        systemd.notify_ready()
        away: str | None = None
        while not stop.is_set():
            rounds.looks()
            try:
                done = worker.work()
            except (LogUnavailable, DatabaseUnavailable) as error:
                rounds.count_troubles(1)
                if away != str(error):  # once per outage, not in every turn
                    log.warning("%s", error)
                away = str(error)
            else:
                away = None
                rounds.count_round(done)
                _tell(done)
            stop.wait(_WORK_SECONDS)


def _tell(done: "RoundResult") -> None:
    for trouble in done.troubles:
        log.warning("%s", trouble)
    for note in done.told:
        log.info("%s", note)
    if done.ended or done.rollouts:
        log.info("%s sessions ended, %s rollouts", done.ended, done.rollouts)
    for what, names in (
        ("loaded", done.loaded), ("unloaded", done.unloaded), ("collected", done.collected),
        ("routed", done.routed),
    ):  # fmt: skip
        if names:
            log.info("%s: %s", what, ", ".join(names))


@contextmanager
def stop_on_signal(cli: Cli) -> Iterator[threading.Event]:
    """Set up logging, and yield an event that SIGTERM or SIGINT sets."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.WARNING if cli.out.quiet else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    # At INFO these log each connection, poll and request; their problems are warnings.
    for name in ("kafka", "httpx2", "apscheduler", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    stop = threading.Event()

    def handle_signal(*_: object) -> None:
        stop.set()
        systemd.notify_stop()

    before = {
        number: signal.signal(number, handle_signal) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _patiently(make: Callable[[], T], stop: threading.Event) -> T | None:
    """Return `make()` as soon as log and database can be used; None if stopped before."""
    from consumers.database import DatabaseUnavailable
    from events.errors import LogUnavailable

    pause = _FIRST_PAUSE_SECONDS
    while not stop.is_set():
        try:
            return make()
        except (LogUnavailable, DatabaseUnavailable) as error:
            log.warning("waiting %.1f s: %s", pause, error)
            stop.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
    return None
