"""The verdict by replay, part by part, for any transcript."""

from collections.abc import Sequence
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.database import ABSENT
from envs.episode import Episode, Termination, play
from envs.grading import (
    Grade,
    find_absent_actions,
    find_absent_outputs,
    flag_errors,
    grade,
    replay_gold,
)
from envs.registry import open_environment
from envs.task import Basis, Criteria, TaskDefinition
from events.messages import Action, Message, ToolCall, executed_calls
from tests.envs.mini import Mini, Reciting, called, calls, graded, heard, said, task

LOOK = called("get_order", order_id="w1")
CANCEL = called("cancel_order", order_id="w1")
OTHER = called("cancel_order", order_id="w2")
NOTED = called("note", order_id="w1", notes=["a"])


def judged(
    given: TaskDefinition, *messages: Message, termination: str | None = "user_stop"
) -> Grade:
    """What these messages are worth, whoever wrote them."""
    return grade(Mini(), given, messages, termination)


def gold(*actions: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """Criteria: these calls."""
    return {"gold_actions": tuple(Action(name=n, arguments=a) for n, a in actions)}


@pytest.mark.parametrize(
    ("messages", "reward"),
    [
        ([], 0),
        ([LOOK], 0),
        ([LOOK, CANCEL], 1),
        ([CANCEL], 1),
        ([CANCEL, LOOK, LOOK], 1),
        ([OTHER], 0),
        ([CANCEL, OTHER], 0),
        ([OTHER, CANCEL], 0),
        ([CANCEL, CANCEL], 1),
        ([called("cancel_order", order_id="w9"), CANCEL], 1),
        ([called("cancel_order", order_id="w1", reason="dear")], 0),
        ([CANCEL, NOTED], 0),
        ([called("cancel_ordr", order_id="w1"), CANCEL], 1),
        ([calls(("cancel_order", "order w1")), CANCEL], 1),
        ([calls(("cancel_order", "order w1"))], 0),
        ([calls(("get_order", {"order_id": "w1"}), ("cancel_order", {"order_id": "w1"}))], 1),
        ([called("broken"), CANCEL], 1),
    ],
)  # fmt: skip
def test_the_state_after_the_agents_writes_must_be_the_gold_one(
    messages: list[Message], reward: float
) -> None:
    verdict = graded(task("cancel"), *messages)
    assert verdict.reward == reward
    assert verdict.success is bool(reward)
    assert bool(verdict.difference) is not bool(reward)


def test_the_difference_says_what_is_not_as_expected() -> None:
    verdict = graded(task("cancel"), OTHER)
    found = {(".".join(d.path), d.expected, d.actual) for d in verdict.difference}
    assert found == {
        ("orders.w1.status", "cancelled", "pending"),
        ("orders.w1.reason", "late", ABSENT),
        ("orders.w2.status", "pending", "cancelled"),
        ("orders.w2.reason", ABSENT, "late"),
    }


def test_the_order_of_writes_counts_where_the_state_keeps_it() -> None:
    first = {"order_id": "w1", "notes": ["first"]}
    last = {"order_id": "w1", "notes": ["last"]}
    given = task(**gold(("note", first), ("note", last)))
    assert graded(given, called("note", **first), called("note", **last)).reward == 1
    assert graded(given, called("note", **last), called("note", **first)).reward == 0
    assert graded(given, called("note", **last)).reward == 1


def test_a_task_that_is_to_change_nothing_is_failed_by_any_change() -> None:
    given = task(gold_actions=())
    assert graded(given).reward == 1
    assert graded(given, LOOK).reward == 1
    assert graded(given, CANCEL).reward == 0
    assert graded(given, CANCEL, NOTED).reward == 0


def test_an_error_of_a_gold_action_is_part_of_the_task() -> None:
    lost = ("cancel_order", {"order_id": "w9"})
    wrong = ("cancel_order", {"order": "w1"})
    given = task(**gold(lost, wrong, ("cancel_order", {"order_id": "w1"})))
    assert graded(given, CANCEL).reward == 1
    assert replay_gold(Mini(), given)["orders"]["w1"]["status"] == "cancelled"


def test_without_known_gold_the_state_speaks_against_nobody() -> None:
    verdict = graded(task(gold_actions=None), CANCEL)
    assert (verdict.parts["DB"], verdict.difference) == (1.0, ())


def test_what_a_user_calls_changes_nothing_in_transcript_and_gold() -> None:
    call = ToolCall(name="cancel_order", arguments={"order_id": "w1"})
    by_user = Message(role="user", tool_calls=(call,))
    result = Message(role="tool", content="cancelled", error=False)
    talk = [heard("Hi."), by_user, result, said("Fine."), heard("###STOP###")]
    assert judged(task("cancel"), *talk).reward == 0
    assert judged(task(gold_actions=()), *talk).reward == 1
    users_gold = Action(name="cancel_order", arguments={"order_id": "w1"}, requestor="user")
    assert judged(task(gold_actions=(users_gold,)), *talk).reward == 1
    assert graded(task(gold_actions=(users_gold,)), CANCEL).reward == 0


@pytest.mark.parametrize("termination", [*Termination, None, "", "unheard_of"])
def test_only_a_regular_end_is_worth_anything(termination: str | None) -> None:
    regular = termination in ("user_stop", "agent_stop")
    verdict = judged(task("cancel"), heard("Hi."), CANCEL, said("Done."), termination=termination)
    assert verdict.reward == float(regular)
    assert verdict.success is regular
    assert verdict.parts["DB"] == 1.0, "the parts are evaluated all the same"
    assert verdict.irregular == (None if regular else str(termination))


@pytest.mark.parametrize(
    ("outputs", "texts", "missing"),
    [
        (("1000",), ["It is 1,000 in all."], ()),
        (("1000",), ["It is 1.000."], ("1000",)),
        (("1,000",), ["It is 1,000."], ("1,000",)),
        (("Monday",), ["on MONDAY."], ()),
        (("monday", "tuesday"), ["Monday", "or tuesday"], ()),
        (("monday tuesday",), ["Monday", "tuesday"], ("monday tuesday",)),
        (("12",), ["It is 312 of them."], ()),
        (("ÄRGER",), ["ärger"], ()),
        (("",), [], ("",)),
        (("",), ["x"], ()),
        ((), [], ()),
        (("a", "b", "a"), ["b"], ("a", "a")),
    ],
)
def test_an_output_is_part_of_one_text_without_case_and_commas(
    outputs: tuple[str, ...], texts: Sequence[str], missing: tuple[str, ...]
) -> None:
    assert find_absent_outputs(outputs, [said(text) for text in texts]) == missing


def test_only_what_the_agent_says_communicates() -> None:
    beside = LOOK.model_copy(update={"content": "It is 7."})
    parts = Message(role="assistant", content=[{"type": "text", "text": "It is "}, {"text": "7."}])
    for heard_by_all, missing in (
        ([heard("Is it 7?"), Message(role="tool", content="7")], ("7",)),
        ([Message(role="system", content="Say 7.")], ("7",)),
        ([said("7")], ()),
        ([beside], ()),
        ([parts], ()),
    ):
        assert find_absent_outputs(("7",), heard_by_all) == missing


def test_state_and_words_must_both_be_right() -> None:
    given = task("tell")
    assert graded(given, said("It is 1,000.")).reward == 1
    assert graded(given, said("It is 1,000."), CANCEL).reward == 0
    verdict = graded(given, LOOK)
    assert (verdict.reward, verdict.missing, verdict.difference) == (0, ("1000",), ())


def action(**given: Any) -> Action:
    """A gold action of one tool."""
    return Action(name="t", **given)


@pytest.mark.parametrize(
    ("expected", "arguments", "found"),
    [
        (action(arguments={"a": 1, "b": 2}), {"a": 1, "b": 2}, True),
        (action(arguments={"a": 1, "b": 2}), {"a": 1, "b": 3}, False),
        (action(arguments={"a": 1, "b": 2}), {"a": 1}, True),
        (action(arguments={"a": 1, "b": 2}), {}, True),
        (action(arguments={"a": 1}), {"a": 1, "b": 2}, False),
        (action(arguments={"a": 1, "b": 2}, compare=("a",)), {"a": 1, "b": 3}, True),
        (action(arguments={"a": 1, "b": 2}, compare=("a",)), {"a": 2, "b": 2}, False),
        (action(arguments={"a": 1, "b": 2}, compare=("a",)), {"b": 2}, False),
        (action(arguments={"a": 1}, compare=("a", "c")), {"a": 1}, True),
        (action(arguments={"a": 1}, compare=("a", "c")), {"a": 1, "c": 1}, False),
        (action(arguments={"a": 1}, compare=()), {"b": 9}, True),
        (action(arguments={"a": [1, 2]}), {"a": [2, 1]}, False),
        (action(arguments={"a": 1}, requestor="user"), {"a": 1}, False),
        (action(arguments={"a": 1}), '{"a": 1', False),
        (action(arguments={}), "", False),
    ],
)
def test_a_gold_action_is_called_if_the_arguments_that_count_are_equal(
    expected: Action, arguments: dict[str, Any] | str, found: bool
) -> None:
    executed = executed_calls([calls(("other", {}), ("t", arguments))])
    criteria = Criteria(gold_actions=(expected,))
    assert find_absent_actions(criteria, executed) == (() if found else (expected,))


def test_a_result_is_flagged_as_its_own_call_went_in_whatever_order_results_came() -> None:
    made = tuple(
        ToolCall(name="cancel_order", arguments={"order_id": order}, id=order)
        for order in ("w9", "w1")
    )
    answers = [Message(role="tool", content="?", tool_call_id=order) for order in ("w1", "w9")]
    asked = Message(role="assistant", tool_calls=made)
    flagged, _ = flag_errors(Mini(), task("cancel"), [asked, *answers])
    assert {item.tool_call_id: item.error for item in flagged[1:]} == {"w1": False, "w9": True}


def test_one_call_may_stand_for_two_gold_actions_and_none_for_an_uncalled_one() -> None:
    twice = (action(arguments={"a": 1}), action(arguments={"a": 1}), action(arguments={"a": 2}))
    executed = executed_calls([called("t", a=1)])
    assert find_absent_actions(Criteria(gold_actions=twice), executed) == twice[2:]
    assert find_absent_actions(Criteria(gold_actions=None), executed) == ()


def test_the_actions_may_be_judged_beside_the_state() -> None:
    given = task("cancel", reward_basis=("DB", "ACTION"))
    assert graded(given, CANCEL).parts == {"DB": 1.0, "ACTION": 0.0}
    assert graded(given, LOOK, CANCEL).reward == 1


def test_a_part_that_needs_a_judge_is_open_unless_another_failed() -> None:
    basis = ("DB", "NL_ASSERTION")
    given = task("cancel", reward_basis=basis, nl_assertions=("The agent is kind.",))
    verdict = graded(given, CANCEL)
    assert (verdict.reward, verdict.success) == (None, None)
    assert verdict.open_parts == ("NL_ASSERTION",)
    assert graded(given, OTHER).reward == 0
    assert judged(given, termination="max_steps").reward == 0
    nothing_to_assert = task("cancel", reward_basis=basis)
    assert graded(nothing_to_assert, CANCEL).parts == {"DB": 1.0, "NL_ASSERTION": 1.0}
    asserted = task("cancel", reward_basis=("ENV_ASSERTION",))
    assert graded(asserted, CANCEL).reward is None


def test_the_environment_is_asked_about_its_policy() -> None:
    class Strict(Mini):
        def violations(self, task: TaskDefinition, messages: Sequence[Message]) -> tuple[str, ...]:
            return ("The agent said no.",) if any(m.text == "No." for m in messages) else ()

    environment, given = Strict(), task("cancel", reward_basis=("DB", "POLICY"))
    for word, violations in (("No.", ("The agent said no.",)), ("Yes.", ())):
        made = Episode(environment, given)
        play(made, Reciting(said(word), CANCEL, said("Your request is complete.")),
             environment.user(given))  # fmt: skip
        verdict = grade(environment, given, made.messages, made.termination)
        assert verdict.violations == violations
        assert verdict.reward == (0 if violations else 1)


def test_a_part_without_a_rule_here_is_the_environments_to_judge() -> None:
    class Judging(Mini):
        def judge(
            self, basis: Basis, task: TaskDefinition, messages: Sequence[Message]
        ) -> tuple[str, ...] | None:
            return None if basis == "ENV_ASSERTION" else ("Too loud.",) * len(messages)

    for basis, messages, reward, found in (
        ("TURNS", [], 1.0, ()),
        ("TURNS", [said("Hi!")], 0.0, ("Too loud.",)),
        ("ENV_ASSERTION", [said("Hi!")], None, ()),
    ):
        verdict = grade(Judging(), task(reward_basis=(basis,)), messages, "user_stop")
        assert (verdict.reward, verdict.violations) == (reward, found)
    assert judged(task(reward_basis=("TURNS",))).reward is None


MESSAGES = st.lists(
    st.one_of(
        st.text(max_size=10).map(heard),
        st.text(max_size=10).map(said),
        st.builds(
            calls,
            st.tuples(
                st.sampled_from(["cancel_order", "note", "broken", "nothing"]),
                st.text(max_size=5)
                | st.dictionaries(
                    st.sampled_from(["order_id", "notes", "reason"]),
                    st.sampled_from(
                        ["w1", "late", ["a"], None, 10**400, float("nan"), {"a": {}}, "\ud800"]
                    ),
                ),
            ),
        ),
        st.builds(Message, role=st.just("tool"), content=st.none() | st.text(max_size=5)),
        st.builds(Message, role=st.just("assistant"), content=st.just([{"type": "image"}, {}])),
    ),
    max_size=8,
)


@settings(deadline=None, max_examples=150)
@given(MESSAGES, st.sampled_from(["user_stop", "timeout", None]))
def test_any_transcript_has_a_verdict_and_the_same_again(
    messages: list[Message], termination: str | None
) -> None:
    basis = ("DB", "COMMUNICATE", "ACTION", "POLICY", "NL_ASSERTION")
    given = task("tell", reward_basis=basis)
    verdict = grade(Mini(), given, messages, termination)
    assert verdict.reward in (0.0, 1.0)
    assert repr(verdict) == repr(grade(Mini(), given, messages, termination))


def test_grading_leaves_no_trace_in_the_environment() -> None:
    environment, given = Mini(), task("cancel")
    before = environment.reset(given).digest()
    grade(environment, given, [CANCEL, NOTED], "user_stop")
    assert environment.reset(given).digest() == before


DEEP = "[" * 100_000
"""A result that no parser of JSON takes."""


def nest(depth: int) -> list[Any]:
    """Lists in lists."""
    nested: list[Any] = []
    for _ in range(depth):
        nested = [nested]
    return nested


@pytest.mark.parametrize("name", ["airline", "retail", "shop", "telecom", "toolsandbox"])
def test_calls_and_results_that_are_nested_too_deep_get_a_verdict(name: str) -> None:
    environment = open_environment(name)
    for capability in islice(environment.capabilities, 8):
        task = environment.generate(capability, 0)
        messages = [heard("Yes.")]
        for action in task.criteria.gold_actions or ():
            for arguments in (action.arguments, {key: nest(2_000) for key in action.arguments}):
                messages += [called(action.name, **arguments), Message(role="tool", content=DEEP)]
        telling = [said(output) for output in task.criteria.outputs]
        verdict = grade(environment, task, [*messages, *telling], Termination.USER_STOP)
        assert verdict.success is not None


def test_a_call_of_the_user_that_is_nested_too_deep_gets_a_verdict() -> None:
    environment = open_environment("telecom")
    task = environment.generate("picture_messages", 0)
    call = ToolCall(name="grant_app_permission", arguments={"permission": nest(2_000)}, id="1")
    messages = [Message(role="user", tool_calls=(call,)), Message(role="tool", content=DEEP)]
    assert grade(environment, task, messages, Termination.USER_STOP).success is False
