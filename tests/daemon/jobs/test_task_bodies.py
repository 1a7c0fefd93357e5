"""The role `work` brings the bodies of tasks by content to a job, and rejects those it lacks."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

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
from daemon.maintenance import erasure
from daemon.proposer.additions import Addition
from daemon.proposer.task_buffer import Target, TaskWriter
from daemon.solver.journal import DEFINITIONS, read_definitions
from envs.sealed_body import find_seal, open_body, salt_task
from envs.task import TaskDefinition, write_body
from events.codec import decode
from events.jobs import JobSpec
from events.learning import JobRequested, TaskRejected
from tests.daemon.gateway.test_erasing import showing
from tests.daemon.jobs.looks import ended, runner, speaking
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


def request(app: App, pools: dict[str, list[str]], way: str = "usage") -> None:
    """The log has the bodies, and wants a job over them whose trainer behaves in this way."""
    writer = TaskWriter(app, Act("ada"), Target("agent", "letters", None))
    writer.append([Addition("line 1", task, (), False) for task in (*TASKS, *KEPT)])
    spec = letters.spec(
        Path("/nowhere"), seed=WAYS.index(way), sampler=SAMPLER,
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


ROSA: Final = "rosa"


def seal(app: App, *tasks: TaskDefinition) -> list[TaskDefinition]:
    """The log has these tasks, made of a session of Rosa's."""
    key = app.keys.of(ROSA)
    salted = [salt_task(task, key) for task in tasks]
    writer = TaskWriter(app, Act("ada"), Target("agent", "letters", None))
    writer.append([Addition("line 1", task, (), False, key) for task in salted])
    return salted


def request_with_person(app: App, way: str = "usage") -> TaskDefinition:
    """A job that plays a task of a person as well; that task."""
    (task,) = seal(app, TASKS[0])
    request(app, {"target": [*POOLS["target"], task.id]}, way)
    return task


def erase(app: App) -> None:
    erasure.erase(app, erasure.look(app, ROSA))


def test_a_job_gets_the_task_of_a_person_as_ciphertext_and_its_key_in_memory(
    app: App, here: LocalRunner, tmp_path: Path
) -> None:
    task = request_with_person(app, "raises")
    assert advance(app, here) == ["job j was started, attempt 1"]
    folder = tmp_path / "jobs" / "j"
    text = read_definitions(folder / OUT)[task.id]
    key = app.keys.of(ROSA)
    assert find_seal(text) == key.id
    assert open_body(task.id, text, {key.id: key}.get) == write_body(task.dump_body())
    ended(here)
    assert showing(folder, base64.b64encode(key.secret).decode()) == []
    assert json.loads((folder / "attempts" / "1.keys").read_text()) == [key.id]


def test_a_task_of_who_was_erased_before_is_rejected_and_the_job_goes_on(
    app: App, here: LocalRunner, tmp_path: Path
) -> None:
    task = request_with_person(app)
    erase(app)
    assert states(app) == {task.id: "retired"}
    notes = advance(app, here)
    assert "goes on without task" in notes[0]
    assert "who was erased" in notes[0]
    assert states(app) == {task.id: "rejected"}
    assert task.id not in read_definitions(tmp_path / "jobs" / "j" / OUT)
    ended(here)


def test_a_job_that_runs_while_a_person_is_erased_begins_anew_without_the_task(
    app: App, here: LocalRunner, tmp_path: Path
) -> None:
    task = request_with_person(app, "waits")
    advance(app, here)
    speaking(here, tmp_path)
    assert advance(app, here) == []
    erase(app)
    assert "a person was erased" in advance(app, here)[0]
    ended(here)
    rejected, started = advance(app, here)
    assert f"goes on without task {task.id}" in rejected
    assert started.startswith("job j was started, attempt 2")
    assert not (tmp_path / "jobs" / "j" / "attempts" / "2.keys").exists()
    speaking(here, tmp_path)
    assert advance(app, here) == [], "it is stopped once"
    here.cancel("j", "the test is over")
    ended(here)


def test_what_was_learnt_before_a_person_was_erased_is_not_taken(
    app: App, here: LocalRunner, tmp_path: Path
) -> None:
    task = request_with_person(app, "trains")
    out = tmp_path / "jobs" / "j" / OUT
    for name in ("adapter", "checkpoints"):
        (out / name).mkdir(parents=True)
    (out / "left.json").write_text(json.dumps({"sha256": "0" * 64, "steps": 1, "rollouts": 8}))
    assert advance(app, here) == ["job j was started, attempt 1"]
    ended(here)
    erase(app)
    rejected, started = advance(app, here)
    assert f"goes on without task {task.id}" in rejected
    assert started.startswith("job j was started, attempt 2, for a person was erased")
    assert not (out / "adapter").exists()
    assert not (out / "checkpoints").exists()
    ended(here)


def test_a_job_that_closed_a_round_before_a_person_was_erased_ends(
    app: App, here: LocalRunner, tmp_path: Path
) -> None:
    request_with_person(app, "raises")
    advance(app, here)
    ended(here)
    rounds = tmp_path / "jobs" / "j" / OUT / "rounds"
    rounds.mkdir()
    (rounds / "7.json").write_text("{}")
    erase(app)
    notes = advance(app, here)
    assert notes[-1].startswith("job j ended, failed: the keys of the persons")
    assert "the next cycle asks for another job" in notes[-1]


def test_a_task_whose_key_is_not_in_the_store_is_left_out_and_not_rejected(
    app: App, here: LocalRunner, tmp_path: Path
) -> None:
    request_with_person(app)
    app.keys.destroy(app.keys.of(ROSA).id)
    notes = advance(app, here)
    assert "goes on without 1 tasks made of persons' sessions, and a later job" in notes[0]
    assert "restore the key store" in notes[0]
    assert states(app) == {}
    assert read_definitions(tmp_path / "jobs" / "j" / OUT) == bodies(*TASKS)
    ended(here)


def test_a_key_that_is_lost_between_two_attempts_rejects_nothing(
    app: App, here: LocalRunner, tmp_path: Path
) -> None:
    request_with_person(app, "raises")
    advance(app, here)
    ended(here)
    checkpoints = tmp_path / "jobs" / "j" / OUT / "checkpoints"
    checkpoints.mkdir()
    app.keys.destroy(app.keys.of(ROSA).id)
    locked, started = advance(app, here)
    assert "restore the key store" in locked
    assert started.startswith("job j was started, attempt 2")
    assert not checkpoints.exists(), "it begins anew, without the task"
    assert states(app) == {}
    assert not (tmp_path / "jobs" / "j" / "attempts" / "2.keys").exists()
    ended(here)


def test_a_runner_that_hands_over_no_keys_leaves_the_tasks_of_persons_out(
    app: App, here: LocalRunner, tmp_path: Path
) -> None:
    request_with_person(app)
    here.hands_keys = False
    notes = advance(app, here)
    assert "goes on without 1 tasks made of persons' sessions" in notes[0]
    assert states(app) == {}
    assert read_definitions(tmp_path / "jobs" / "j" / OUT) == bodies(*TASKS)
    ended(here)
