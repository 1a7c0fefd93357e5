"""What makes a cycle due: counts of the agent's own traffic, and of no other's."""

import json
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, select

from consumers import database
from consumers.reads import rollouts
from consumers.reads.scheduling import CYCLE_START, Scheduling, job_seconds, scheduling
from consumers.tables import Job
from events.envelope import derive_id, parse_timestamp
from events.learning import PatternsDiagnosed
from events.log import Entry
from events.serving import OperatorActed
from migrations.upgrade import upgrade
from tests.consumers.cycling import Leading, diagnosed, job_over, over, requested, started
from tests.consumers.diagnosis.test_rounds import failure, said, success
from tests.consumers.folding import at, fold, folded_position
from tests.consumers.plans import plans_of


@pytest.fixture
def leading(engine: Engine) -> Leading:
    return Leading(engine)


def seen(leading: Leading, alias: str = "agent", base: str = "base", days: int = 0) -> Scheduling:
    """So many days after everything."""
    fold(leading.log, leading.engine)
    with leading.tables() as connection:
        return scheduling(connection, alias, base, at(0) + timedelta(days=days))


def asked(alias: str, action: str = CYCLE_START) -> OperatorActed:
    return OperatorActed(actor="ada", action=action, arguments={"alias": alias})


def close_round(leading: Leading, number: int | None = None) -> None:
    """By the cycle of that number, or by hand."""
    fold(leading.log, leading.engine)
    reached = folded_position(leading.engine)
    by_hand = PatternsDiagnosed(trigger="diagnose", position=reached)
    leading.all(by_hand if number is None else diagnosed(reached, number))


def traffic(name: str, **fields: Any) -> list[Entry]:
    """Two failures of one trace, another failure, a success, and one that nobody judged."""
    return [
        failure(f"{name}-1", second=5, content=said(name), **fields),
        failure(f"{name}-2", second=6, content=said(name), **fields),
        failure(f"{name}-3", second=7, **fields),
        success(f"{name}-4", **fields),
        success(f"{name}-5", **{"success": None, "reward": None, **fields}),
    ]


def test_before_anything_happened_there_is_nothing(leading: Leading) -> None:
    assert seen(leading) == Scheduling(
        alias="agent", base="base", position={"rollouts": {}}, number=1, is_open=False,
        rollouts=0, judged=0, failed=0, priority=0.0, first_seen=None, last_started=None,
        last_ended=None, fruitless=0, job_seconds=0.0, asked=None,
    )  # fmt: skip


def test_what_no_cycle_has_read_is_counted_whoever_closed_rounds(leading: Leading) -> None:
    leading.log.append(traffic("one"))
    found = seen(leading)
    assert (found.rollouts, found.judged, found.failed) == (5, 4, 2)
    assert found.position == folded_position(leading.engine)
    assert found.first_seen == at(5), "those without a time are of no known age"
    close_round(leading)
    assert seen(leading).rollouts == 5, "a round that a person closed is no cycle"
    leading.all(started())
    assert seen(leading).rollouts == 5, "it has not been diagnosed yet"
    close_round(leading, 1)
    assert seen(leading).rollouts == 0
    leading.log.append(traffic("two"))
    found = seen(leading)
    assert (found.rollouts, found.judged, found.failed) == (5, 4, 2)


def test_of_what_a_cycle_has_read_nothing_is_read_again(tmp_path: Path) -> None:
    """Each count begins at what is in no round, or behind the last round that was read; the age of
    the agent is the first entry of another index."""
    engine = database.open_database(database.sqlite_url(tmp_path / "tables.db"))
    upgrade(engine)
    with database.read_transaction(engine) as connection:
        plans = plans_of(connection)
        scheduling(connection, "agent", "base", at(0))
    counts = [
        step
        for plan in plans
        for step in plan.split("; ")
        if " rollouts " in step and "ix_rollouts_agent" not in step
    ]
    own = "(alias=? AND base=? AND purpose=? AND round"
    assert [(step.split(" INDEX ")[1]) for step in counts] == [
        f"ix_rollouts_counted {own}=?)", f"ix_rollouts_counted {own}>?)",
        f"ix_rollouts_failures {own}=?)", f"ix_rollouts_failures {own}>?)",
    ]  # fmt: skip
    engine.dispose()


def test_no_other_agent_no_other_base_and_no_rollout_of_the_daemon_counts(leading: Leading) -> None:
    leading.log.append(traffic("one"))
    close_round(leading)
    own = seen(leading)
    for number, fields in enumerate(
        [{"alias": "other"}, {"base": "other"}, *({"purpose": p} for p in ("train", "evaluate"))]
    ):
        leading.log.append(traffic(f"foreign-{number}", **fields))
    leading.all(started(alias="other"), over(alias="other", outcome="rejected"), asked("other"))
    close_round(leading)
    after = seen(leading)
    assert after.position != own.position
    for name in ("number", "rollouts", "judged", "failed", "priority", "fruitless", "asked"):
        assert getattr(after, name) == getattr(own, name), name
    assert own.priority > 0
    assert seen(leading, alias="other").fruitless == 1
    assert seen(leading, base="other").rollouts == 5


def test_priority_is_the_sum_of_what_is_not_resolved(leading: Leading) -> None:
    leading.log.append(traffic("one"))
    close_round(leading)
    with leading.tables() as connection:
        lines = rollouts.pattern_lines(connection)
    assert seen(leading).priority == pytest.approx(sum(line.priority for line in lines))


def test_the_last_cycle_and_how_long_nothing_came_of_them(leading: Leading) -> None:
    outcomes = ("rejected", "promoted", "failed", "cancelled", "nothing_learnable")
    for number, outcome in enumerate(outcomes, start=1):
        leading.all(started(number))
        assert seen(leading).is_open
        assert seen(leading).last_ended is None
        leading.all(over(number, outcome))  # type: ignore[arg-type]
    found = seen(leading)
    assert (found.number, found.is_open, found.fruitless) == (6, False, 2)
    assert found.last_ended == at(leading.second)
    assert found.last_started == at(leading.second - 1)


def test_an_open_cycle_is_not_fruitless_yet(leading: Leading) -> None:
    leading.all(started())
    assert seen(leading).fruitless == 0


def test_jobs_count_on_the_day_on_which_they_ended(leading: Leading) -> None:
    leading.all(started(), requested())
    assert seen(leading).job_seconds == 0
    leading.all(job_over(seconds=60.5), over(), started(2), requested(2), job_over(2, "failed", 9))
    assert seen(leading).job_seconds == 69.5
    assert [seen(leading, days=days).job_seconds for days in (-1, 1)] == [0, 0]


def test_a_day_is_that_of_universal_time_from_midnight_to_midnight(leading: Leading) -> None:
    leading.all(started(), requested(), job_over(seconds=60.5))
    jobs = Job.table()
    with leading.tables() as connection:
        (ended,) = connection.execute(select(jobs.c.ended)).scalars()
    day = parse_timestamp(ended).date()
    begins = datetime(day.year, day.month, day.day, tzinfo=UTC)
    elsewhere = begins.astimezone(timezone(timedelta(hours=-5)))
    with leading.tables() as connection:
        for now in (begins, begins + timedelta(hours=23, minutes=59), elsewhere):
            assert job_seconds(connection, now) == 60.5
        for now in (begins - timedelta(seconds=1), begins + timedelta(days=1)):
            assert job_seconds(connection, now) == 0


def test_the_oldest_rollout_is_that_of_the_agents_own_traffic(leading: Leading) -> None:
    leading.log.append(traffic("one"))
    leading.all(started())
    assert seen(leading).first_seen == at(5)
    assert seen(leading, base="other").first_seen is None


def test_a_person_is_heard_until_a_cycle_of_the_agent_starts(leading: Leading) -> None:
    leading.say(asked("other"), "of another")
    leading.say(asked("agent", "route set"), "something else")
    assert seen(leading).asked is None
    leading.say(asked("agent"), "first")
    leading.say(asked("agent"), "again")
    assert seen(leading).asked == derive_id("test", "again")
    leading.all(started())
    assert seen(leading).asked is None, "both were about the cycle that came next"
    leading.say(asked("agent"), "while it runs")
    leading.all(over())
    assert seen(leading).asked == derive_id("test", "while it runs")


def test_a_position_is_one_that_an_event_can_carry(leading: Leading) -> None:
    leading.log.append(traffic("one"))
    position = seen(leading).position
    data = started().model_copy(update={"position": position})
    leading.all(data)
    assert json.loads(json.dumps(position)) == position
    assert seen(leading).is_open
