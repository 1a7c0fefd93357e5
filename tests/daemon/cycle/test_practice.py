"""Lessons in a cycle: from recorded failures on refused calls to a directive, lessons and a job;
tables, log, environment and folds are real."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from consumers.methods.lessons.reads import read_lesson_tasks, read_lessons
from consumers.reads import learning
from consumers.reads.explanation import explain
from consumers.reads.learning import CycleRow
from consumers.rebuild import rebuild
from consumers.tables import Cycle
from daemon.cli.methods import build_loop_metrics
from daemon.config.settings import Agent, Improve, Log, Proposer, Settings, Training
from daemon.core.app import App
from daemon.core.decision_log import Decisions
from daemon.cycle.plan import plan_cycle
from daemon.cycle.planner import CyclePlanner
from daemon.engine.reference.weights import CHECKPOINT
from daemon.methods.lessons.task_writer import read_own_pools
from daemon.metrics.families import Sheet
from daemon.metrics.loop import list_families
from daemon.metrics.loop import read as read_loop
from daemon.proposer.candidate import PriorTask
from daemon.proposer.sources import read_pool_entries, read_prior_tasks
from envs.lessons.checks import follows_refusal, get_lesson
from envs.task import TaskDefinition, find_split, read_body
from events.jobs import JobSpec
from tests.daemon.conftest import Kintsugi
from tests.daemon.controller.test_directive_builder import record, tasks
from tests.daemon.cycle.test_planner import QUIET, ask_planner
from tests.daemon.slips import draw_sources, record_slips

SLIPS = draw_sources("cancel", 6)
REASON = "6 of 6 failures hold a call that a tool refused"


@contextmanager
def home(
    folder: Path, lessons: Any = "auto", training: Training | None = None, **proposer: Any
) -> Iterator[App]:
    settings = Settings(
        home=folder, log=Log(durability="process"), scheduler=QUIET,
        agents=(Agent(alias="agent", environment="shop", checkpoint=CHECKPOINT),),
        proposer=Proposer(**{"tasks": 16, **proposer}), improve=Improve(lessons=lessons),
        training=training or Training(),
    )  # fmt: skip
    with App(settings) as app:
        yield app


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    with home(tmp_path) as app:
        record_slips(app, SLIPS)
        record(app, "agent", "base", tasks(("question",), 6))
        yield app


def run_cycle(app: App) -> CycleRow:
    cycle, troubles = ask_planner(app)
    assert troubles == []
    assert cycle is not None
    return cycle


def read_job(app: App, cycle: CycleRow) -> JobSpec:
    with app.reading() as connection:
        job = learning.job(connection, cycle.job or "")
    assert job is not None
    return job.spec


def test_a_pattern_that_stands_on_refused_calls_is_practised_and_the_directive_says_why(
    app: App,
) -> None:
    cycle = run_cycle(app)
    assert cycle.directive is not None
    (quota,) = cycle.directive.quotas
    assert [choice.model_dump() for choice in quota.modes] == [
        {"mode": "repair", "tasks": quota.tasks // 2, "reason": REASON}
    ]


def test_lessons_are_recorded_ones_first_and_ordinary_tasks_stay(app: App) -> None:
    cycle = run_cycle(app)
    assert cycle.directive is not None
    (quota,) = cycle.directive.quotas
    with app.reading() as connection:
        rows = list(learning.tasks_of(connection, "agent"))
        lessons = read_lessons(connection, "agent")
        assert read_lesson_tasks(connection, "agent") == lessons.keys()
        bodies = {name: learning.read_task_body(connection, name) or "" for name in lessons}
    repairs = [row for row in rows if row.mode == "repair"]
    assert len(repairs) == quota.tasks // 2
    assert len(rows) == quota.tasks
    assert {row.task.id for row in repairs} == lessons.keys()
    for row in repairs:
        stored = lessons[row.task.id]
        assert stored.operator == "recorded"
        assert row.source_rollout == stored.rollout
        assert stored.rollout in quota.examples
        assert {"lesson", "contamination", "solvable"} <= {check.check for check in row.verified}
        lesson = read_body(row.task.id, bodies[row.task.id])
        assert follows_refusal(lesson)
        assert find_split(get_lesson(lesson).source) == "train"


def test_what_recordings_do_not_give_is_made_of_tasks_like_the_failed_ones(tmp_path: Path) -> None:
    """Failures on tasks whose lessons are kept for tests give no lesson."""
    with home(tmp_path) as app:
        record_slips(app, draw_sources("cancel", 4, "test"))
        run_cycle(app)
        with app.reading() as connection:
            lessons = read_lessons(connection, "agent")
            rows = {row.task.id: row for row in learning.tasks_of(connection, "agent")}
    assert len(lessons) == 4
    for name, lesson in lessons.items():
        assert lesson.operator in ("argument", "swap", "missing")
        assert lesson.source.startswith("shop/cancel/")
        assert find_split(lesson.source) == "train"
        assert rows[name].source_rollout is not None


def test_a_job_draws_the_lessons_of_a_pattern_from_a_pool_beside_its_own(tmp_path: Path) -> None:
    with home(tmp_path, training=Training(warm_start="auto")) as app:
        record_slips(app, SLIPS)
        spec = read_job(app, run_cycle(app))
    pattern, lessons = spec.target_pools
    assert (pattern.reward, lessons.reward) == ("verdict", "both")
    assert lessons.name == f"lessons: {pattern.name}"
    assert lessons.share == pytest.approx(pattern.share)
    drawn = (*lessons.tasks, *lessons.references)
    assert all(name.startswith("shop/=") for name in drawn)
    assert len(drawn) == 4
    # A warm start shows some of them, as it shows tasks of the pattern.
    assert lessons.references
    assert lessons.environment is None


@pytest.mark.parametrize("lessons", ["off", "auto"])
def test_without_lessons_or_without_refusals_nothing_changes(tmp_path: Path, lessons: str) -> None:
    """An agent that forgets the last call has no call refused."""
    with home(tmp_path, lessons) as app:
        if lessons == "off":
            record_slips(app, SLIPS)
        else:
            record(app, "agent", "base", tasks(("cancel",), 6))
        cycle = run_cycle(app)
        spec = read_job(app, cycle)
        with app.reading() as connection:
            modes = {row.mode for row in learning.tasks_of(connection, "agent")}
            stored = connection.execute(select(Cycle.table().c.directive)).scalar_one()
    assert modes <= {"inherit", "explore"}
    assert all(pool.reward == "verdict" for pool in spec.pools)
    assert "modes" not in json.loads(stored)["quotas"][0]


def test_lessons_that_cycles_wrote_are_not_drawn_once_they_are_off(app: App) -> None:
    run_cycle(app)
    with app.reading() as connection:
        entries = read_pool_entries(connection, "agent", "base")
        practised = read_pool_entries(
            connection, "agent", "base", repairs=read_own_pools(connection, "agent")
        )
    assert len(practised) == len(entries) + 4
    assert sum(entry.own_pool is not None for entry in practised) == 4
    assert not any(entry.own_pool for entry in entries)


def test_a_lesson_of_another_rollout_behind_the_same_call_is_known(app: App) -> None:
    run_cycle(app)
    with app.reading() as connection:
        bodies = [
            learning.read_task_body(connection, task) for task in read_lessons(connection, "agent")
        ]
        prior = read_prior_tasks(connection, "agent", "another cycle")
    for body in bodies:
        assert body is not None
        task = TaskDefinition.model_validate({**json.loads(body), "id": "shop/=0"})
        assert task.lesson is not None
        other = task.lesson.model_copy(update={"rollout": "another rollout"})
        again = task.model_copy(update={"lesson": other}).name_by_content()
        assert PriorTask.of(again) in prior


def test_a_redo_writes_the_same_lessons_and_a_rebuild_has_the_same_tables(app: App) -> None:
    cycle = run_cycle(app)
    assert cycle.accepted == 8
    again = CyclePlanner(app).propose_tasks(cycle)
    Decisions(app).record(again.said, cycle.event)
    app.settle()
    with app.reading() as connection:
        assert len(read_lessons(connection, "agent")) == 4
        found = learning.find_cycle(connection, cycle.cycle)
    assert (found.accepted, found.rejected) == (cycle.accepted, cycle.rejected)
    assert rebuild(app.log, app.engine).equal is True


def test_a_plan_of_the_next_cycle_has_its_lessons(app: App) -> None:
    planned = plan_cycle(app, "agent")
    cycle = run_cycle(app)
    assert planned.cycle == cycle.cycle
    with app.reading() as connection:
        written = {row.task.id for row in learning.tasks_of(connection, "agent")}
    assert {data.task.id for data in planned.accepted} == written
    assert planned.job is not None
    assert planned.job.spec.pools == read_job(app, cycle).pools


def test_rounds_of_a_job_stay_where_its_pattern_has_ordinary_tasks(tmp_path: Path) -> None:
    with home(tmp_path, training=Training(rounds=2)) as app:
        record_slips(app, SLIPS)
        spec = read_job(app, run_cycle(app))
    assert spec.rounds is not None
    assert any(pool.reward == "both" for pool in spec.pools)


def test_a_lesson_is_explained_down_to_the_rollout_in_which_the_call_was_refused(
    app: App,
) -> None:
    run_cycle(app)
    with app.reading() as connection:
        name, lesson = next(iter(read_lessons(connection, "agent").items()))
        node = explain(connection, name)
    assert node.kind == "task"
    assert [child.node for child in node.because] == [lesson.rollout]
    assert f"lesson of a call that was refused in a conversation about {lesson.source}" in node.said
    assert f"by repair: {REASON}" in node.said


@pytest.fixture
def configured(app: App, monkeypatch: pytest.MonkeyPatch) -> App:
    """The same home for commands; lessons are on."""
    agent = {"alias": "agent", "environment": "shop", "checkpoint": str(CHECKPOINT)}
    monkeypatch.setenv("KINTSUGI_HOME", str(app.home))
    monkeypatch.setenv("KINTSUGI_AGENTS", json.dumps([agent]))
    monkeypatch.setenv("KINTSUGI_PROPOSER__TASKS", "16")
    monkeypatch.setenv("KINTSUGI_IMPROVE__LESSONS", "auto")
    return app


def test_commands_show_lessons_like_tasks(configured: App, kintsugi: Kintsugi) -> None:
    plan = kintsugi("cycle", "plan", "agent", "--json").json
    assert sum(task["mode"] == "repair" for task in plan["tasks"]) == 4
    (pool,) = [pool for pool in plan["job"]["pools"] if pool["lessons"]]
    assert (pool["lessons"], pool["reward"]) == (4, "both")
    text = " ".join(kintsugi("cycle", "plan", "agent").out.split())
    assert "8 would be written (4 of them lessons)" in text
    cycle = run_cycle(configured)
    shown = kintsugi("cycle", "show", cycle.cycle, "--json").json
    assert (shown["lessons"]["written"], shown["lessons"]["rejected"]) == (4, 0)
    assert [item["pool"] for item in shown["lessons"]["pools"]] == [pool["pool"]]
    assert shown["lessons"]["after_error"] is None
    words = " ".join(kintsugi("cycle", "show", cycle.cycle).out.split())
    assert "4 written, 0 rejected" in words
    assert f"4 by repair: {REASON}" in words
    job = kintsugi("explain", cycle.job or "").out
    assert f"draws lessons ({pool['pool']}: 4)" in " ".join(job.split())
    status = kintsugi("status", "--json").json
    assert status["job"]["lessons"] == 4
    assert "draws lessons" in job
    assert kintsugi("rebuild", "--json").json["equal"] is True


def test_the_status_says_what_lessons_do_and_why_not(
    configured: App, kintsugi: Kintsugi, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read() -> dict[str, Any]:
        (practice,) = kintsugi("status", "--json").json["improve"]["lessons"]
        assert isinstance(practice, dict)
        return practice

    configured.settle()
    assert read()["says"] == "0 for the next job to draw; no failure pattern has a priority"
    cycle = run_cycle(configured)
    assert cycle.directive is not None
    (quota,) = cycle.directive.quotas
    practice = read()
    assert (practice["setting"], practice["lessons"]) == ("auto", 4)
    assert practice["patterns"] == [
        {"pattern": quota.pattern, "failures": 6, "refused": 6, "is_basis": True}
    ]
    standing = f"{quota.pattern} ({REASON})"
    assert practice["says"] == (
        f"4 for the next job to draw; the next cycle writes some for {standing}"
    )
    assert practice["says"] in " ".join(kintsugi("status").out.split())
    monkeypatch.setenv("KINTSUGI_IMPROVE__LESSONS", "off")
    assert read()["says"] == (
        f'off; improve.lessons = "auto" would have cycles practise {standing}'
    )
    assert read()["lessons"] == 0


def test_metrics_count_the_lessons_that_cycles_wrote(app: App) -> None:
    run_cycle(app)
    methods = build_loop_metrics()
    sheet = Sheet(list_families(methods))
    read_loop(app, sheet, methods=methods)
    (family,) = [item for item in sheet.metrics() if item.name == "kintsugi_lessons_written"]
    assert [sample.value for sample in family.samples] == [4.0]


def test_a_pattern_of_which_no_lesson_can_be_made_says_so_and_keeps_its_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with home(tmp_path) as app:
        record_slips(app, draw_sources("cancel", 4, "test"))
        # An environment whose fresh tasks are all kept for tests.
        monkeypatch.setattr("daemon.methods.lessons.task_writer.find_split", lambda _: "test")
        cycle = run_cycle(app)
        assert cycle.directive is not None
        with app.reading() as connection:
            rejected = learning.rejections_of(connection, cycle.cycle)
    (none,) = [row for row in rejected if row.mode == "repair"]
    assert none.check == "lesson"
    assert none.reason.startswith("no lesson could be made: ")
    assert "failed rollouts that are not used, 4: its task is of the other split" in none.reason
    assert cycle.accepted == sum(quota.tasks for quota in cycle.directive.quotas)
