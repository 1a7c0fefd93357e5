"""The simulated rounds from which a rule about examples is judged."""

from envs.retail.environment import Retail
from ops.learning.written_tasks import compare_rules, draw_round

RETAIL = Retail()
TASKS = {kind: [RETAIL.generate(kind, seed) for seed in range(2)] for kind in RETAIL.capabilities}


def test_a_round_fails_at_what_was_planted_and_is_the_same_again() -> None:
    drawn = draw_round(RETAIL, TASKS, "find_order", (0.0, 1.0, 1.0), 1)
    assert drawn == draw_round(RETAIL, TASKS, "find_order", (0.0, 1.0, 1.0), 1)
    failures, rates, labels = drawn
    assert {labels[failure.task_key] for failure in failures} == {"find_order"}
    assert sum(rate.attempts - rate.passes for rate in rates) == len(failures) > 0


def test_without_noise_both_rules_follow_the_weakness_alone() -> None:
    assert compare_rules(RETAIL, TASKS, "find_order", (0.0, 1.0, 1.0), 1) == (1.0, 1.0)


def test_a_round_without_planted_failures_compares_nothing() -> None:
    assert compare_rules(RETAIL, TASKS, "find_order", (0.5, 1.0, 0.0), 1) is None


def test_noise_in_kinds_that_are_mastered_is_not_followed() -> None:
    pairs = [
        pair for seed in range(10)
        if (pair := compare_rules(RETAIL, TASKS, "find_order", (0.08, 1.0, 0.9), seed))
    ]  # fmt: skip
    assert sum(new for _, new in pairs) > sum(old for old, _ in pairs)
