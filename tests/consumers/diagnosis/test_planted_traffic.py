"""The priorities find a planted weakness, a broken task and a fix."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from consumers.reads.rollouts import PatternLine
from tests.consumers.diagnosis.planted_traffic import (
    BROKEN_PATTERN,
    Scenario,
    play,
    weak_pattern,
)

SEED = 0


def priority_of(pattern: str, lines: Sequence[PatternLine]) -> float:
    return next((line.priority for line in lines if line.pattern == pattern), 0.0)


@pytest.mark.parametrize(
    "scenario",
    [
        *(Scenario(ids=ids, rounds=3) for ids in ("generated", "loaded", "none")),
        Scenario(large=True, share=0.06, size=256, rounds=3),
    ],
    ids=["generated", "loaded", "none", "beside a large healthy kind with as many failures"],
)
def test_the_weakness_is_first_where_tasks_never_repeat(tmp_path: Path, scenario: Scenario) -> None:
    _, *rounds = play(scenario, SEED, tmp_path)
    assert {lines[0].pattern for lines in rounds} == {weak_pattern(scenario)}


def test_broken_tasks_are_below_the_weakness_once_they_are_known(tmp_path: Path) -> None:
    scenario = Scenario(repeat=True, broken=True, size=512, rounds=3)
    _, *rounds = play(scenario, SEED, tmp_path)
    for lines in rounds:
        assert lines[0].pattern == weak_pattern(scenario)
        assert priority_of(BROKEN_PATTERN, lines) < lines[0].priority


def test_a_fix_is_followed_within_two_rounds(tmp_path: Path) -> None:
    """The weakness then has less than half of the priority that it had."""
    scenario = Scenario(fix=True, rounds=6)
    pattern = weak_pattern(scenario)
    _, _, before, *after = play(scenario, SEED, tmp_path)
    falls = [priority_of(pattern, lines) < priority_of(pattern, before) / 2 for lines in after]
    assert True in falls[:2]
