"""What roles count while they run, told as Prometheus asks for it."""

from pathlib import Path

from sqlalchemy import Engine

from consumers.runner import APPLY_SECONDS, Runner
from daemon.core.app import App
from daemon.core.spool_reporter import tell
from daemon.metrics.roles import fold_metrics
from events.memory import MemoryLog
from tests.consumers.folding import ended
from tests.daemon.commands import run_here
from tests.daemon.metrics.scene import labelled, series, settings_of


def test_a_fold_tells_how_long_its_transactions_take_and_what_it_passed_over(
    engine: Engine,
) -> None:
    log = MemoryLog()
    log.append([ended(f"r-{number}") for number in range(40)])
    runner = Runner(log, engine, batch_events=4)
    runner.catch_up()
    found = series(fold_metrics(runner.counters).collect())
    name, fold = "kintsugi_projection_apply_duration_seconds", {"projection": "history"}
    buckets = [found[labelled(f"{name}_bucket", le=str(le), **fold)] for le in APPLY_SECONDS]
    assert buckets == sorted(buckets), "each bucket holds those below it"
    count = found[labelled(f"{name}_count", **fold)]
    assert count == found[labelled(f"{name}_bucket", le="+Inf", **fold)] >= 10
    assert 0 < found[labelled(f"{name}_sum", **fold)] < 30 * count
    assert found[labelled("kintsugi_fold_events_total", **fold)] == 40
    reasons = {
        dict(labels)["reason"]: value
        for (series_name, labels), value in found.items()
        if series_name == "kintsugi_fold_skipped_total"
    }
    assert reasons == {"duplicate": 0, "gap": 0, "epoch": 0, "unknown_type": 0}


def test_a_home_that_ships_tells_of_its_own_log_until_all_of_it_was_shipped(
    tmp_path: Path, clean: Path
) -> None:
    home = tmp_path / "home"
    settings = settings_of(home).model_copy(update={"kafka_bootstrap_servers": "127.0.0.1:1"})
    variables = {"KINTSUGI_HOME": str(home)}
    with App(settings) as app:
        app.spool.append([ended("r")])
        tell(app, app.spool, ends=True)
        (line,) = run_here(["spool", "ls", "--json"], variables).json
        assert line["source"] == app.spool.source
        assert line["path"] == str(app.spool.path)
        assert (line["unfolded"], line["state"]) == (1, "live")
        for partition, end in enumerate(app.spool.end("rollouts")):
            app.spool.store_ship_offset("rollouts", partition, end)
        tell(app, app.spool)
        assert len(run_here(["spool", "ls", "--json"], variables).json) == 1, "it goes on"
        tell(app, app.spool, ends=True)
        assert run_here(["spool", "ls", "--json"], variables).json == []
        tell(app, app.spool)
        source = app.spool.source
    assert run_here(["spool", "forget", source, "--json"], variables).json["source"] == source
    again = run_here(["spool", "forget", source], variables)
    assert again.code == 1
    assert "kintsugi spool ls names them" in again.err
