"""Mixing: shares sum to one, open tasks weigh most, and what is passed retires."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.methods.lessons.task_writer import POOL
from daemon.proposer.buffer import REPLAY, SIBLINGS, TRAFFIC, PoolEntry, PoolMix, pools
from events.jobs import JobSpec, TaskPool
from events.learning import OPERATOR

PATTERNS = ("a|x", "b|y", "c|*")


@st.composite
def buffers(draw: st.DrawFn) -> list[PoolEntry]:
    made = []
    for number in range(draw(st.integers(0, 12))):
        attempts = draw(st.integers(0, 16))
        passes = draw(st.integers(0, attempts))
        made.append(PoolEntry(f"t{number}", draw(st.sampled_from(PATTERNS)), attempts, passes))
    return made


@given(
    buffers(),
    st.fixed_dictionaries({name: st.one_of(st.just(0.0), st.floats(0.01, 5)) for name in PATTERNS}),
    st.integers(0, 3),
    st.integers(0, 4),
    st.integers(1, 12),
)
def test_shares_sum_to_one_and_every_task_stands_once(
    buffered: list[PoolEntry],
    priorities: Mapping[str, float],
    traffic: int,
    siblings: int,
    number: int,
) -> None:
    near = [f"s{n}" for n in range(siblings)]
    made = pools(buffered, priorities, [f"o{n}" for n in range(traffic)], number, None, near)
    aimed = [one for one in buffered if not one.retires and priorities[one.pattern] > 0]
    assert bool(made) == bool(aimed)
    if not made:
        return
    assert sum(pool.share for pool in made) == pytest.approx(1)
    drawn = [task for pool in made for task in pool.tasks]
    assert len(drawn) == len(set(drawn))
    assert {one.task for one in aimed} <= set(drawn)
    targeted = sum(pool.share for pool in made if not pool.replay)
    kept = 0.95 if len(aimed) < len(buffered) else 1.0
    assert targeted == pytest.approx(kept * (min(0.5, 0.1 * number) if traffic else 1))
    assert len(drawn) == len(buffered) + traffic + (siblings if traffic else 0)
    JobSpec(job="job", base="base", checkpoint="/base", environment="shop", pools=made)


def test_tasks_that_an_operator_added_have_a_share_of_their_own_until_they_are_passed() -> None:
    entries = [
        PoolEntry("t1", "a|x"), PoolEntry("t2", "a|x", 16, 16), PoolEntry("o1", OPERATOR),
        PoolEntry("o2", OPERATOR, 8, 2), PoolEntry("o3", OPERATOR, 16, 16),
    ]  # fmt: skip
    made = by_name(pools(entries, {"a|x": 1.0}, ["w1"], 5))
    own = made[OPERATOR]
    assert (own.tasks, own.replay, own.share) == (("o1", "o2"), True, 0.1)
    assert set(made[REPLAY].tasks) == {"t2", "o3"}
    assert sum(pool.share for pool in made.values()) == pytest.approx(1)
    assert made["a|x"].share == pytest.approx(0.9 * 0.95 * 0.5)
    none = by_name(pools(entries, {"a|x": 1.0}, ["w1"], 5, PoolMix(operator=0.0)))
    assert OPERATOR not in none
    assert pools(entries, {"a|x": 0.0}, ["w1"], 5) == (), "alone they make no job"


def by_name(made: tuple[TaskPool, ...]) -> dict[str, TaskPool]:
    return {pool.name: pool for pool in made}


def test_priority_and_open_outcomes_weigh() -> None:
    even, mostly = PoolEntry("t1", "a|x", 8, 4), PoolEntry("t2", "b|y", 8, 7)
    made = by_name(pools([even, mostly], {"a|x": 1.0, "b|y": 1.0}, [], 1))
    assert made["a|x"].share == pytest.approx(1 / (1 + mostly.openness))
    assert list(made) == ["a|x", "b|y"]
    made = by_name(pools([even, mostly], {"a|x": 1.0, "b|y": 9.0}, [], 1))
    assert list(made) == ["b|y", "a|x"]


def test_what_is_always_passed_retires_into_the_replay() -> None:
    done, open_ = PoolEntry("t1", "a|x", 16, 16), PoolEntry("t2", "a|x", 16, 15)
    assert done.retires
    assert not open_.retires
    assert PoolEntry("t3", "a|x", 8, 8).retires, "a group of a job"
    assert not PoolEntry("t4", "a|x", 7, 7).retires
    assert not PoolEntry("t5", "a|x", 8, 7).retires
    made = by_name(pools([done, open_], {"a|x": 1.0}, ["o1"], 9))
    assert made[REPLAY].tasks == ("t1",)
    assert made[REPLAY].share == 0.05
    assert made[REPLAY].replay
    assert made[TRAFFIC].replay
    assert made[TRAFFIC].share == pytest.approx(0.95 * 0.5)
    assert pools([done], {"a|x": 1.0}, ["o1"], 9) == ()


def test_a_pattern_has_the_share_of_its_priority_whatever_the_number_of_its_tasks() -> None:
    buffered = [PoolEntry(f"t{number}", "a|x") for number in range(9)] + [PoolEntry("u", "b|y")]
    made = by_name(pools(buffered, {"a|x": 1.0, "b|y": 1.0}, [], 1))
    assert made["a|x"].share == pytest.approx(made["b|y"].share)


def test_the_tasks_of_a_pattern_that_fails_no_more_are_replayed() -> None:
    buffered = [PoolEntry("t1", "a|x"), PoolEntry("t2", "b|y")]
    made = by_name(pools(buffered, {"a|x": 1.0}, [], 1))
    assert {name: pool.tasks for name, pool in made.items()} == {"a|x": ("t1",), REPLAY: ("t2",)}
    assert made[REPLAY].replay


def test_siblings_have_their_part_of_the_traffic() -> None:
    mixing = PoolMix(step=0.6, most=0.6, siblings=0.75)
    entry, traffic = PoolEntry("t1", "a|x"), ["o1", "o2"]
    made = by_name(pools([entry], {"a|x": 1.0}, traffic, 1, mixing, ["o3"]))
    assert made[SIBLINGS].tasks == ("o3",)
    assert made[SIBLINGS].replay
    assert made[SIBLINGS].share == pytest.approx(0.3)
    assert made[TRAFFIC].tasks == ("o1", "o2")
    assert made[TRAFFIC].share == pytest.approx(0.1)
    alone = by_name(pools([entry], {"a|x": 1.0}, traffic, 1, mixing))
    assert alone[TRAFFIC].share == pytest.approx(0.4), "nothing is near to what failed"


def test_how_much_is_aimed_is_a_setting() -> None:
    mixing = PoolMix(step=0.9, most=0.9)
    made = by_name(pools([PoolEntry("t1", "a|x")], {"a|x": 1.0}, ["o1"], 1, mixing))
    assert made["a|x"].share == pytest.approx(0.9)
    assert [PoolMix().compute_target_share(number) for number in (0, 1, 3, 5, 99)] == pytest.approx(
        [0.1, 0.1, 0.3, 0.5, 0.5]
    )


def test_lessons_of_a_pattern_are_a_pool_with_their_part_of_its_share_at_most_half() -> None:
    tasks = [PoolEntry("t1", "a|x"), PoolEntry("t2", "b|y"), PoolEntry("t3", "b|y")]
    lessons = [PoolEntry("t4", "b|y", own_pool=POOL), PoolEntry("t5", "c|*", own_pool=POOL)]
    priorities = {"a|x": 1.0, "b|y": 1.0, "c|*": 1.0}
    made = {pool.name: pool for pool in pools([*tasks, *lessons], priorities, (), 1)}
    assert {name: pool.tasks for name, pool in made.items()} == {
        "a|x": ("t1",), "b|y": ("t2", "t3"), "lessons: b|y": ("t4",), "lessons: c|*": ("t5",),
    }  # fmt: skip
    assert {name for name, pool in made.items() if pool.reward == "both"} == {
        "lessons: b|y",
        "lessons: c|*",
    }
    assert made["b|y"].share == pytest.approx(2 / 9)
    assert made["lessons: b|y"].share == pytest.approx(1 / 9)
    more = [*tasks, *lessons, *(PoolEntry(f"m{n}", "b|y", own_pool=POOL) for n in range(8))]
    made = {pool.name: pool for pool in pools(more, priorities, (), 1)}
    assert made["b|y"].share == made["lessons: b|y"].share == pytest.approx(1 / 6)
    assert made["lessons: c|*"].share == pytest.approx(1 / 3)
    long = "x" * 127
    (only,) = pools([PoolEntry("t1", long, own_pool=POOL)], {long: 1.0}, (), 1)
    assert len(only.name) <= 128
