"""Figures of rollouts, and the verdicts of a probe."""

from typing import Any

import pytest

from daemon.solver.telemetry.progress import History, compare_figures, complete, gap, probe_pools
from daemon.solver.trajectory import Trajectory, Turn
from events.jobs import JobSpec
from tests.daemon.solver.tiny import trajectory


def spec(**probe: Any) -> JobSpec:
    pools = [
        {"name": name, "tasks": [f"{name}/0"], "replay": name == "kept"}
        for name in ("a", "b", "kept")
    ]
    return JobSpec.model_validate(
        {
            "job": "j",
            "base": "b",
            "checkpoint": "c",
            "environment": "e",
            "pools": pools,
            "probe": {"groups": 4, **probe},
        }
    )


def group(pool: str, name: str, *verdicts: bool | None) -> list[Trajectory]:
    return [
        trajectory(rollout=f"{name} {n}", group=name, task=f"{pool}/0", success=verdict)
        for n, verdict in enumerate(verdicts)
    ]


def history(**groups: list[tuple[bool, ...]]) -> History:
    found = History()
    for pool, verdicts in groups.items():
        batch = [t for n, own in enumerate(verdicts) for t in group(pool, f"{pool} {n}", *own)]
        found.add(batch, pool_of, str.upper)
    return found


def pool_of(task: str) -> str:
    return task.partition("/")[0]


FAILS, PASSES, BOTH = (False,) * 4, (True,) * 4, (True, False, False, False)


def test_rollouts_and_groups_are_counted_by_pool_and_by_kind() -> None:
    found = history(a=[FAILS, BOTH], kept=[PASSES])
    a = found.pools["a"].figures()
    assert (a.attempts, a.passed, a.groups, a.informative) == (8, 0.125, 2, 0.5)
    assert found.capabilities.keys() == {"A/0", "KEPT/0"}
    assert found.pools["kept"].figures().informative == 0
    assert found.pool("never").figures().attempts == 0


def test_what_nobody_judged_is_in_no_figure() -> None:
    found = History()
    found.add(group("a", "g", True, None, False), pool_of, str)
    found.add(group("a", "h", None, None), pool_of, str)
    assert (found.pools["a"].attempts, found.pools["a"].groups) == (2, 1)


def test_a_batch_stands_beside_everything_so_far() -> None:
    both = compare_figures(history(a=[BOTH]).pools, history(a=[BOTH, FAILS], b=[PASSES]).pools)
    assert both["a"].batch is not None
    assert both["a"].batch.groups == 1
    assert both["a"].so_far.groups == 2
    assert both["b"].batch is None


@pytest.mark.parametrize(
    ("groups", "weak", "hopeless"),
    [
        ({"a": [FAILS] * 4, "b": [FAILS] * 4}, ("a", "b"), True),
        ({"a": [FAILS] * 4, "b": [FAILS] * 3 + [BOTH]}, ("a",), False),
        ({"a": [BOTH] * 4, "b": [BOTH] * 4}, (), False),
        ({"a": [PASSES] * 4, "b": [FAILS] * 4}, ("b",), False),
        ({"a": [FAILS] * 9 + [BOTH], "b": [FAILS] * 4}, ("a", "b"), False),
        ({"a": [FAILS] * 4, "b": [FAILS] * 4, "kept": [BOTH] * 4}, ("a", "b"), True),
        ({"a": [FAILS] * 4}, ("a", "b"), True),
    ],
)
def test_a_probe_says_what_is_weak_and_whether_anything_can_be_learnt(
    groups: dict[str, list[tuple[bool, ...]]], weak: tuple[str, ...], hopeless: bool
) -> None:
    found = probe_pools(spec(), history(**groups))
    assert (found.weak, found.hopeless) == (weak, hopeless)


def test_a_probe_waits_for_every_pool_but_replay() -> None:
    assert not complete(spec(), history(a=[FAILS] * 9, b=[FAILS] * 3))
    assert complete(spec(), history(a=[FAILS] * 4, b=[FAILS] * 4))


def test_a_gap_names_every_kind_with_its_figures() -> None:
    said = gap(history(a=[FAILS, FAILS], kept=[PASSES]))
    assert "A/0: 0 of 8 passed, 0 of 2 groups informative" in said
    assert "KEPT/0: 4 of 4 passed" in said
    assert said.endswith("it needs supervised data or a larger model")


def test_a_gap_of_answers_that_were_cut_off_says_what_to_raise() -> None:
    found = History()
    found.add(
        [
            trajectory(Turn((2,), (3,), (-0.1,), truncated=True), rollout=str(n), success=False)
            for n in range(4)
        ],
        pool_of,
        str.upper,
    )
    assert "4 of 4 rollouts end in the middle of an answer; raise sampler.max_tokens" in gap(found)
