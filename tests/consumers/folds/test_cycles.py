"""The folds of the loop: whose decisions count, what counts once, and that a rebuild agrees."""

import random
from collections import Counter
from pathlib import Path

import pytest
from sqlalchemy import Engine

from consumers.reads import learning, rollouts, serving
from consumers.reads.learning import CycleRow
from consumers.rebuild import rebuild
from consumers.runner import Runner
from events.learning import Decision, LeaderClaimed
from events.rollouts import Task
from tests.consumers.cycling import (
    PATTERN,
    Leading,
    cycle_id,
    diagnosed,
    directed,
    in_round,
    job_over,
    over,
    proposed,
    rejected,
    requested,
    shifted,
    started,
)
from tests.consumers.deciding import composed, produced
from tests.consumers.folding import ended, fold, folded_position, fresh, hash_of


@pytest.fixture
def leading(engine: Engine) -> Leading:
    return Leading(engine)


def cycle(leading: Leading, number: int = 1) -> CycleRow:
    with leading.tables() as connection:
        found = learning.cycle(connection, cycle_id(number))
    assert found is not None
    return found


def names(leading: Leading) -> list[str]:
    with leading.tables() as connection:
        assert rollouts.dead_letters(connection) == []
        return [row.cycle for row in learning.cycles(connection)]


def epoch(leading: Leading) -> tuple[int, str] | None:
    with leading.tables() as connection:
        found = learning.leader(connection)
    return None if found is None else (found.epoch, found.holder)


def test_the_first_claim_of_the_next_epoch_wins_and_no_other(leading: Leading) -> None:
    leading.claim(2, "early")
    assert epoch(leading) is None
    leading.claim(1, "first")
    leading.claim(1, "second")
    assert epoch(leading) == (1, "first")
    leading.claim(3, "early")
    leading.claim(2, "second")
    assert epoch(leading) == (2, "second")


def test_a_decision_of_another_epoch_changes_nothing_and_uses_up_no_id(leading: Leading) -> None:
    leading.say(started(reason="nobody led"), "start", epoch=1)
    leading.claim(1)
    leading.claim(2)
    leading.say(started(reason="late"), "start", epoch=1)
    leading.say(started(reason="early"), "start", epoch=3)
    assert names(leading) == []
    leading.say(started(reason="the leader says so"), "start", epoch=2)
    assert cycle(leading).reason == "the leader says so"


LATER: tuple[tuple[str, Decision], ...] = (
    ("directive", directed()),
    ("task", proposed("shop/1")),
    ("rejection", rejected("it leaks")),
    ("job", requested()),
    ("end", over()),
)


@pytest.mark.parametrize("late", [data for _, data in LATER], ids=[name for name, _ in LATER])
def test_every_kind_of_decision_is_fenced(leading: Leading, late: Decision) -> None:
    leading.claim(1)
    leading.all(started(), epoch=1)
    leading.claim(2)
    before = cycle(leading)
    leading.say(late, "late", epoch=1)
    assert cycle(leading) == before
    leading.say(late, "late", epoch=2)
    assert cycle(leading) != before


def test_a_round_of_a_former_leader_moves_no_priorities(leading: Leading) -> None:
    leading.claim(1)
    leading.all(started(), epoch=1)
    leading.claim(2)
    leading.log.append([ended("one")])
    fold(leading.log, leading.engine)
    reached = folded_position(leading.engine)
    leading.say(diagnosed(reached), "round", epoch=1)
    with leading.tables() as connection:
        assert rollouts.last_round(connection) is None
    leading.say(diagnosed(reached), "round", epoch=2)
    assert cycle(leading).round == 0
    assert cycle(leading).diagnosed is not None


def test_a_cycle_is_diagnosed_once_and_also_where_nothing_was_new(leading: Leading) -> None:
    leading.log.append([ended("one")])
    leading.all(started(), diagnosed({"rollouts": {}}))
    assert cycle(leading).round == 0
    leading.all(diagnosed(folded_position(leading.engine)))
    assert cycle(leading).round == 0
    with leading.tables() as connection:
        last = rollouts.last_round(connection)
    assert last is not None
    assert last.round == 0, "a redo with a newer position closes no second round"
    leading.all(over(), started(2), diagnosed({"rollouts": {}}, 2))
    assert cycle(leading, 2).round == 0, "nothing was new: the last round is read again"
    leading.all(over(2), started(3), diagnosed(folded_position(leading.engine), 3))
    assert cycle(leading, 3).round == 1


def test_an_agent_has_one_open_cycle_and_numbers_without_a_gap(leading: Leading) -> None:
    leading.all(started(2))
    assert names(leading) == []
    leading.all(started(1), started(1), started(2), started(1, base="other"))
    assert names(leading) == [cycle_id(1)]
    leading.all(started(1, alias="another"))
    assert len(names(leading)) == 2
    leading.all(over(1, "rejected"), over(1, "promoted"), started(3), started(2))
    assert names(leading)[0] == cycle_id(2)
    assert cycle(leading, 1).outcome == "rejected", "the first word counts"
    leading.all(over(2), started(1, base="other"))
    assert names(leading)[0] == cycle_id(1, base="other"), "each base counts for itself"


def test_a_cycle_remembers_what_it_wrote(leading: Leading) -> None:
    leading.claim(1)
    leading.all(started(), directed(summary="first"), directed(summary="second"), epoch=1)
    leading.say(proposed("shop/1"), "task-1", epoch=1)
    leading.say(proposed("shop/1-written-anew"), "task-1", epoch=1)
    leading.say(proposed("shop/2"), "task-2", epoch=1)
    leading.say(rejected("it leaks"), "rejection-1", epoch=1)
    leading.say(rejected("it leaks, says the redo"), "rejection-1", epoch=1)
    leading.all(requested(), requested(name="job-2"), epoch=1)
    row = cycle(leading)
    assert (row.summary, row.accepted, row.rejected) == ("first", 2, 1)
    assert row.directive == directed().directive
    assert row.job == requested().job
    with leading.tables() as connection:
        tasks = list(learning.tasks_of(connection, "agent", "base"))
        (rejection,) = learning.rejections_of(connection, row.cycle)
    assert [one.task.id for one in tasks] == ["shop/1", "shop/2"]
    assert tasks[0].task == Task(id="shop/1", environment="shop", gold_actions=())
    assert tasks[0].verified == proposed("shop/1").verified
    assert (tasks[0].cycle, tasks[0].mode, tasks[0].text_by) == (row.cycle, "inherit", "author")
    assert (rejection.check, rejection.reason) == ("leak", "it leaks")


def test_after_its_end_nothing_is_added_to_a_cycle(leading: Leading) -> None:
    leading.all(started(), over(1, "cancelled"))
    before = cycle(leading)
    leading.all(directed(), proposed("shop/1"), rejected("late"), requested())
    assert cycle(leading) == before
    with leading.tables() as connection:
        assert not list(learning.tasks_of(connection, "agent", "base"))
        assert learning.jobs(connection) == []


def test_a_task_is_counted_by_the_cycle_that_wrote_it_first(leading: Leading) -> None:
    leading.all(proposed("shop/0", number=None))
    leading.all(started(), proposed("shop/0"), proposed("shop/1"), over())
    leading.all(started(1, base="other"), proposed("shop/1", base="other"))
    assert cycle(leading).accepted == 1
    with leading.tables() as connection:
        other = learning.cycle(connection, cycle_id(1, base="other"))
        every = list(learning.tasks_of(connection, "agent"))
    assert other is not None
    assert other.accepted == 0
    assert [(one.task.id, one.base) for one in every] == [("shop/0", "base"), ("shop/1", "base")]


def test_of_many_cycles_one_is_read(leading: Leading) -> None:
    leading.all(started(), proposed("shop/1"), over(), started(2), over(2, "cancelled"))
    with leading.tables() as connection:
        newest = learning.newest_cycle(connection)
        assert learning.wrote_last(connection, "agent", "base", cycle_id(2)) == cycle_id(1)
        assert learning.wrote_last(connection, "agent", "base", cycle_id(1)) is None
        assert learning.patterns_of(connection, "agent") == {"shop/1": PATTERN}
    assert newest is not None
    assert newest.number == 2, "none is open"
    leading.all(started(3), started(1, "other"), over(1, alias="other"))
    with leading.tables() as connection:
        newest = learning.newest_cycle(connection)
    assert newest is not None
    assert (newest.alias, newest.number) == ("agent", 3), "it is open"


def test_the_first_end_of_a_job_counts(leading: Leading) -> None:
    leading.all(started(), job_over())
    with leading.tables() as connection:
        assert learning.jobs(connection) == [], "nobody requested it"
    leading.all(requested(minutes=12.5), requested(minutes=99))
    with leading.tables() as connection:
        (waiting,) = learning.open_jobs(connection)
    assert (waiting.minutes, waiting.spec) == (12.5, requested().spec)
    leading.all(job_over(), job_over(outcome="failed"))
    with leading.tables() as connection:
        found = learning.job(connection, waiting.job)
        assert learning.open_jobs(connection) == []
    assert found is not None
    assert (found.outcome, found.seconds, found.attempts) == ("trained", 60.5, 2)
    assert found.spec.sampler.temperature == 0.7


def test_a_round_of_a_job_is_told_once_and_only_of_a_job_of_its_cycle(leading: Leading) -> None:
    leading.all(started(), directed(), in_round(directed()), shifted())
    with leading.tables() as connection:
        assert learning.job_rounds(connection, requested().job) == [], "nobody requested the job"
    leading.all(requested(), shifted(), in_round(directed(2), 1))
    with leading.tables() as connection:
        assert learning.job_rounds(connection, requested().job) == [], "it has no directive yet"
    leading.all(
        in_round(directed()), in_round(proposed("shop/1")), in_round(rejected("it leaks")),
        in_round(directed(summary="again")), shifted(), shifted(share=0.75),
        in_round(directed(), number=2),
    )  # fmt: skip
    with leading.tables() as connection:
        first, second = learning.job_rounds(connection, requested().job)
        cycle = learning.cycle(connection, cycle_id())
    assert (first.tasks, first.rejected, first.rollouts, first.failures) == (("shop/1",), 1, 64, 9)
    assert [pool.share for pool in first.pools] == [0.25], "the first word counts"
    assert (second.number, second.rollouts, second.pools) == (2, None, ())
    assert cycle is not None
    assert (cycle.accepted, cycle.rejected) == (1, 1)
    assert cycle.directive == directed().directive
    leading.all(over(), in_round(directed(), number=3))
    with leading.tables() as connection:
        assert len(learning.job_rounds(connection, requested().job)) == 2
    assert rebuild(leading.log, leading.engine).equal


def test_a_cycle_asks_for_a_job_per_skill_and_one_for_the_router_or_for_one_job(
    leading: Leading,
) -> None:
    router = composed("p", {"refunds": "a"}).panel.router
    leading.all(started(), requested(name="j-refunds", skill="refunds"))
    leading.all(
        requested(name="again", skill="refunds"), requested(name="whole"),
        requested(name="j-rebooking", skill="rebooking"), requested(name="j-router", router=router),
        requested(name="another-router", router=router), over(),
        requested(name="late", skill="late"),
    )  # fmt: skip
    leading.all(started(2), requested(2, "alone"), requested(2, "after", skill="refunds"))
    leading.all(requested(2, "router-after", router=router))
    with leading.tables() as connection:
        jobs = learning.list_cycle_jobs(connection, cycle_id())
        alone = learning.list_cycle_jobs(connection, cycle_id(2))
    assert [(job.job, job.branch, job.teaches) for job in jobs] == [
        ("j-refunds", "refunds", None), ("j-rebooking", "rebooking", None),
        ("j-router", None, "router"),
    ]  # fmt: skip
    assert [job.job for job in alone] == ["alone"]
    assert (cycle(leading).job, cycle(leading, 2).job) == ("j-refunds", "alone")
    assert rebuild(leading.log, leading.engine).equal


def test_the_first_panel_that_is_composed_for_an_open_cycle_is_its_panel(leading: Leading) -> None:
    of_cycle = {"cycle": cycle_id()}
    leading.all(composed("early", {"refunds": "a"}, **of_cycle), started(), produced("a"))
    assert cycle(leading).version is None, "its adapter was not there"
    leading.all(composed("by-hand", {"refunds": "a"}), composed("p", {"refunds": "a"}, **of_cycle))
    leading.all(composed("q", {"refunds": "a"}, **of_cycle), over(), started(2))
    leading.all(composed("late", {"refunds": "a"}, **of_cycle))
    assert (cycle(leading).version, cycle(leading, 2).version) == ("p", None)
    with leading.tables() as connection:
        adapters = serving.route_table(connection).adapters
        panels = [row.adapter for row in adapters if not row.has_files]
        refused = [serving.adapter_steps(connection, name)[0].refused for name in ("q", "late")]
    assert panels == ["by-hand", "p"], "no other one waits for a step that never comes"
    assert refused == [f"cycle {cycle_id()} has the panel p"] * 2
    assert rebuild(leading.log, leading.engine).equal


def test_a_cycle_that_is_over_takes_no_panel(leading: Leading) -> None:
    leading.all(started(), produced("a"), over())
    leading.all(composed("late", {"refunds": "a"}, cycle=cycle_id()))
    with leading.tables() as connection:
        (step,) = serving.adapter_steps(connection, "late")
    assert step.refused == f"cycle {cycle_id()} is over"
    assert rebuild(leading.log, leading.engine).equal


def test_the_loop_rebuilds_equal(leading: Leading) -> None:
    leading.claim(1)
    leading.all(started(), directed(), proposed("shop/1"), rejected("it leaks"), epoch=1)
    leading.claim(2)
    leading.all(requested(), epoch=1)
    leading.all(requested(), epoch=2)
    leading.all(job_over())
    leading.all(over(), started(2), epoch=2)
    found = rebuild(leading.log, leading.engine)
    assert (found.equal, found.difference) == (True, None)
    assert PATTERN in {task.pattern for task in _tasks(leading)}


def _tasks(leading: Leading) -> list[learning.BufferTask]:
    with leading.tables() as connection:
        return list(learning.tasks_of(connection, "agent", "base"))


def said_in_round(number: int) -> list[tuple[Decision, str]]:
    """What a job says of its round, each with the name of its event."""
    return [
        (in_round(directed(number), number), f"job-directive-{number}"),
        (in_round(proposed("shop/in", number), number), f"job-task-{number}"),
        (in_round(rejected("it leaks", number), number), f"job-rejection-{number}"),
        (shifted(number), f"job-round-{number}"),
    ]


def muddle(leading: Leading, chance: random.Random, count: int) -> None:
    """Leaders that come and go, each of which says what it believes to be due, or says it again."""
    epoch = 1
    leading.write(LeaderClaimed(epoch=1, holder="p"), "claim-1", None)
    for _ in range(count):
        number, alias = chance.randint(1, 4), chance.choice(["agent", "other"])
        data, name = chance.choice(
            [
                (started(number, alias), f"start-{alias}-{number}"),
                (diagnosed({"rollouts": {}}, number, alias), f"round-{alias}-{number}"),
                (directed(number), f"directive-{number}"),
                (proposed(f"shop/{chance.randint(1, 9)}", number, alias), f"t-{alias}-{number}"),
                (rejected("it leaks", number), f"rejection-{number}-{chance.randint(1, 3)}"),
                (requested(number), f"job-{number}"),
                chance.choice(said_in_round(number)),
                (job_over(number, chance.choice(["trained", "failed"])), f"job-over-{number}"),
                (over(number, chance.choice(["promoted", "failed"]), alias), f"o-{alias}-{number}"),
                (LeaderClaimed(epoch=epoch + chance.randint(0, 2), holder="q"), "claim"),
            ]
        )
        if isinstance(data, LeaderClaimed):
            epoch += data.epoch == epoch + 1
            leading.write(data, f"claim-{chance.random()}", None)
        else:
            leading.write(data, name, chance.choice([epoch, epoch, epoch, epoch - 1, None]))


@pytest.mark.parametrize("seed", range(2))
def test_whatever_is_said_in_whatever_order_a_cycle_is_one_cycle(seed: int, tmp_path: Path) -> None:
    leading = Leading(fresh(tmp_path, "at-once"))
    muddle(leading, random.Random(seed), 150)
    fold(leading.log, leading.engine)
    with leading.tables() as connection:
        assert rollouts.dead_letters(connection) == []
        rows = learning.cycles(connection)
        tasks = [
            task for alias in ("agent", "other") for task in learning.tasks_of(connection, alias)
        ]
        jobs = learning.jobs(connection)
    numbers = {
        alias: [row.number for row in rows if row.alias == alias] for alias in ("agent", "other")
    }
    assert all(found == list(range(len(found), 0, -1)) for found in numbers.values())
    assert all(Counter(row.alias for row in rows if row.outcome is None)[a] <= 1 for a in numbers)
    assert {row.cycle: row.accepted for row in rows} == {
        row.cycle: sum(task.cycle == row.cycle for task in tasks) for row in rows
    }
    assert {row.job for row in rows if row.job} == {job.job for job in jobs}
    assert rows, "something was begun"
    one_by_one = fresh(tmp_path, "one-by-one")
    Runner(leading.log, one_by_one, batch_events=1).catch_up()
    assert hash_of(one_by_one) == hash_of(leading.engine)
    assert rebuild(leading.log, leading.engine).equal
