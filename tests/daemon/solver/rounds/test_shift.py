"""What a job draws from after a round."""

import pytest

from daemon.proposer.buffer import REPLAY, TRAFFIC, PoolEntry
from daemon.solver.rounds.shift import describe_shift, shift_pools
from events.jobs import TaskPool

BEFORE = (
    TaskPool(name="loop|*", share=0.3, tasks=("a", "b")),
    TaskPool(name="gone|*", share=0.2, tasks=("c",)),
    TaskPool(name=TRAFFIC, share=0.5, tasks=("t",), replay=True),
)


def shares(pools: tuple[TaskPool, ...]) -> dict[str, float]:
    return {pool.name: round(pool.share, 6) for pool in pools}


def test_open_patterns_share_what_written_tasks_have_by_priority_and_openness() -> None:
    entries = [
        PoolEntry("a", "loop|*", 16, 7),
        PoolEntry("b", "loop|*", 16, 15),
        PoolEntry("c", "gone|*"),
        PoolEntry("d", "new|*"),
    ]
    after = shift_pools(BEFORE, entries, {"loop|*": 0.2, "new|*": 0.1, "gone|*": 0.1}, 0.05)
    # b is passed (16 of 18 is below .9), so it weighs little: 4 * 16/18 * 2/18.
    weights = {
        "loop|*": 0.2 * (4 * (8 / 18) * (10 / 18) + 4 * (16 / 18) * (2 / 18)),
        "new|*": 0.1,
        "gone|*": 0.1,
    }
    whole = sum(weights.values())
    assert shares(after) == {
        **{name: round(0.5 * weight / whole, 6) for name, weight in weights.items()},
        TRAFFIC: 0.5,
    }
    assert sum(pool.share for pool in after) == pytest.approx(1)


def test_a_passed_task_and_those_of_a_resolved_pattern_are_replayed() -> None:
    entries = [
        PoolEntry("a", "loop|*", 16, 16),
        PoolEntry("b", "loop|*", 8, 4),
        PoolEntry("c", "gone|*", 4, 0),
    ]
    after = shift_pools(BEFORE, entries, {"loop|*": 0.2, "gone|*": 0.0}, 0.1)
    assert shares(after) == {"loop|*": 0.45, TRAFFIC: 0.5, REPLAY: 0.05}
    replayed = next(pool for pool in after if pool.name == REPLAY)
    assert (replayed.tasks, replayed.replay) == (("a", "c"), True)
    again = shift_pools(after, entries, {"loop|*": 0.2}, 0.1)
    assert shares(again) == shares(after), "a pool of passed tasks keeps the share that it has"
    failed = [PoolEntry(entry.task, "loop|*", 16, 4) for entry in entries]
    back = shift_pools(after, failed, {"loop|*": 0.2}, 0.1)
    assert shares(back) == {"loop|*": 0.5, TRAFFIC: 0.5}, "an empty one gives it back"


def test_what_earlier_cycles_taught_is_replayed_to_the_end_of_the_job() -> None:
    """The job aims at none of it, so no round judges it."""
    pools = (*BEFORE, TaskPool(name=REPLAY, share=0.1, tasks=("old", "older"), replay=True))
    entries = [PoolEntry("a", "loop|*", 16, 4), PoolEntry("b", "loop|*", 16, 16)]
    after = shift_pools(pools, entries, {"loop|*": 0.2}, 0.1)
    assert shares(after) == {"loop|*": 0.5, TRAFFIC: 0.5, REPLAY: 0.1}
    assert after[-1].tasks == ("old", "older", "b")
    again = shift_pools(after, [PoolEntry("a", "loop|*"), *entries[1:]], {"loop|*": 0.2}, 0.1)
    assert again[-1].tasks == after[-1].tasks


@pytest.mark.parametrize("change", [{"reward": "repair"}, {"environment": "retail"}])
def test_pools_with_rules_of_their_own_stay_as_they_are(change: dict[str, str]) -> None:
    repairs = TaskPool.model_validate({"name": "new|*", "share": 0.4, "tasks": ["r"], **change})
    entries = [
        PoolEntry("a", "loop|*", 16, 4),
        PoolEntry("d", "new|*"),
        PoolEntry("e", "new|*", 16, 16),
    ]
    after = shift_pools((*BEFORE, repairs), entries, {"loop|*": 0.2, "new|*": 0.2}, 0.1)
    assert shares(after) == {"loop|*": 0.5, TRAFFIC: 0.5, "new|*": 0.4}
    assert after[-1] == repairs
    kept = repairs.model_copy(update={"name": REPLAY, "replay": True})
    passed = [PoolEntry("a", "loop|*", 16, 4), PoolEntry("b", "loop|*", 16, 16)]
    after = shift_pools((*BEFORE, kept), passed, {"loop|*": 0.2}, 0.1)
    assert after[-1] == kept
    assert shares(after) == {"loop|*": 0.5, TRAFFIC: 0.5, REPLAY: 0.4}


def test_where_nothing_is_left_to_learn_the_pools_stay() -> None:
    assert shift_pools(BEFORE, [PoolEntry("a", "loop|*", 16, 16)], {"loop|*": 1.0}, 0.1) == BEFORE


def test_a_shift_names_pools_that_are_new_and_gone() -> None:
    after = (
        TaskPool(name="new|*", share=0.5, tasks=("d",)),
        TaskPool(name=TRAFFIC, share=0.5, tasks=("t",), replay=True),
    )
    told = describe_shift(BEFORE, after, {"a": (8, 2), "b": (4, 4)})
    assert [(p.pool, p.before, p.share, p.tasks, p.attempts, p.passes) for p in told] == [
        ("new|*", 0.0, 0.5, 1, 0, 0),
        (TRAFFIC, 0.5, 0.5, 1, 0, 0),
        ("loop|*", 0.3, 0.0, 0, 12, 6),
        ("gone|*", 0.2, 0.0, 0, 0, 0),
    ]
