"""Reflection by rule: what failures change, and which changes stay."""

from collections import Counter
from random import Random

import pytest

from daemon.methods.synthesis.planner import plan_by_rule
from daemon.methods.synthesis.protocols import Failure, PlanHistory, PlanRequest
from daemon.methods.synthesis.reflection import (
    LEAST_GAIN,
    LEAST_SHARE,
    Arm,
    Evidence,
    RuleReviser,
    Trial,
    choose_arm,
    compute_chance,
    decide_trials,
    find_least_gain,
    is_hopeless,
    measure_gain,
)
from envs.shop.environment import Shop
from events.learning import PlanName
from events.synthesis.plans import Aspect, Plan

SHOP = Shop()
PLAN = next(
    plan for plan in plan_by_rule(SHOP, PlanRequest("seed")).entries if plan.manner == "terse"
)


def failures(aspect: Aspect, check: str, count: int) -> list[Failure]:
    return [Failure(f"event-{check}-{n}", aspect, check, "a reason") for n in range(count)]


def revise(failed: list[Failure], tries: int = 10, plan: Plan = PLAN, **fields: object):  # type: ignore[no-untyped-def]
    name = PlanName(plans="set", plan=plan.plan)
    history = PlanHistory(name, plan, tries, tries - len(failed), failed, **fields)  # type: ignore[arg-type]
    return RuleReviser().revise(SHOP, history)


def test_each_check_that_failed_often_adds_a_rule_the_most_frequent_first() -> None:
    draft = revise([*failures("writing", "leak", 2), *failures("writing", "provenance", 3)])
    assert [(rule.aspect, rule.check) for rule in draft.plan.rules] == [
        ("writing", "provenance"), ("writing", "leak"),
    ]  # fmt: skip
    assert draft.checks == ("provenance", "leak")
    assert draft.reason == "of 10 tries 5 were accepted; failed: provenance (3), leak (2)"
    assert len(draft.failures) == 5
    assert draft.plan.plan == PLAN.plan


def test_a_check_that_failed_once_in_many_tries_asks_for_nothing() -> None:
    assert revise(failures("writing", "leak", 1), tries=30) is None
    assert revise([], tries=30) is None


def test_what_failed_twice_in_a_set_asks_for_a_rule_in_all_its_plans() -> None:
    common = failures("writing", "leak", 2)
    draft = revise([], tries=30, common=common)
    assert [rule.check for rule in draft.plan.rules] == ["leak"]
    assert draft.reason == "of 30 tries 30 were accepted; in other plans failed: leak (2)"
    assert draft.failures == ("event-leak-0", "event-leak-1")
    assert revise([], tries=30, common=common[:1]) is None
    assert revise([], tries=30, plan=draft.plan, common=common) is None, "it has the rule"


def test_faults_of_users_guide_the_rollout_and_then_its_manner() -> None:
    first = revise(failures("rollout", "early_end", 4))
    assert [rule.aspect for rule in first.plan.rules] == ["rollout"]
    assert first.plan.manner == PLAN.manner
    second = revise(failures("rollout", "early_end", 4), plan=first.plan)
    assert (second.plan.manner, second.plan.rules) == ("as_is", first.plan.rules)
    assert revise(failures("rollout", "early_end", 4), plan=second.plan) is None


def test_disagreement_of_examiners_is_about_the_judging() -> None:
    draft = revise(failures("judging", "opinion", 4))
    assert [rule.aspect for rule in draft.plan.rules] == ["judging"]
    assert revise(failures("judging", "opinion", 4), plan=draft.plan) is None


def test_a_change_that_was_tried_in_vain_is_not_tried_again() -> None:
    failed = failures("writing", "leak", 3)
    tried = revise(failed).plan
    assert revise(failed, refused=(tried,)) is None


def test_the_chance_is_that_of_two_beta_posteriors() -> None:
    chance = Random("beta")
    before, after = Arm(12, 5), Arm(9, 7)
    draws = 20_000
    better = sum(chance.betavariate(8, 3) > chance.betavariate(6, 8) for _ in range(draws))
    assert compute_chance(before, after) == pytest.approx(better / draws, abs=0.01)
    assert compute_chance(Arm(), Arm()) == pytest.approx(0.5)
    assert compute_chance(Arm(20, 9), Arm(20, 9)) == pytest.approx(0.5)
    assert compute_chance(Arm(200, 0), Arm(200, 200)) == pytest.approx(1.0)
    assert compute_chance(before, after) + compute_chance(after, before) == pytest.approx(1.0)


def arm(tries: int, *checks: str) -> Arm:
    """Tries that were all accepted but for those that failed these checks."""
    return Arm(tries, tries - len(checks), Counter(checks))


def gather(trials: list[Trial]) -> Evidence:
    """What trials show together."""
    evidence = Evidence()
    for trial in trials:
        evidence.add(trial)
    return evidence


def test_changes_are_judged_by_all_tries_of_their_checks_and_each_must_hold() -> None:
    good = [Trial(("leak",), arm(4, *["leak"] * 2), arm(4)) for _ in range(4)]
    bad = Trial(("leak",), arm(4), arm(4, *["gold"] * 3))
    untried = Trial(("leak",), arm(4, "leak"), arm(0))
    other = Trial(("gold",), arm(4, "gold"), arm(4, "gold"))
    trials = [*good, bad, untried, other]
    evidence = gather(trials)
    assert decide_trials(trials, evidence) == [True] * 4 + [False] * 3
    assert [is_hopeless(trial, evidence) for trial in trials] == [False] * 4 + [True, False, False]


def test_a_check_that_fails_less_is_not_enough_where_acceptance_falls() -> None:
    trial = Trial(("leak",), arm(40, *["leak"] * 8), arm(40, *["gold"] * 12))
    evidence = gather([trial])
    assert evidence.compute_less(("leak",)) > 0.99
    assert decide_trials([trial], evidence) == [False]


def test_an_undecided_change_stays_when_later_rounds_show_more() -> None:
    trial = Trial(("leak",), arm(20, "leak"), arm(20))
    evidence = gather([trial])
    assert decide_trials([trial], evidence) == [False]
    assert not is_hopeless(trial, evidence)
    for _ in range(2):
        evidence.add(Trial(("leak",), arm(20, "leak", "leak"), arm(20)))
    assert decide_trials([trial], evidence) == [True]


def test_a_round_must_gain_two_points_or_a_tenth_of_what_fails() -> None:
    assert find_least_gain([Trial(("leak",), arm(10, *["leak"] * 5))]) == LEAST_GAIN
    rare = Trial(("leak",), arm(100, *["leak"] * 5))
    assert find_least_gain([rare]) == pytest.approx(LEAST_SHARE * 0.05)


def test_the_gain_of_a_round_is_weighted_by_the_share_of_its_plans() -> None:
    trials = [Trial(("leak",), Arm(10, 5), Arm(10, 9)), Trial(("gold",), Arm(10, 5), Arm(10, 7))]
    assert measure_gain(trials, 4) == pytest.approx(0.15)
    assert measure_gain([Trial(("leak",), Arm(), Arm(4, 4))], 4) == 0
    assert measure_gain([], 4) == 0


def test_every_second_place_is_tried_by_the_changed_plan() -> None:
    assert [choose_arm(number) for number in range(4)] == [True, False, True, False]
