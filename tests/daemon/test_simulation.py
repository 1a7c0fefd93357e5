"""The loop under crashes, pauses and changes of leader: it holds for every seed, and no longer once
one of its defences is taken away."""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.daemon.invariants import Broken
from tests.daemon.simulation import World

SEEDS = (1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3)))
MUTANT_SEEDS = 12
"""Within so many a mutant has to be found; each test begins where it is found soon."""


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_happens_to_two_daemons_a_cycle_is_one_cycle(seed: int, tmp_path: Path) -> None:
    world = World(tmp_path, seed)
    world.run(cycles=4)
    print(
        f"seed {seed}: {world.crashes} crashes, {world.pauses} pauses, "
        f"{world.inspection.ignored} decisions of former leaders"
    )
    assert world.inspection.over == 4
    assert world.crashes
    assert world.pauses


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (4, 5))]
)
def test_a_person_who_replaces_the_incumbent_at_any_moment_stops_no_cycle(
    seed: int, tmp_path: Path
) -> None:
    world = World(tmp_path, seed, has_person=True)
    world.run(cycles=4)
    print(f"seed {seed}: {world.replacements} replacements, {world.crashes} crashes")
    assert world.inspection.over == 4
    assert world.replacements


def broken(folder: Path, first: int, reconciles: bool = True) -> Iterator[str]:
    """What the seeds say of a mutant."""
    for seed in range(first, first + MUTANT_SEEDS):
        try:
            World(folder / str(seed), seed, reconciles).run(cycles=4)
        except Broken as error:
            yield f"seed {seed}: {error}"


def test_without_the_fence_a_former_leader_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("consumers.folds.rollouts.is_stale_epoch", lambda folding, batch: False)
    found = next(broken(tmp_path, first=1), None)
    print(found)
    assert found is not None
    assert "a former leader" in found


def test_with_ids_that_do_not_follow_from_the_cycle_steps_count_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random_id = lambda *parts: str(uuid4())  # noqa: E731
    monkeypatch.setattr("daemon.core.decision_log.derive_id", random_id)
    found = next(broken(tmp_path, first=6), None)
    print(found)
    assert found is not None
    assert "twice" in found


def test_without_reconciling_gateways_answer_with_what_no_log_names(tmp_path: Path) -> None:
    found = next(broken(tmp_path, first=3, reconciles=False), None)
    print(found)
    assert found is not None
    assert "the log says" in found
