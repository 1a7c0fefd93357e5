"""The role `work` brings the bodies of tasks by content to a job, and rejects those it lacks."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import delete, update

from consumers import database
from consumers.reads import learning
from consumers.tables import TaskBody
from daemon.config.settings import Environments, Log, Settings
from daemon.core.app import App
from daemon.core.decision_log import Act, Decisions
from daemon.jobs.local import LocalRunner
from daemon.jobs.runner import OUT
from daemon.jobs.training_runs import advance
from daemon.proposer.additions import Addition
from daemon.proposer.task_buffer import Target, TaskWriter
from daemon.solver.journal import DEFINITIONS, read_definitions
from events.codec import decode
from events.jobs import JobSpec
from events.learning import JobRequested, TaskRejected
from tests.daemon.jobs.looks import ended, runner
from tests.daemon.jobs.trainer import WAYS
from tests.daemon.solver import letters
from tests.daemon.solver.test_content_job import KEPT, SAMPLER, TASKS, bodies


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    here = Environments(paths=(Path(letters.ENVIRONMENT),))
    log = Log(durability="process")
    with App(Settings(home=tmp_path, environments=here, log=log)) as app:
        yield app


@pytest.fixture
def here(tmp_path: Path) -> LocalRunner:
    return runner(tmp_path)


def request(app: App, pools: dict[str, list[str]]) -> None:
    """The log has the bodies, and wants a job over them."""
    writer = TaskWriter(app, Act("ada"), Target("agent", "letters", None))
    writer.append([Addition("line 1", task, (), False) for task in (*TASKS, *KEPT)])
    spec = letters.spec(
        Path("/nowhere"), seed=WAYS.index("usage"), sampler=SAMPLER,
        pools=[
            {"name": name, "tasks": tasks, "replay": name == "kept"}
            for name, tasks in pools.items()
        ],
    )  # fmt: skip
    data = JobRequested(
        job="j", alias="agent", base="letters", spec=JobSpec.model_validate(spec), minutes=10
    )
    Decisions(app).take(data, "j", cause="somebody")


def states(app: App) -> dict[str, str]:
    with app.reading() as connection:
        return learning.read_inactive_tasks(connection, "agent")


POOLS = {"target": [task.id for task in TASKS], "kept": [task.id for task in KEPT]}


def test_a_job_finds_the_bodies_of_its_tasks_in_its_directory(
    app: App, here: LocalRunner, tmp_path: Path
) -> None:
    request(app, POOLS)
    assert advance(app, here) == ["job j was started, attempt 1"]
    assert read_definitions(tmp_path / "jobs" / "j" / OUT) == bodies(*TASKS, *KEPT)
    assert states(app) == {}
    ended(here)


def test_a_job_of_generated_tasks_gets_no_file(app: App, here: LocalRunner, tmp_path: Path) -> None:
    request(app, {"target": letters.ids("half", 0, 4)})
    advance(app, here)
    assert not (tmp_path / "jobs" / "j" / OUT / DEFINITIONS).exists()
    ended(here)


@pytest.mark.parametrize("damage", ["missing", "different"])
def test_a_task_without_its_body_is_rejected_once_and_the_job_goes_on(
    app: App, here: LocalRunner, tmp_path: Path, damage: str
) -> None:
    request(app, POOLS)
    lost = KEPT if damage == "missing" else TASKS[:1]
    table = TaskBody.table()
    with database.write_transaction(app.engine) as connection:
        chosen = table.c.task.in_([task.id for task in lost])
        change = delete(table) if damage == "missing" else update(table).values(body="{}")
        connection.execute(change.where(chosen))
    notes = advance(app, here)
    assert notes[-1] == "job j was started, attempt 1"
    for task in lost:
        assert any(task.id in note and "goes on without" in note for note in notes)
    assert (damage == "missing") == any("without pool kept" in note for note in notes)
    assert states(app) == {task.id: "rejected" for task in lost}
    left = [task for task in (*TASKS, *KEPT) if task not in lost]
    assert read_definitions(tmp_path / "jobs" / "j" / OUT) == bodies(*left)
    ended(here)
    advance(app, here)
    events = [decode(record).data for record in app.log.read("learning", 0, 0)]
    rejected = [data.task for data in events if isinstance(data, TaskRejected)]
    assert rejected == [task.id for task in lost], "once each"


def test_a_job_whose_target_has_no_body_left_ends_before_it_starts(
    app: App, here: LocalRunner, tmp_path: Path
) -> None:
    request(app, POOLS)
    with database.write_transaction(app.engine) as connection:
        connection.execute(delete(TaskBody.table()))
    advance(app, here)
    with app.reading() as connection:
        job = learning.job(connection, "j")
    assert job is not None
    assert job.outcome == "failed"
    assert "no task is left of what shall be learnt (target)" in (job.reason or "")
    assert not (tmp_path / "jobs" / "j").exists()
    assert set(states(app)) == {task.id for task in (*TASKS, *KEPT)}
