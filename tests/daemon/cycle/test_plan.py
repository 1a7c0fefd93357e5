"""A planned cycle is the one that follows, and leaves no trace: log, tables and tasks are real."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr
from sqlalchemy import Engine as Database

from consumers import database
from consumers.digest import digest
from consumers.reads import learning
from daemon.core.app import App
from daemon.core.decision_log import Decisions
from daemon.cycle.plan import CyclePlan, UnknownAgent, plan_cycle
from daemon.engine.chat import Chat
from daemon.engine.policy import Policy
from daemon.engine.reference.weights import CHECKPOINT
from daemon.proposer.probe import Engine
from envs.endpoint import EndpointUnavailable
from events.log import Record
from events.streams import LEARNING, STREAMS
from migrations.upgrade import upgrade
from tests.consumers.cycling import job_over, over
from tests.daemon.conftest import Kintsugi
from tests.daemon.controller.test_directive_builder import record, tasks
from tests.daemon.cycle.test_planner import ask_planner
from tests.daemon.cycle.test_planner import home as open_home
from tests.daemon.engine.conftest import Live, listening

AWAY = "http://127.0.0.1:9/v1"


@pytest.fixture(scope="module")
def engine() -> Iterator[Live]:
    with listening(Policy.load(CHECKPOINT, "base"), Chat(CHECKPOINT), slots=24) as live:
        yield live


def read_records(app: App) -> list[Record]:
    """Every record of the log, bit for bit."""
    return [
        record
        for stream in STREAMS
        for partition in range(len(app.spool.end(stream)))
        for record in app.spool.read(stream, partition, 0)
    ]


def hash_of(tables: Database) -> str:
    with database.read_transaction(tables) as connection:
        return digest(connection)


def planned_quietly(app: App, *engines: Engine) -> CyclePlan:
    """A plan, and the proof that it left log and tables as they were."""
    app.settle()
    before = read_records(app), hash_of(app.engine)
    plan = plan_cycle(app, "agent", engines)
    assert (read_records(app), hash_of(app.engine)) == before
    app.settle()
    assert hash_of(app.engine) == before[1]
    return plan


def test_the_cycle_that_follows_is_the_one_that_was_planned(tmp_path: Path) -> None:
    with open_home(tmp_path, tasks(("cancel", "fallback", "question"), 6)) as app:
        plan = planned_quietly(app)
        assert planned_quietly(app).accepted == plan.accepted
        cycle, troubles = ask_planner(app)
        assert troubles == []
        assert cycle is not None
        with app.reading() as connection:
            job = learning.job(connection, cycle.job or "")
            rejected = learning.rejections_of(connection, cycle.cycle)
            written = learning.patterns_of(connection, "agent")
        assert (plan.cycle, plan.number, plan.round) == (cycle.cycle, 1, cycle.round)
        assert plan.directive.directive == cycle.directive
        assert {data.task.id: data.pattern for data in plan.accepted} == written
        assert written
        assert [data.reason for data in plan.rejected] == [row.reason for row in rejected]
        assert plan.job is not None
        assert job is not None
        assert plan.job.spec == job.spec
        assert plan.lacking is None
        assert (plan.unread.rollouts, plan.unread.judged, plan.unread.failed) == (18, 18, 12)
        assert plan.outlook.due is False, "a plan asks for no cycle"


def test_what_a_closed_round_read_is_not_read_again_and_an_open_cycle_is_named(
    tmp_path: Path,
) -> None:
    with open_home(tmp_path, tasks(("cancel",), 4)) as app:
        cycle, _ = ask_planner(app)
        assert cycle is not None
        record(app, "agent", "base", tasks(("fallback",), 3, first=2**25))
        plan = planned_quietly(app)
        assert (plan.number, plan.outlook.cycle) == (2, cycle.cycle)
        assert (plan.unread.rollouts, plan.unread.failed) == (3, 3)
        assert plan.round == (cycle.round or 0) + 1
        assert {quota.pattern for quota in plan.directive.directive.quotas} >= {
            "missing_write_action|exchange_item"
        }


def test_the_policy_that_answers_plays_the_tasks_and_nothing_of_it_is_recorded(
    tmp_path: Path, engine: Live
) -> None:
    with open_home(tmp_path, tasks(("cancel", "fallback"), 4)) as app:
        plan = planned_quietly(app, Engine(f"{engine.url}/v1"))
        assert plan.probed
        examined = [data.verified[-1] for data in plan.accepted]
        assert {check.check for check in examined} <= {"informative"}
        informative = [data for data in plan.rejected if data.check == "informative"]
        assert len(examined) + len(informative) > 0
        assert plan.estimate.rollouts.probe == 8 * (len(examined) + len(informative))
        assert not planned_quietly(app).probed
        cycle, _ = ask_planner(app)
        assert cycle is not None, "a plan keeps no cycle from its own probes"


def test_an_engine_that_is_away_is_named_with_the_way_around_it(tmp_path: Path) -> None:
    with (
        open_home(tmp_path, tasks(("cancel",), 4)) as app,
        pytest.raises(EndpointUnavailable, match=r"127\.0\.0\.1:9.*--no-probe"),
    ):
        plan_cycle(app, "agent", [Engine(AWAY)])


def test_an_agent_that_nobody_saw_is_no_agent(tmp_path: Path) -> None:
    with open_home(tmp_path, tasks(("cancel",), 4)) as app:
        with pytest.raises(UnknownAgent, match="'nobody'; rollouts are recorded of agent"):
            plan_cycle(app, "nobody")
        named = app.settings.agents[0].model_copy(update={"alias": "silent"})
        app.settings = app.settings.model_copy(update={"agents": (named,)})
        with pytest.raises(UnknownAgent, match="no rollout of 'silent' is recorded"):
            plan_cycle(app, "silent")


def test_nothing_is_estimated_before_a_cycle_has_shown_it(tmp_path: Path) -> None:
    with open_home(tmp_path, tasks(("cancel", "question"), 6)) as app:
        first = planned_quietly(app).estimate
        assert (first.basis, first.cycles, first.jobs) == (None, 0, 0)
        assert first.writing_minutes is first.training_minutes is first.evaluation_minutes is None
        assert (first.minutes, first.rollouts.total, first.gpu_hours) == (None, None, None)
        assert first.rollouts.training == app.settings.training.rollouts
        assert [words.split(":")[0] for words in first.unknown] == [
            "minutes of writing", "minutes of training", "minutes and rollouts of evaluation",
        ]  # fmt: skip
        cycle, _ = ask_planner(app)
        assert cycle is not None
        ended = job_over(seconds=32.0).model_copy(update={"job": cycle.job or ""})
        closed = over(outcome="rejected").model_copy(update={"cycle": cycle.cycle})
        decisions = Decisions(app, epoch=1)
        decisions.take(ended, "the job ends", cycle.event)
        decisions.take(closed, "the cycle ends", cycle.event)
        record(app, "agent", "base", tasks(("cancel",), 6, first=2**25))
        second = planned_quietly(app).estimate
    assert (second.basis, second.cycles, second.jobs) == ("agent", 1, 1)
    assert second.writing_minutes is not None
    assert second.training_minutes == pytest.approx((second.rollouts.training or 0) / 2.0 / 60)
    assert second.evaluation_minutes is None, "no adapter was evaluated"
    assert second.minutes is None


@pytest.mark.postgres
def test_a_plan_over_postgresql_is_that_over_sqlite(tmp_path: Path, postgres_url: str) -> None:
    tables = database.open_database(postgres_url)
    upgrade(tables)
    tables.dispose()
    given = tasks(("cancel", "fallback"), 4)
    with open_home(tmp_path / "embedded", given) as app:
        embedded = planned_quietly(app)
        settings = app.settings.model_copy(
            update={"home": tmp_path / "served", "database_url": SecretStr(postgres_url)}
        )
    with App(settings) as app:
        record(app, "agent", "base", given)
        served = planned_quietly(app)
    assert [data.task.id for data in served.accepted] == [d.task.id for d in embedded.accepted]
    assert served.directive == embedded.directive


@pytest.fixture
def configured(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home in force with failures of an agent that has an environment."""
    agents = [{"alias": "agent", "environment": "shop", "checkpoint": str(CHECKPOINT)}]
    monkeypatch.setenv("KINTSUGI_AGENTS", json.dumps(agents))
    monkeypatch.setenv("KINTSUGI_PROPOSER__TASKS", "4")
    return home


def fill(folder: Path, *kinds: str) -> None:
    with open_home(folder, tasks(kinds, 4)) as app:
        app.settle()


def learning_bytes(folder: Path) -> list[bytes]:
    with open_home(folder) as app:
        return [record.value for record in app.spool.read(LEARNING.name, 0, 0)]


def test_the_command_prints_the_plan_and_appends_nothing(
    configured: Path, kintsugi: Kintsugi
) -> None:
    fill(configured, "cancel", "question")
    result = kintsugi("cycle", "plan", "agent", "--json")
    assert result.code == 0, result.err
    plan = result.json
    assert plan["reads"] == {"rollouts": 8, "judged": 8, "failures": 4, "unusable": []}
    (line,) = plan["patterns"]
    assert (line["pattern"], line["operator"]) == ("missing_write_action|cancel_order", None)
    wanted = sum(quota["tasks"] for quota in plan["directive"]["quotas"])
    assert 0 < len(plan["tasks"]) <= wanted
    assert all(len(task["checks"]) == 9 for task in plan["tasks"])
    assert plan["job"]["pools"][0]["pool"] == plan["patterns"][0]["pattern"]
    assert sum(pool["share"] for pool in plan["job"]["pools"]) == pytest.approx(1)
    assert plan["probed"] is False
    assert plan["not_probed"].startswith("no engine is named")
    assert plan["estimate"]["unknown"]
    shown = kintsugi("cycle", "plan", "agent", "--no-probe")
    assert shown.code == 0
    for words in ("8 rollouts", "missing_write_action|cancel_order", "unknown", "pool of the job"):
        assert words in shown.out
    assert "--no-probe" in shown.err
    assert learning_bytes(configured) == []


def test_the_command_says_what_it_cannot_plan(
    configured: Path, kintsugi: Kintsugi, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(configured, "question")
    nobody = kintsugi("cycle", "plan", "nobody")
    assert (nobody.code, "rollouts are recorded of agent" in nobody.err) == (2, True)
    quiet = kintsugi("cycle", "plan", "agent")
    assert (quiet.code, "no failure pattern" in quiet.out) == (0, True)
    monkeypatch.setenv("KINTSUGI_AGENTS", json.dumps([{"alias": "agent"}]))
    without = kintsugi("cycle", "plan", "agent")
    assert (without.code, "no executable environment" in without.err) == (2, True)


def test_the_command_reaches_no_engine_that_is_away(configured: Path, kintsugi: Kintsugi) -> None:
    fill(configured, "cancel")
    away = kintsugi("cycle", "plan", "agent", "--upstream", AWAY)
    assert (away.code, "--no-probe" in away.err) == (4, True)
    assert kintsugi("cycle", "plan", "agent", "--upstream", AWAY, "--no-probe").code == 0
