"""Rounds that a job closed become events, while it runs and before it is over."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from consumers.reads import learning, succession
from consumers.reads.explanation import Node, explain
from consumers.reads.learning import JobRoundRow
from daemon.config.settings import Jobs, Settings
from daemon.core.app import App
from daemon.core.decision_log import Decisions
from daemon.jobs.training_runs import advance
from daemon.solver.rounds.record import RoundRecord, WrittenTask, record_path
from daemon.solver.spec import digest
from envs.shop.environment import Shop
from events.jobs import JobSpec
from events.learning import (
    CycleStarted,
    Directive,
    DirectiveWritten,
    JobRequested,
    JobRound,
    PoolShare,
    Quota,
    TaskProposed,
    TaskRejected,
    Verified,
)
from tests.daemon.conftest import Kintsugi
from tests.daemon.jobs.looks import runner, speaking
from tests.daemon.jobs.test_training_runs import after_an_end
from tests.daemon.jobs.trainer import WAYS
from tests.daemon.solver.rounds import jobs

WRITTEN: Final = f"shop/question/{(1 << 28) + 5}"


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    with App(Settings(home=tmp_path, jobs=Jobs(attempts=1, heartbeat_seconds=60))) as app:
        yield app


def requested(app: App, way: str) -> JobSpec:
    """An open cycle whose job has rounds, and a trainer that behaves in this way."""
    spec = jobs.spec(job="j", seed=WAYS.index(way))
    begun = CycleStarted(
        cycle="cycle-1", alias="agent", base="reference", number=1, environment="shop",
        trigger="operator", reason="ada wants it", position={},
    )  # fmt: skip
    wanted = JobRequested(
        job="j", cycle="cycle-1", alias="agent", base="reference", spec=spec, minutes=10
    )
    directed = DirectiveWritten(cycle="cycle-1", round=0, directive=Directive(quotas=()))
    app.settle()
    Decisions(app).take_all({"begun": begun, "directed": directed, "wanted": wanted}, "somebody")
    return spec


def record(spec: JobSpec) -> RoundRecord:
    """One that wrote a task, and another in vain."""
    name = JobRound(job=spec.job, number=1)
    quota = Quota(pattern=jobs.WEAK, tasks=2, priority=0.25, status="NEW", examples=("r",))
    proposed = TaskProposed(
        alias="agent", base="reference", task=Shop().task(WRITTEN).record(), pattern=jobs.WEAK,
        cycle="cycle-1", mode="explore", verified=(Verified(check="gold"),), job_round=name,
    )  # fmt: skip
    rejected = TaskRejected(
        cycle="cycle-1", alias="agent", base="reference", pattern=jobs.WEAK, mode="inherit",
        check="novelty", reason="a task asks for the same calls", job_round=name,
    )  # fmt: skip
    return RoundRecord(
        spec=digest(spec), number=1, rollouts=32, failures=9, unread=1,
        directive=Directive(quotas=(quota,)),
        tasks=(WrittenTask(event="e1", data=proposed), WrittenTask(event="e2", data=rejected)),
        pools=spec.pools,
        shares=(
            PoolShare(pool=jobs.WEAK, share=0.4, before=0.5, tasks=5, attempts=16, passes=3),
            PoolShare(pool="replay", share=0.1, before=0.0, tasks=1, attempts=16, passes=16),
        ),
    )  # fmt: skip


def leave(spec: JobSpec, home: Path) -> None:
    """Leave the record where the job does."""
    path = record_path(home / "jobs" / "j" / "out", 1)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(record(spec).content())


def rounds(app: App) -> list[JobRoundRow]:
    app.settle()
    with app.reading() as connection:
        return learning.job_rounds(connection, "j")


def events(app: App) -> list[str]:
    records = app.spool.read("learning", 0, 0)
    return [dict(record.headers)["ce_type"].decode() for record in records]


def test_a_round_is_told_once_while_the_job_runs(app: App, tmp_path: Path) -> None:
    spec = requested(app, "waits")
    here = runner(tmp_path)
    assert advance(app, here) == ["job j was started, attempt 1"]
    speaking(here, tmp_path)
    assert advance(app, here) == []
    leave(spec, tmp_path)
    assert advance(app, here) == ["recorded 1 round of job j"]
    assert advance(app, here) == []
    (row,) = rounds(app)
    assert (row.rollouts, row.failures, row.unread, row.rejected) == (32, 9, 1, 1)
    assert row.tasks == (WRITTEN,)
    assert row.directive == record(spec).directive
    assert row.pools == record(spec).shares
    assert events(app)[3:] == ["DirectiveWritten", "TaskProposed", "TaskRejected", "PoolsShifted"]
    Decisions(app).record(record(spec).decisions(spec), "somebody")
    assert rounds(app) == [row], "saying it again changes nothing"
    with app.reading() as connection:
        cycle = learning.cycle(connection, "cycle-1")
        assert cycle is not None
        assert (cycle.accepted, cycle.rejected) == (1, 1)
        assert cycle.directive == Directive(quotas=()), "that of the round is the job's"
        # What the gate's targets are made of.
        assert succession.list_written_tasks(connection, "cycle-1") == [(jobs.WEAK, WRITTEN)]
        node = explain(connection, "j")
        task = explain(connection, WRITTEN)
    assert "j/round/1" in names(node)
    assert f"{jobs.WEAK} 50% to 40%" in next(n.said for n in node.because if "round" in n.node)
    assert WRITTEN in names(node)
    assert "new" in task.said
    advance(app, here, {"j": "enough"})
    after_an_end(app, here, cancelled={"j": "enough"})


def names(node: Node) -> set[str]:
    return {node.node}.union(*(names(item) for item in node.because))


def test_a_round_of_a_job_that_failed_is_told_before_its_end(app: App, tmp_path: Path) -> None:
    spec = requested(app, "diverges")
    leave(spec, tmp_path)
    here = runner(tmp_path)
    advance(app, here)
    told = after_an_end(app, here)
    assert "recorded 1 round of job j" in told
    assert events(app)[-2:] == ["PoolsShifted", "JobEnded"]


def test_a_damaged_record_keeps_no_job_from_its_end(app: App, tmp_path: Path) -> None:
    spec = requested(app, "diverges")
    leave(spec, tmp_path)
    record_path(tmp_path / "jobs" / "j" / "out", 1).write_text("{")
    here = runner(tmp_path)
    advance(app, here)
    told = after_an_end(app, here)
    assert any("rounds of job j were not recorded" in line for line in told)
    assert told[-1].startswith("job j ended, failed")
    assert rounds(app) == []


def test_cycle_show_tells_the_rounds_of_the_job(kintsugi: Kintsugi, home: Path) -> None:
    with App(Settings(home=home)) as app:
        spec = requested(app, "waits")
        Decisions(app).record(record(spec).decisions(spec), "somebody")
    shown = kintsugi("cycle", "show", "1", "--json").json
    (told,) = shown["job_rounds"]
    assert (told["number"], told["failures"], told["tasks"]) == (1, 9, [WRITTEN])
    assert [pool["share"] for pool in told["pools"]] == [0.4, 0.1]
    text = kintsugi("cycle", "show", "1").out
    assert "round 1 of the job: 9 failures in 32 rollouts; tasks: 1 written, 1 rejected" in text
