"""Reflection by rule: what failures change, and which changes stay."""

from random import Random

import pytest

from daemon.synthesis.planner import plan_by_rule
from daemon.synthesis.protocols import Failure, PlanHistory, PlanRequest
from daemon.synthesis.reflection import (
    SURE,
    Arm,
    Evidence,
    RuleReviser,
    Trial,
    choose_arm,
    compute_chance,
    decide_trials,
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
    assert draft.check == "provenance"
    assert draft.reason == "of 10 tries 5 were accepted; failed: provenance (3), leak (2)"
    assert len(draft.failures) == 5
    assert draft.plan.plan == PLAN.plan


def test_a_check_that_failed_once_in_many_tries_asks_for_nothing() -> None:
    assert revise(failures("writing", "leak", 1), tries=30) is None
    assert revise([], tries=30) is None


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


def test_changes_against_one_check_are_judged_together_and_each_must_hold() -> None:
    trials = [
        Trial("leak", Arm(6, 3), Arm(5, 5)),
        Trial("leak", Arm(5, 2), Arm(6, 5)),
        Trial("leak", Arm(6, 2), Arm(5, 5)),
        Trial("leak", Arm(4, 4), Arm(6, 0)),
        Trial("leak", Arm(6, 3), Arm()),
        Trial("gold", Arm(6, 3), Arm(6, 4)),
    ]
    evidence = Evidence()
    for trial in trials:
        evidence.add(trial)
    assert evidence.compute_chance("leak") < SURE
    assert not any(decide_trials(trials, evidence))
    for _ in range(3):
        evidence.add(Trial("leak", Arm(6, 3), Arm(6, 6)))
    assert decide_trials(trials, evidence) == [True, True, True, False, False, False]


def test_a_plan_alone_may_prove_its_change() -> None:
    trial = Trial("leak", Arm(12, 2), Arm(12, 11))
    evidence = Evidence()
    evidence.add(Trial("leak", Arm(60, 50), Arm(60, 40)))
    evidence.add(trial)
    assert decide_trials([trial], evidence) == [True]


def test_the_gain_of_a_round_is_weighted_by_the_share_of_its_plans() -> None:
    trials = [Trial("leak", Arm(10, 5), Arm(10, 9)), Trial("gold", Arm(10, 5), Arm(10, 7))]
    assert measure_gain(trials, 4) == pytest.approx(0.15)
    assert measure_gain([Trial("leak", Arm(), Arm(4, 4))], 4) == 0
    assert measure_gain([], 4) == 0


def test_places_alternate_until_the_change_is_proven() -> None:
    assert [choose_arm(number, is_proven=False) for number in range(4)] == [
        True, False, True, False,
    ]  # fmt: skip
    assert all(choose_arm(number, is_proven=True) for number in range(4))
