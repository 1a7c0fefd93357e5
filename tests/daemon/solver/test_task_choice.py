"""Which tasks a batch tries: by share, by need, each before any again, and nothing by accident."""

from collections import Counter
from typing import Any

import pytest

from daemon.solver.task_choice import Choice
from daemon.solver.trajectory import Trajectory
from events.jobs import JobSpec
from tests.daemon.solver.tiny import trajectory

POOLS: list[dict[str, Any]] = [
    {"name": "hard", "share": 1, "tasks": [f"hard/{n}" for n in range(50)]},
    {"name": "easy", "share": 1, "tasks": [f"easy/{n}" for n in range(50)]},
    {"name": "kept", "share": 0.5, "tasks": [f"kept/{n}" for n in range(50)], "replay": True},
]


def spec(**changes: Any) -> JobSpec:
    given = {
        "job": "j",
        "base": "b",
        "checkpoint": "c",
        "environment": "e",
        "pools": POOLS,
        "sampler": {"groups": 10, **changes.pop("sampler", {})},
    }
    return JobSpec.model_validate(given | changes)


def verdicts(task: str, *passed: bool) -> list[Trajectory]:
    return [
        trajectory(rollout=f"{task} {n}", group=task, task=task, success=verdict)
        for n, verdict in enumerate(passed)
    ]


def pools_of(tasks: list[str]) -> Counter[str]:
    return Counter(task.partition("/")[0] for task in tasks)


def test_groups_follow_the_shares() -> None:
    choice = Choice(spec())
    for batch in range(5):
        drawn = pools_of(choice.draw(batch))
        assert sorted(drawn) == ["easy", "hard", "kept"]
        assert (drawn["hard"], drawn["easy"], drawn["kept"]) == (4, 4, 2)


def test_shares_that_are_no_whole_groups_come_out_over_many_batches() -> None:
    choice = Choice(spec(sampler={"groups": 3}))
    drawn = sum((pools_of(choice.draw(batch)) for batch in range(400)), Counter())
    assert drawn["kept"] / 1200 == pytest.approx(0.2, abs=0.02)
    assert drawn["hard"] / 1200 == pytest.approx(0.4, abs=0.02)


def test_a_pool_is_used_up_before_a_task_comes_again() -> None:
    choice = Choice(spec())
    drawn = [task for batch in range(50) for task in choice.draw(batch)]
    for pool in POOLS:
        own = [task for task in drawn if task in pool["tasks"]]
        rounds = [own[start : start + 50] for start in range(0, len(own), 50)]
        assert len(rounds) > 1
        assert all(len(set(part)) == len(part) for part in rounds)
    hard = [task for task in drawn if task in POOLS[0]["tasks"]]
    assert hard[:50] != POOLS[0]["tasks"], "in shuffled order"
    assert hard[:50] != hard[50:100], "shuffled anew"


def test_what_is_passed_gives_its_place_to_what_is_not_and_replay_keeps_its_own() -> None:
    choice = Choice(spec(sampler={"momentum": 0.5}))
    for n in range(6):
        choice.add(verdicts(f"easy/{n}", True, True, True, False))
        choice.add(verdicts(f"hard/{n}", False, False, False, False))
        choice.add(verdicts(f"kept/{n}", True, True, True, True))
    assert choice.passed == pytest.approx({"easy": 0.75, "hard": 0.0, "kept": 1.0})
    assert choice.shares() == pytest.approx({"hard": 0.64, "easy": 0.16, "kept": 0.2})


def test_a_pool_that_is_always_passed_keeps_a_little() -> None:
    choice = Choice(spec())
    choice.add(verdicts("easy/0", True, True))
    choice.add(verdicts("hard/0", True, True))
    assert choice.shares() == pytest.approx({"hard": 0.4, "easy": 0.4, "kept": 0.2})
    choice.add([t for n in range(60) for t in verdicts(f"hard/{n % 50}", False, False)])
    shares = choice.shares()
    assert 0 < shares["easy"] < 0.05
    assert sum(shares.values()) == pytest.approx(1)


def test_shares_stay_where_they_are_not_to_adapt() -> None:
    choice = Choice(spec(sampler={"adaptive": False}))
    choice.add(verdicts("easy/0", True, True))
    assert choice.shares() == pytest.approx({"hard": 0.4, "easy": 0.4, "kept": 0.2})


def test_unjudged_rollouts_move_nothing() -> None:
    choice = Choice(spec())
    choice.add([trajectory(task="easy/0", group="g", success=None, reward=None)])
    assert choice.passed == {}


def test_the_same_history_draws_the_same_tasks_and_another_seed_others() -> None:
    first, second = Choice(spec()), Choice(spec())
    other = Choice(spec(seed=1))
    for batch in range(5):
        drawn = first.draw(batch)
        assert drawn == second.draw(batch)
        assert drawn != other.draw(batch)
        for task in drawn:
            first.add(verdicts(task, True, False))
            second.add(verdicts(task, True, False))


def split_environments(kind: str) -> JobSpec:
    pools = [
        {"name": "near", "share": 2, "tasks": [f"near/{n}" for n in range(50)]},
        {"name": "far", "share": 1, "tasks": [f"far/{n}" for n in range(50)], "environment": "f"},
        {"name": "home", "share": 1, "tasks": [f"home/{n}" for n in range(50)], "environment": "e"},
    ]
    return spec(pools=pools, sampler={"groups": 4, "environments": kind, "adaptive": False})


def test_a_batch_mixes_environments_unless_they_are_kept_apart() -> None:
    mixed = pools_of(Choice(split_environments("mixed")).draw(0))
    assert mixed == {"near": 2, "far": 1, "home": 1}


def test_environments_kept_apart_have_their_share_of_the_batches() -> None:
    choice = Choice(split_environments("apart"))
    batches = [pools_of(choice.draw(batch)) for batch in range(40)]
    assert all(set(batch) in ({"near", "home"}, {"far"}) for batch in batches)
    assert [set(batch) == {"far"} for batch in batches].count(True) == 10
    drawn = sum(batches, Counter())
    assert drawn["far"] == 40
    assert drawn["near"] == pytest.approx(80, abs=4)


def test_a_refill_stays_in_the_environment_of_its_batch() -> None:
    choice = Choice(split_environments("apart"))
    for batch in range(0, 40, 2):
        first = pools_of(choice.draw(batch))
        assert (set(first) == {"far"}) == (
            set(pools_of(choice.draw(batch + 1, refill=True))) == {"far"}
        )


def test_a_share_that_changes_moves_the_batches_to_come_alone() -> None:
    sampler = {"groups": 4, "environments": "apart", "adaptive": True, "momentum": 0}
    pools = [
        {"name": "near", "tasks": [f"near/{n}" for n in range(50)]},
        {"name": "far", "tasks": [f"far/{n}" for n in range(50)], "environment": "f"},
    ]
    choice = Choice(spec(pools=pools, sampler=sampler))

    def draw_batches(count: int, *, near_passes: bool) -> Counter[str]:
        drawn: Counter[str] = Counter()
        for _ in range(count):
            tasks = choice.draw(drawn.total())
            (name,) = pools_of(tasks)
            drawn[name] += 1
            passes = near_passes and name == "near"
            choice.add([v for task in tasks for v in verdicts(task, passes, passes)])
        return drawn

    assert draw_batches(42, near_passes=True)["far"] >= 38
    draw_batches(42, near_passes=False)
    assert draw_batches(10, near_passes=False) == {"near": 5, "far": 5}
