"""Advantages: the published numbers, and nothing from groups that have nothing to compare."""

import statistics
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as some

from daemon.solver.advantage import advantages, keep
from events.algorithm import AdvantageConfig, FilterConfig, RewardScale

REWARDS = some.lists(some.floats(-2, 2), min_size=1, max_size=12)
CENTERS = get_args(AdvantageConfig.model_fields["center"].annotation)
SCALES = get_args(AdvantageConfig.model_fields["scale"].annotation)


def test_one_success_of_three_has_the_numbers_of_verl_and_slime() -> None:
    found = advantages([1.0, 0.0, 0.0], ["g"] * 3, AdvantageConfig(eps=1e-6))
    assert found == pytest.approx([1.1546985, -0.5773493, -0.5773493], abs=1e-7)


def test_one_success_of_three_has_the_numbers_of_trl_with_its_epsilon() -> None:
    # TRL computes in float32, hence the tolerance.
    found = advantages([1.0, 0.0, 0.0], ["g"] * 3, AdvantageConfig(eps=1e-4))
    assert found == pytest.approx([1.1545004, -0.5772503, -0.5772503], abs=3e-7)


def test_leave_one_out_is_the_reward_less_the_mean_of_the_others() -> None:
    rewards = [1.0, 0.0, 0.25, 0.5]
    config = AdvantageConfig(center="loo", scale="none")
    expected = [
        own - statistics.mean(rewards[:place] + rewards[place + 1 :])
        for place, own in enumerate(rewards)
    ]
    assert advantages(rewards, ["g"] * 4, config) == pytest.approx(expected)


def test_without_scale_the_advantage_is_the_difference_to_the_mean() -> None:
    found = advantages([1.0, 0.0, 0.0, 1.0], list("aabb"), AdvantageConfig(scale="none"))
    assert found == [0.5, -0.5, -0.5, 0.5]


def test_a_population_deviation_divides_by_the_count() -> None:
    found = advantages([1.0, 0.0], ["g"] * 2, AdvantageConfig(ddof=0, eps=0.0))
    assert found == [1.0, -1.0]


def test_the_scale_of_the_batch_is_that_of_all_centred_rewards() -> None:
    rewards, groups = [1.0, 0.0, 3.0, 1.0], list("aabb")
    centred = [0.5, -0.5, 1.0, -1.0]
    config = AdvantageConfig(scale="batch", eps=0.0)
    expected = [value / statistics.stdev(centred) for value in centred]
    assert advantages(rewards, groups, config) == pytest.approx(expected)


def test_by_tokens_a_long_rollout_counts_as_often_as_it_has_tokens() -> None:
    config = AdvantageConfig(center="batch", scale="batch", weight="token", eps=0.0)
    found = advantages([1.0, 0.0], ["a", "b"], config, tokens=[3, 1])
    repeated = [1.0, 1.0, 1.0, 0.0]
    centre, spread = statistics.mean(repeated), statistics.stdev(repeated)
    assert found == pytest.approx([(1 - centre) / spread, -centre / spread])


def test_rewards_are_scaled_before_they_are_compared() -> None:
    config = AdvantageConfig(
        center="none", scale="none", reward=RewardScale(offset=0.5, factor=10.0)
    )
    assert advantages([1.0, 0.0], ["g", "g"], config) == [5.0, -5.0]


@pytest.mark.parametrize("center", ["group", "loo"])
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("rewards", [[0.7], [0.1, 0.1, 0.1], [1.0] * 8, [-0.3] * 7])
def test_groups_of_one_and_of_equal_rewards_give_exactly_zero(
    center: str, scale: str, rewards: list[float]
) -> None:
    config = AdvantageConfig.model_validate({"center": center, "scale": scale})
    beside = [1.0, 0.0, 0.5]
    found = advantages(rewards + beside, ["g"] * len(rewards) + ["other"] * 3, config)
    assert found[: len(rewards)] == [0.0] * len(rewards)
    assert any(found[len(rewards) :])


@given(rewards=REWARDS, center=some.sampled_from(CENTERS), scale=some.sampled_from(SCALES))
def test_equal_rewards_never_explode(rewards: list[float], center: str, scale: str) -> None:
    config = AdvantageConfig.model_validate({"center": center, "scale": scale})
    equal = [rewards[0]] * len(rewards)
    for value in advantages(equal, ["g"] * len(equal), config):
        assert abs(value) <= 2.0


@given(rewards=REWARDS, shift=some.floats(-1, 1))
def test_adding_a_constant_to_a_group_changes_nothing(rewards: list[float], shift: float) -> None:
    config = AdvantageConfig(scale="none")
    groups = ["g"] * len(rewards)
    moved = advantages([reward + shift for reward in rewards], groups, config)
    assert moved == pytest.approx(advantages(rewards, groups, config), abs=1e-9)


@given(rewards=REWARDS)
def test_advantages_of_a_group_sum_to_zero(rewards: list[float]) -> None:
    found = advantages(rewards, ["g"] * len(rewards), AdvantageConfig(scale="none"))
    assert sum(found) == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    ("rewards", "groups", "config", "names"),
    [
        ([1.0], ["a", "b"], AdvantageConfig(), "1 rewards, 2 groups"),
        ([float("nan")], ["a"], AdvantageConfig(), "group a is nan"),
        ([1.0], ["a"], AdvantageConfig(weight="token"), "number of each rollout's tokens"),
    ],
)
def test_bad_input_is_named(
    rewards: list[float], groups: list[str], config: AdvantageConfig, names: str
) -> None:
    with pytest.raises(ValueError, match=names):
        advantages(rewards, groups, config)


SUCCESSES = {"all": [True] * 4, "none": [False] * 4, "half": [True, True, False, False], "gone": []}


def test_only_groups_of_both_verdicts_are_kept() -> None:
    kept = keep(SUCCESSES, FilterConfig())
    assert kept.groups == ("half",)
    assert kept.mixed == {"half"}
    assert kept.informative == 0.25
    assert kept.passed == 0.5


def test_the_filter_may_drop_what_passes_too_often_alone() -> None:
    kept = keep(SUCCESSES, FilterConfig(informative=False, most=0.95))
    assert kept.groups == ("none", "half")


def test_an_empty_batch_keeps_nothing() -> None:
    assert keep({}, FilterConfig()).groups == ()
