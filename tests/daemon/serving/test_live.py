"""The live guard: rolls back what does worse, promotes what does not, and else waits."""

from random import Random

import pytest

from consumers.judged import Behaviour
from daemon.serving.live import Arm, LiveGuard, on_silence


def watched(seed: int, incumbent: float, canary: float, sessions: int) -> LiveGuard:
    """A guard after sessions whose chances of success are these."""
    chance, guard = Random(seed), LiveGuard(margin=0.05)
    for _ in range(sessions):
        arm: Arm = chance.choice(("canary", "incumbent"))
        rate = canary if arm == "canary" else incumbent
        guard.judged(arm, chance.choice(("a", "b")), chance.random() < rate)
    return guard


def outcomes(incumbent: float, canary: float, sessions: int, runs: int = 200) -> list[str | None]:
    return [watched(seed, incumbent, canary, sessions).outcome for seed in range(runs)]


def test_an_equal_canary_is_rarely_rolled_back() -> None:
    assert outcomes(0.7, 0.7, 1_000).count("roll_back") / 200 <= 0.05


def test_a_canary_that_is_worse_by_the_margin_is_rarely_promoted() -> None:
    assert outcomes(0.7, 0.65, 1_000).count("promote") / 200 <= 0.05


def test_a_much_worse_canary_is_rolled_back_soon() -> None:
    assert outcomes(0.8, 0.4, 300).count("roll_back") >= 195


def test_a_better_canary_is_promoted_soon() -> None:
    assert outcomes(0.6, 0.85, 400).count("promote") >= 190


def test_sessions_are_paired_within_their_slice_in_the_order_they_came() -> None:
    guard = LiveGuard(margin=0.05)
    for _ in range(3):
        guard.judged("canary", "a", False)
    guard.judged("incumbent", "b", True)
    assert guard.pairs == 0
    guard.judged("incumbent", "a", True)
    assert guard.pairs == 1
    assert guard.against > 0.99


def test_what_was_decided_stays_decided() -> None:
    guard = LiveGuard(margin=0.05)
    for _ in range(200):
        guard.judged("canary", "a", False)
        guard.judged("incumbent", "a", True)
    assert guard.outcome == "roll_back"
    assert guard.pairs < 200
    for _ in range(1_000):
        guard.judged("canary", "a", True)
        guard.judged("incumbent", "a", False)
    assert guard.outcome == "roll_back"


@pytest.mark.parametrize("counted", ["tool_errors", "loops", "format_errors"])
def test_in_silence_conduct_that_got_worse_rolls_back(counted: str) -> None:
    before = Behaviour(sessions=400, tool_errors=8, loops=8, format_errors=8)
    counts = {"tool_errors": 1, "loops": 1, "format_errors": 1} | {counted: 9}
    assert on_silence(Behaviour(sessions=50, **counts), before) == "roll_back"


def test_silence_never_promotes() -> None:
    before = Behaviour(sessions=400, tool_errors=80, loops=80, format_errors=80)
    assert on_silence(Behaviour(50, 0, 0, 0), before) == "inconclusive"
    assert on_silence(Behaviour(0, 0, 0, 0), before) == "inconclusive"
