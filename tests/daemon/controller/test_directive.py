"""The directive: quotas by priority, words by findings, and one template."""

import math

from hypothesis import given
from hypothesis import strategies as st

from consumers.diagnosis.detectors import CATEGORIES
from consumers.reads.evidence import RoundRollout, TaskRate
from consumers.reads.rollouts import PatternLine
from daemon.controller.directive import (
    Failures,
    describe_directive,
    directive,
    find_mastered_tasks,
    find_strengths,
    leave_out_mastered,
)
from daemon.controller.refusals import Refusals
from events.learning import BadTries, PatternFinding
from events.messages import Action


def line(pattern: str, priority: float, status: str = "ACTIVE") -> PatternLine:
    category, pivot = pattern.split("|")
    return PatternLine(
        alias="agent", base="base", pattern=pattern, category=category, pivot=pivot, failures=3,
        attempts=5, passes=2, pass_rate=0.4, priority=priority, status=status,
        examples=["old-1"], round=2, trend=[priority],
    )  # fmt: skip


def finding(pattern: str, *examples: str) -> PatternFinding:
    return PatternFinding(
        pattern=pattern, category=pattern.split("|")[0], description=f"About {pattern}.",
        frequency=len(examples), examples=examples, root_cause="It guesses.",
    )  # fmt: skip


PATTERNS = [f"{name}|cancel_order" for name in CATEGORIES if name != "other"]


@given(
    st.dictionaries(st.sampled_from(PATTERNS), st.one_of(st.just(0.0), st.floats(1e-6, 9))),
    st.integers(0, 60),
)
def test_quotas_are_shared_and_none_is_more_than_half(
    priorities: dict[str, float], most: int
) -> None:
    lines = [line(name, priority) for name, priority in priorities.items()]
    made = directive(lines, (), (), (), (), most)
    tasks = {quota.pattern: quota.tasks for quota in made.quotas}
    wanted = [name for name, priority in priorities.items() if priority > 0]
    cap = math.ceil(most / 2)
    assert sum(tasks.values()) == min(most, cap * len(wanted[:most]))
    assert all(1 <= count <= cap for count in tasks.values())
    assert len(tasks) == min(len(wanted), most)
    ranked = [quota.priority for quota in made.quotas]
    assert ranked == sorted(ranked, reverse=True)
    assert directive(reversed(lines), (), (), (), (), most) == made


def test_without_an_analyzer_every_category_has_words() -> None:
    made = directive([line(name, 1.0) for name in PATTERNS], (), (), (), (), 99)
    assert all("cancel_order" in quota.description for quota in made.quotas)
    (only,) = directive([line("tool_loop|*", 1.0)], (), (), (), (), 4).quotas
    assert only.description == "The agent made the same call again and again."
    assert only.examples == ("old-1",)


def test_examples_are_those_that_were_sampled() -> None:
    sampled = Failures(PATTERNS[0], ("new-1", "new-2"))
    (quota,) = directive([line(PATTERNS[0], 1.0)], [sampled], (), (), (), 4).quotas
    assert quota.examples == ("new-1", "new-2")


def test_a_finding_gives_words_by_its_name_or_by_its_examples_and_never_a_quota() -> None:
    by_name, by_examples, by_neither = PATTERNS[:3]
    failures = [Failures(name, (f"{name}/1", f"{name}/2")) for name in PATTERNS[:3]]
    findings = [
        finding(by_name, f"{by_name}/1"),
        finding(PATTERNS[8], f"{by_examples}/1", f"{by_examples}/2", f"{by_neither}/1"),
    ]
    lines = [line(name, 1.0) for name in PATTERNS[:3]]
    made = directive(lines, failures, findings, (), (), 12)
    words = {quota.pattern: quota.description for quota in made.quotas}
    assert words[by_name] == f"About {by_name}."
    assert words[by_examples] == f"About {PATTERNS[8]}."
    assert words[by_neither].startswith("The agent")
    assert [quota.tasks for quota in made.quotas] == [
        quota.tasks for quota in directive(lines, failures, (), (), (), 12).quotas
    ]


def rate(task: str, gold: tuple[str, ...] | None, attempts: int, passes: int) -> TaskRate:
    actions = None if gold is None else tuple(Action(name=name) for name in gold)
    return TaskRate(task, actions, attempts, passes)


def test_mastered_is_by_what_is_called_and_smoothed() -> None:
    rates = [
        rate("a", ("get", "cancel", "cancel"), 10, 10),
        rate("b", ("get", "cancel"), 10, 10),
        rate("c", ("get", "pay"), 2, 2),
        rate("d", None, 50, 50),
        rate("e", (), 12, 12),
    ]
    found = find_strengths(rates)
    assert [one.task for one in found] == ["get+cancel", "nothing"]
    assert found[0].pass_rate == 21 / 22


def failure(task: str, number: int) -> RoundRollout:
    return RoundRollout(f"{task}/{number}", task, 0.0, "tool_loop", "cancel")


def test_failures_of_mastered_kinds_are_left_out_where_enough_others_are_left() -> None:
    rates = [
        rate("easy", ("get", "cancel"), 20, 19),
        rate("hard", ("find", "cancel"), 5, 1),
        rate("unknown", None, 30, 30),
    ]
    mastered = find_mastered_tasks(rates)
    assert mastered == {"easy"}
    noise = [failure("easy", 1)]
    for others in (
        [failure("hard", n) for n in range(4)],
        [failure("unknown", n) for n in range(4)],
    ):
        assert leave_out_mastered([*noise, *others], mastered) == others
        assert leave_out_mastered([*noise, *others[1:]], mastered) == [*noise, *others[1:]]
    assert leave_out_mastered(noise, mastered) == noise


def bad_tries(pattern: str, tries: int, rejected: int) -> BadTries:
    reasons = ("novelty: the same",)
    return BadTries(
        pattern=pattern, mode="inherit", tries=tries, rejected=rejected, reasons=reasons
    )


def test_the_words_of_a_directive() -> None:
    lines = [
        line("tool_loop|get_order", 2.0, "PERSISTENT"),
        line("wrong_tool|pay", 1.0, "NEW"),
        line("over_cautious|pay", 0.0, "RESOLVED"),
    ]
    findings = [finding("tool_loop|get_order", "r1")]
    rates = [rate("a", ("cancel",), 10, 10)]
    bad = [
        bad_tries("wrong_tool|pay", 5, 4),
        bad_tries("over_cautious|pay", 3, 3),
    ]
    written = describe_directive(directive(lines, (), findings, rates, bad, 6))
    assert written == (
        "Write tasks for these weaknesses of the agent:\n"
        "- 3 tasks for tool_loop|get_order (persistent). About tool_loop|get_order.\n"
        "  Cause: It guesses.\n"
        "- 3 tasks for wrong_tool|pay (new). The agent used another tool than the one that was "
        "called for. The change that it is about is pay.\n"
        "The agent can do this, so its failures there are hardly followed: cancel (92%).\n"
        "These improve by themselves: over_cautious|pay.\n"
        "Of 5 earlier tasks for wrong_tool|pay by inherit, 4 were rejected: novelty: the same"
    ), "nothing is said of what is not written for"


def repairs(refusals: Refusals | None, tasks: int = 8, *bad: BadTries) -> list[tuple[int, str]]:
    """How many of a quota of tasks are lessons, and why."""
    given = None if refusals is None else {PATTERNS[0]: refusals}
    (quota,) = directive([line(PATTERNS[0], 1.0)], (), (), (), bad, 2 * tasks, given).quotas
    assert quota.tasks == tasks
    assert {choice.mode for choice in quota.modes} <= {"repair"}
    return [(choice.tasks, choice.reason) for choice in quota.modes]


def test_half_of_a_quota_are_lessons_where_most_failures_hold_a_refused_call() -> None:
    reason = "7 of 9 failures hold a call that a tool refused"
    assert repairs(Refusals(9, 7)) == [(4, reason)]
    assert repairs(Refusals(9, 7), tasks=3) == [(1, reason)]
    assert repairs(Refusals(9, 7), tasks=1) == []
    assert repairs(Refusals(9, 4)) == repairs(Refusals(8, 4)) == []
    assert repairs(Refusals(1, 1)) == []
    assert repairs(Refusals(2, 2)) != []
    assert repairs(None) == []


def test_lessons_of_a_pattern_pause_for_one_cycle_where_half_of_them_failed() -> None:
    bad = BadTries(pattern=PATTERNS[0], mode="repair", tries=4, rejected=2, reasons=("gold: no",))
    assert repairs(Refusals(9, 7), 8, bad) == []
    other = bad.model_copy(update={"mode": "inherit"})
    assert len(repairs(Refusals(9, 7), 8, other)) == 1


def test_the_words_of_a_directive_say_why_there_are_lessons() -> None:
    made = directive([line(PATTERNS[0], 1.0)], (), (), (), (), 16, {PATTERNS[0]: Refusals(9, 7)})
    assert (
        "  Of them 4 by repair: 7 of 9 failures hold a call that a tool refused."
        in describe_directive(made).splitlines()
    )
