"""What the role `work` does in a round, beyond sessions, replicas and canaries."""

from contextlib import closing
from pathlib import Path

from sqlalchemy import text

from consumers import database
from consumers.reads import gateways
from consumers.reads.gateways import Report
from daemon.config.settings import load as settings
from daemon.core.app import App
from daemon.roles.worker import Worker
from daemon.serving.fleet import open_fleet

HOUR = 3600.0


def rows(app: App) -> list[str]:
    with app.reading() as connection:
        return [one.report.gateway for one in gateways.read_live_gateways(connection, 1e9)]


def test_gateways_that_were_killed_long_ago_are_forgotten(tmp_path: Path) -> None:
    with closing(App(settings(home=tmp_path))) as app, open_fleet(app.settings) as fleet:
        with database.write_transaction(app.engine) as connection:
            for name in ("killed", "late", "live"):
                gateways.report(connection, Report(name, "host", 1, {}, {}))
            for name, age in (("killed", 1.1 * HOUR), ("late", 0.9 * HOUR)):
                connection.execute(
                    text("UPDATE gateways SET seen = seen - :age WHERE gateway = :name"),
                    {"age": age, "name": name},
                )
        worker = Worker(app, fleet)
        worker.work()
        assert rows(app) == ["late", "live"]
        worker.work()
        assert rows(app) == ["late", "live"]
