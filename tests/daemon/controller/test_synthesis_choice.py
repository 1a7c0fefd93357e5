"""Plans step in where the checks rejected half of a pattern's tries, and stay while they work."""

import pytest

from daemon.controller.directive import choose_modes, describe_directive, directive
from daemon.controller.refusals import Refusals
from daemon.methods.synthesis.choice import choose_patterns, count_tries
from events.learning import Check, Mode, PlanName, TaskProposed, TaskRejected
from events.rollouts import Task
from tests.consumers.cycling import cycle_id
from tests.daemon.controller.test_directive import PATTERNS, line

NAME = PATTERNS[0]


def accepted(mode: Mode = "inherit") -> TaskProposed:
    task = Task(id="shop/cancel/1", environment="shop")
    return TaskProposed(
        alias="agent", base="base", task=task, pattern=NAME, cycle=cycle_id(), mode=mode
    )


def rejected(mode: Mode = "explore", check: Check = "leak") -> TaskRejected:
    return TaskRejected(
        cycle=cycle_id(), alias="agent", base="base", pattern=NAME, mode=mode, check=check,
        reason="it names a tool",
        plan=PlanName(plans="set", plan="00", revision=0) if mode == "synthesize" else None,
    )  # fmt: skip


def test_plans_step_in_where_half_of_all_tries_of_a_pattern_were_rejected() -> None:
    tries = count_tries([accepted()] * 3, [rejected(), rejected(check="novelty"), rejected()])
    assert choose_patterns("auto", PATTERNS, tries) == {
        NAME: "the checks rejected 3 of 6 (leak 2, novelty 1) of the tries by templates of the "
        "cycle before"
    }
    fewer = count_tries([accepted()] * 4, [rejected()] * 3)
    assert choose_patterns("auto", PATTERNS, fewer) == {}
    assert "3 of 7" in fewer[NAME].explain_templates()


def test_lessons_and_tasks_of_the_buffer_are_no_tries() -> None:
    unplayable = rejected().model_copy(update={"mode": None, "task": "shop/=1"})
    assert count_tries([accepted("repair")], [rejected("repair"), unplayable]) == {}
    assert choose_patterns("auto", PATTERNS, {}) == {}


def test_plans_stay_while_they_work_and_templates_have_their_turn_again_then() -> None:
    work = count_tries([accepted("synthesize")] * 3, [rejected("synthesize"), rejected()])
    assert choose_patterns("auto", [NAME], work) == {
        NAME: "plans wrote for it in the cycle before, and the checks rejected only 1 of 4 (leak "
        "1) of their tries"
    }
    fail = count_tries([accepted("synthesize")], [rejected("synthesize"), rejected()])
    assert choose_patterns("auto", [NAME], fail) == {}
    assert "by plans" in fail[NAME].explain_templates()


def test_why_a_set_of_plans_was_refused_is_no_try() -> None:
    refusal = rejected("synthesize").model_copy(update={"plan": None})
    tries = count_tries([accepted("synthesize")], [refusal])
    assert (tries[NAME].plans.total, tries[NAME].plans.are_bad) == (1, False)
    assert count_tries([], [refusal]) == {}


@pytest.mark.parametrize("bad", [True, False])
def test_always_means_every_pattern_and_off_none(bad: bool) -> None:
    tries = count_tries([], [rejected()]) if bad else {}
    assert choose_patterns("always", PATTERNS[:2], tries).keys() == set(PATTERNS[:2])
    assert choose_patterns("off", PATTERNS, tries) == {}


def test_a_quota_says_why_and_lessons_keep_their_half() -> None:
    made = directive([line(NAME, 1.0)], (), (), (), (), 8, None, {NAME: "because"})
    (choice,) = made.quotas[0].modes
    assert choice.model_dump() == {"mode": "synthesize", "tasks": 4, "reason": "because"}
    assert "Of them 4 by synthesize: because." in describe_directive(made)
    both = choose_modes(9, Refusals(4, 4), "because")
    assert [(choice.mode, choice.tasks) for choice in both] == [("repair", 4), ("synthesize", 5)]
    assert [choice.mode for choice in choose_modes(1, Refusals(4, 4), "because")] == ["synthesize"]
    assert choose_modes(9, Refusals(4, 0), None) == ()
