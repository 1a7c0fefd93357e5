"""Lessons of a person's sessions in a cycle: written and drawn sealed, where jobs can open them."""

from pathlib import Path
from typing import Any

from consumers.methods.lessons.reads import read_lessons
from consumers.reads import learning
from consumers.rebuild import rebuild
from daemon.config.settings import Agent, Improve, Jobs, Log, Proposer, Settings
from daemon.core.app import App
from daemon.core.decision_log import Decisions
from daemon.cycle.planner import CyclePlanner
from daemon.engine.reference.weights import CHECKPOINT
from daemon.maintenance import erasure
from daemon.methods.lessons.practice import read_practices
from events.codec import decode
from events.learning import TaskProposed
from tests.daemon.cycle.test_planner import QUIET
from tests.daemon.cycle.test_practice import SLIPS, home, read_job, run_cycle
from tests.daemon.gateway.test_erasing import showing
from tests.daemon.slips import record_persons_slips

MARK = "elmstreet"


def test_a_cycle_writes_and_draws_lessons_of_a_person_and_redoes_them(tmp_path: Path) -> None:
    with home(tmp_path) as app:
        record_persons_slips(app, SLIPS, app.keys.of("rosa"), MARK)
        cycle = run_cycle(app)
        with app.reading() as connection:
            sealed = learning.read_sealed_tasks(connection, "agent")
            lessons = read_lessons(connection, "agent")
        assert len(sealed) == 4
        assert lessons.keys() == sealed.keys()
        pools = read_job(app, cycle).target_pools
        assert sealed.keys() == {task for pool in pools[1:] for task in pool.tasks}
        proposals = [
            data
            for data in (decode(record).data for record in app.log.read("learning", 0, 0))
            if isinstance(data, TaskProposed) and data.sealed is not None
        ]
        assert {data.task.instruction for data in proposals} == {None}
        again = CyclePlanner(app).propose_tasks(cycle)
        Decisions(app).record(again.said, cycle.event)
        with app.reading() as connection:
            assert learning.read_sealed_tasks(connection, "agent") == sealed
        assert rebuild(app.log, app.engine).equal is True
    assert showing(tmp_path, MARK) == []
    with home(tmp_path) as app:
        held = erasure.look(app, "rosa")
        assert len(held.live_tasks) == 4
        erasure.erase(app, held)
        with app.reading() as connection:
            assert set(learning.read_inactive_tasks(connection, "agent")) == set(sealed)
        assert rebuild(app.log, app.engine).equal is True


def test_where_jobs_get_no_keys_lessons_of_persons_are_left_out_and_named(tmp_path: Path) -> None:
    ours: dict[str, Any] = {
        "log": Log(durability="process"), "scheduler": QUIET,
        "agents": (Agent(alias="agent", environment="shop", checkpoint=CHECKPOINT),),
        "proposer": Proposer(tasks=16), "improve": Improve(lessons="auto"),
    }  # fmt: skip
    with home(tmp_path) as app:
        record_persons_slips(app, SLIPS, app.keys.of("rosa"), MARK)
        run_cycle(app)
    with App(Settings(home=tmp_path, jobs=Jobs(runner="ray"), **ours)) as app:
        with app.reading() as connection:
            (practice,) = read_practices(connection, app.settings)
        assert practice.lessons == 0
        assert "4 made of persons' sessions are left out, for jobs.runner is ray" in practice.says
    with App(Settings(home=tmp_path / "other", jobs=Jobs(runner="ray"), **ours)) as app:
        record_persons_slips(app, SLIPS, app.keys.of("rosa"), MARK)
        cycle = run_cycle(app)
        with app.reading() as connection:
            assert learning.read_sealed_tasks(connection, "agent") == {}
            assert read_lessons(connection, "agent"), "of tasks like the failed ones"
        assert any(pool.repair_count for pool in read_job(app, cycle).pools)
