"""What is told of the loop: read from real tables, and bounded whatever they hold."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text, update

from consumers import database
from consumers.reads import spools
from consumers.reads.rollouts import pattern_lines
from consumers.tables import Offset, Projection
from daemon.cli.methods import build_loop_metrics
from daemon.config.settings import Settings
from daemon.core.app import App
from daemon.jobs.runner_factory import jobs_of
from daemon.metrics import jobs, log, loop
from daemon.metrics.exposition import port_of, serve_metrics
from daemon.metrics.families import Sheet
from daemon.status.doctor import records
from daemon.status.snapshot import situation
from events.codec import encode
from events.envelope import Envelope, new_id, utc_now
from events.learning import Decision
from events.rollouts import CallStarted
from tests.consumers.deciding import decided, evaluated, moved, produced, routed, staged
from tests.consumers.folding import ended, entry
from tests.daemon.metrics.scene import (
    ADAPTER,
    PANEL,
    UPDATE,
    Series,
    labelled,
    once_round,
    say,
    series,
    serve_panel,
    settings_of,
)

VERSIONS = 60


@pytest.fixture
def app(tmp_path: Path, clean: Path) -> Iterator[App]:
    """A home whose loop has been round once."""
    with App(settings_of(tmp_path / "home")) as app:
        once_round(app)
        yield app


def told(app: App) -> Series:
    """The figures of the loop."""
    methods = build_loop_metrics()
    sheet = Sheet(loop.list_families(methods))
    loop.read(app, sheet, methods=methods)
    return series(sheet.metrics())


def test_a_canary_is_told_of_from_its_patterns_to_its_share(app: App) -> None:
    found = told(app)

    def value(name: str, **labels: str) -> float:
        return found[labelled(f"kintsugi_{name}", **labels)]

    assert value("agents") == 1
    assert value("cycle_number", alias="agent") == 1
    stages = {stage: value("cycle_stage", alias="agent", stage=stage) for stage in loop.STAGES}
    assert [stage for stage, holds in stages.items() if holds] == ["watch"]
    since = value("cycle_stage_entered_timestamp_seconds", alias="agent")
    assert timedelta() <= timedelta(seconds=utc_now().timestamp() - since) < timedelta(minutes=5)
    assert value("tasks_written_total", alias="agent", verdict="accepted") == 2
    assert value("tasks_written_total", alias="agent", verdict="rejected") == 1
    assert value("jobs_total", alias="agent", outcome="trained") == 1
    assert value("jobs_open", alias="agent") == 0
    assert value("gate_decisions_total", alias="agent", decision="promote") == 1
    assert value("gate_decisions_total", alias="agent", decision="reject") == 0
    assert value("gate_pass_ratio", alias="agent", side="candidate") == 0.75
    # Of who answers, for the one that was measured last may not.
    assert value("route_gate_pass_ratio", alias="agent", slot="canary") == 0.75
    assert labelled("kintsugi_route_gate_pass_ratio", alias="agent", slot="base") not in found
    assert value("adapters", alias="agent", state="canary") == 1
    assert value("adapter_entries_total", alias="agent", state="gated") == 1
    assert value("route_weight_ratio", alias="agent", slot="canary") == 0.25
    assert value("route_weight_ratio", alias="agent", slot="base") == 0.75
    assert value("route_info", alias="agent", slot="canary", adapter=ADAPTER) == 1
    assert value("leader_epoch") == 1
    stops = {
        dict(labels)["stop"]
        for name, labels in found
        if name == "kintsugi_cycle_last_success_timestamp_seconds"
    }
    assert stops == {"diagnose", "propose", "train", "gate", "canary"}
    newest = labelled("kintsugi_rollouts_newest_timestamp_seconds", alias="agent")
    assert utc_now().timestamp() - found[newest] < 300
    assert labelled("kintsugi_cycle_duration_seconds", alias="agent") not in found, "none is over"
    # Judged by nobody live: no rate is better than one of nothing.
    assert labelled("kintsugi_live_pass_ratio", alias="agent", slot="canary") not in found
    assert value("live_judged_sessions", alias="agent", slot="canary") == 0


def test_the_sessions_of_an_adapter_that_answers_alone_are_compared_with_its_gate(app: App) -> None:
    """`WorseThanItsGate` needs both figures, and such a route leaves chance no choice."""
    say(app, routed("promoted", {ADAPTER: 1}))
    for session, success in (("s1", True), ("s2", False), ("s3", True), ("s4", False)):
        call = CallStarted(
            call=session, session=session, alias="agent", base="base", policy=ADAPTER,
            routed="drawn",
        )  # fmt: skip
        judged = ended(
            f"{session} ended", utc_now(), session=session, success=success, policy=ADAPTER
        )
        app.append([entry(call, session, utc_now()), judged])
    app.settle()
    found = told(app)
    slot = {"alias": "agent", "slot": "promoted"}
    assert found[labelled("kintsugi_live_judged_sessions", **slot)] == 4
    assert found[labelled("kintsugi_live_pass_ratio", **slot)] == 0.5
    assert found[labelled("kintsugi_route_gate_pass_ratio", **slot)] == 0.75


def test_priorities_come_by_category(app: App) -> None:
    found = told(app)
    weights = {
        dict(labels)["category"]: value
        for (name, labels), value in found.items()
        if name == "kintsugi_pattern_priority"
    }
    with app.reading() as connection:
        lines = pattern_lines(connection)
    assert sum(weights.values()) == pytest.approx(sum(one.priority for one in lines))
    assert found[labelled("kintsugi_patterns", alias="agent", status="new")] == len(lines)


def test_members_of_the_panel_that_answers_are_told_of_and_none_of_an_earlier_one(app: App) -> None:
    serve_panel(app)
    found = told(app)

    def value(name: str, **labels: str) -> float:
        return found[labelled(f"kintsugi_{name}", alias="agent", **labels)]

    assert value("skill_contrast", skill="cancelling") == 0.5
    assert value("skill_coverage_ratio", skill="cancelling") == pytest.approx(0.3)
    assert value("skill_taught_info", skill="cancelling", taught="serving") == 1
    member = {"slot": "promoted", "skill": "cancelling"}
    base = {"slot": "promoted", "skill": "(none)"}
    assert value("member_info", **member, adapter=ADAPTER) == 1
    assert value("member_info", **base, adapter="base") == 1
    for labels, judged, passed in ((member, 2, 0.5), (base, 1, 0)):
        assert value("member_sessions", **labels) == 2
        assert value("member_session_ratio", **labels) == 0.5
        assert value("member_judged_sessions", **labels) == judged
        assert value("member_live_pass_ratio", **labels) == passed
    assert value("member_gate_pass_ratio", **member, side="candidate") == 0.75
    assert value("member_gate_pass_ratio", **member, side="incumbent") == 0.5
    serve_panel(app, "panel-2", PANEL)
    assert told(app).keys() == {
        (name, tuple((key, "panel-2" if held == PANEL else held) for key, held in labels))
        for name, labels in found
    }


def lives(count: int) -> Iterator[Decision]:
    """Adapters that come one after the other, each of them until the next one has its place."""
    before: str | None = ADAPTER
    yield routed("promoted", {ADAPTER: 1})
    for number in range(count):
        name = f"version-{number}"
        yield from (produced(name), staged(name), evaluated(name, before))
        yield decided(name, "PROMOTE", before)
        yield routed("promoted", {name: 1})
        assert before is not None
        yield from (moved(before, "unloaded"), moved(before, "collected"))
        before = name


def test_many_versions_of_an_adapter_leave_as_many_series_as_one(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    def appended(decisions: Iterator[Decision]) -> None:
        entries = []
        for data in decisions:
            envelope = Envelope(
                id=new_id(), type=data.TYPE, version=data.VERSION, subject=data.key(),
                time=utc_now(),
            )  # fmt: skip
            entries.append(encode(envelope, data, 1).entry)
        app.append(entries)
        app.settle()

    promoted = list(lives(VERSIONS))
    appended(iter(promoted[:8]))
    first = told(app)
    appended(iter(promoted[8:]))
    last = told(app)
    assert last[labelled("kintsugi_adapters", alias="agent", state="collected")] == VERSIONS
    entered = labelled("kintsugi_adapter_entries_total", alias="agent", state="promoted")
    assert last[entered] == VERSIONS + 1

    def unnamed(found: Series) -> set[object]:
        return {
            (name, tuple(pair for pair in labels if pair[0] != "adapter")) for name, labels in found
        }

    assert unnamed(last) == unnamed(first)
    assert len(last) == len(first)
    named = {dict(labels)["adapter"] for name, labels in last if name == "kintsugi_route_info"}
    assert named == {f"version-{VERSIONS - 1}"}


def test_agents_beyond_the_limit_are_counted_and_told_no_more_of(app: App) -> None:
    some = loop.MOST_AGENTS + 10
    app.append([ended(f"of-{one}", utc_now(), alias=f"a-{one}") for one in range(some)])
    app.settle()
    found = told(app)
    aliases = {value for _, labels in found for name, value in labels if name == "alias"}
    assert len(aliases) == loop.MOST_AGENTS
    assert "agent" in aliases, "that of the settings comes first"
    assert found[labelled("kintsugi_agents")] == some + 1


def test_of_an_agent_without_an_environment_nothing_is_counted_that_no_cycle_reads(
    app: App,
) -> None:
    app.append([ended("elsewhere", utc_now(), alias="other")])
    app.settle()
    found = told(app)
    counted = {dict(labels)["alias"] for name, labels in found if "unread" in name}
    assert counted == {"agent"}
    # The boards offer the agents that have this one.
    assert found[labelled("kintsugi_cycle_due", alias="other")] == 0


def test_the_newest_update_of_a_job_is_told(app: App) -> None:
    sheet = Sheet(jobs.JOBS)
    jobs.read(app, sheet, jobs_of(app.settings).folder)
    found = series(sheet.metrics())
    assert UPDATE.metrics is not None
    for field, family in jobs.OF_UPDATES.items():
        assert found[labelled(family.name, alias="agent")] == getattr(UPDATE.metrics, field), field
    assert found[labelled("kintsugi_job_rollouts", alias="agent")] == 128
    assert labelled("kintsugi_job_heartbeat_timestamp_seconds", alias="agent") in found


def told_of_log(app: App) -> Series:
    """The figures of the log and its folds."""
    sheet = Sheet(log.LOG)
    log.read(app, sheet)
    return series(sheet.metrics())


def test_a_fold_that_is_behind_is_told_by_events_and_by_age(app: App) -> None:
    def behind(found: Series) -> float:
        return sum(
            value for (name, _), value in found.items() if name == "kintsugi_projection_lag_events"
        )

    oldest = labelled(
        "kintsugi_projection_oldest_unfolded_timestamp_seconds",
        projection="history", stream="rollouts",
    )  # fmt: skip
    found = told_of_log(app)
    assert (behind(found), oldest in found) == (0, False)
    app.append([ended("later"), ended("later-still")])
    found = told_of_log(app)
    assert (behind(found), found[oldest]) == (2, 0.001)
    state = labelled("kintsugi_projection_state", projection="history", state="live")
    assert found[state] == 1


DIVERGED = (Offset, {"last_sha256": "of another event"}, "diverged")
"""A log that was restored from before."""


def halt(app: App, table: type[Projection | Offset], values: dict[str, Any]) -> None:
    """Have the tables hold what no fold goes on from."""
    with app.engine.begin() as connection:
        connection.execute(update(table.table()).values(values))


@pytest.mark.parametrize(
    ("table", "values", "reason"),
    [
        (Projection, {"fold_version": 0}, "fold_version"),
        (Offset, {"next_offset": 1000}, "ahead_of_log"),
        DIVERGED,
    ],
)
def test_a_fold_that_halts_is_told_with_the_reason(
    app: App, table: type[Projection | Offset], values: dict[str, Any], reason: str
) -> None:
    halt(app, table, values)
    found = told_of_log(app)
    assert found[labelled("kintsugi_projection_state", projection="history", state="halted")] == 1
    why = labelled("kintsugi_projection_halted_info", projection="history", reason=reason)
    assert found[why] == 1


def test_status_and_doctor_tell_of_a_log_that_was_restored_from_before(app: App) -> None:
    table, values, _ = DIVERGED
    halt(app, table, values)
    told = situation(app)["projection"]
    assert told["state"] == "halted"
    assert "kintsugi rebuild --yes" in told["halted"][0]
    ok, said = records.fold(app)
    assert not ok
    assert "restored from before" in said


def test_a_spool_whose_owner_is_silent_is_told_with_what_the_tables_lack(app: App) -> None:
    silent = labelled("kintsugi_spools_silent_timestamp_seconds")
    assert silent not in told_of_log(app)
    with database.write_transaction(app.engine) as connection:
        for source in ("gone", "here"):
            said = spools.Report(source, "host", f"/{source}/log.db", {"rollouts": (2, 1)})
            spools.report(connection, said)
        connection.execute(text("UPDATE spools SET seen = seen - 3600 WHERE source = 'gone'"))
    found = told_of_log(app)
    for state in ("live", "silent"):
        assert found[labelled("kintsugi_spools", state=state)] == 1
        assert found[labelled("kintsugi_spools_unfolded_events", state=state)] == 3
    assert utc_now().timestamp() - found[silent] == pytest.approx(3600, abs=60)


def test_what_cannot_be_read_is_told_with_its_age(tmp_path: Path, clean: Path) -> None:
    home = tmp_path / "home"
    settings = settings_of(home)
    with App(settings) as app:
        once_round(app)
    seen = loop.loop(settings, ())
    seen._kept_seconds = 0.0  # every question is answered anew
    with seen:
        before = series(seen.collect())
        (home / "kintsugi.db").write_bytes(b"no database" * 1000)
        after = series(seen.collect())
    assert before[labelled("kintsugi_loop_readable")] == 1
    assert after[labelled("kintsugi_loop_readable")] == 0
    at = labelled("kintsugi_loop_read_timestamp_seconds")
    assert after[at] == before[at] > 0
    weight = labelled("kintsugi_route_weight_ratio", alias="agent", slot="canary")
    assert after[weight] == before[weight], "what was read last stays, with its age"


def test_settings_without_a_port_expose_nothing() -> None:
    settings = Settings()
    assert port_of(settings, "work") is None
    with serve_metrics(settings, "work") as registry:
        assert registry.get_sample_value("kintsugi_poll_last_return_timestamp_seconds") is None
