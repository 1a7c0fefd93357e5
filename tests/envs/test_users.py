"""Scripted users: which line comes when."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from envs.retail.environment import Retail
from envs.task import Answer, Criteria, Scenario, Script, TaskDefinition
from envs.users import HEARD_CHARACTERS, STOP, ScriptUser
from events.messages import Message
from tests.envs.mini import heard, said


def user(script: Script | None, scenario: Scenario | None = None) -> ScriptUser:
    """A user with this script, or one that improvises."""
    return ScriptUser(
        TaskDefinition(
            id="t/1",
            environment="t",
            capability="c",
            scenario=scenario or Scenario(reason_for_call="Something."),
            script=script,
            criteria=Criteria(),
        )
    )


def answers(script: Script | None, *texts: str, scenario: Scenario | None = None) -> list[str]:
    """What the user says to each text of the agent, after the opening."""
    playing = user(script, scenario)
    messages = [playing.reply([])]
    for text in texts:
        messages.append(said(text))
        messages.append(playing.reply(messages))
    return [message.text for message in messages[2::2]]


def test_the_opening_comes_first_whatever_the_agent_greets_with() -> None:
    script = Script(opening="Cancel w1.", ends="hello", answers=(Answer(asks="hi", says="no"),))
    for before in ([], [said("Hello! Hi!")]):
        assert user(script).reply(before) == Message(role="user", content="Cancel w1.")


def test_a_greeting_before_the_opening_is_not_answered_later() -> None:
    script = Script(opening="Hi.", answers=(Answer(asks="name", says="Ada.", once=True),))
    said_so_far = [said("What is your name?"), heard("Hi."), said("Your name, please?")]
    assert user(script).reply(said_so_far).text == "Ada."


def test_the_end_comes_before_answers_and_answers_in_their_order() -> None:
    script = Script(
        opening="Hi.",
        ends="complete",
        answers=(
            Answer(asks="order", says="w1."),
            Answer(asks="order|name", says="Ada."),
            Answer(asks="complete", says="never"),
        ),
    )
    assert answers(script, "Which ORDER?", "Your name?", "Complete.") == ["w1.", "Ada.", STOP]


def test_an_answer_that_is_given_once_leaves_the_next_one_its_turn() -> None:
    script = Script(
        opening="Hi.",
        answers=(
            Answer(asks="colour", says="Red.", once=True),
            Answer(asks="colour", says="Blue."),
        ),
    )
    assert answers(script, "Colour?", "Colour?", "Colour?") == ["Red.", "Blue.", "Blue."]


def test_who_is_not_understood_is_patient_for_a_while_and_then_hangs_up() -> None:
    script = Script(opening="Hi.", answers=(Answer(asks="name", says="Ada."),), patience=2)
    texts = ("Hm.", "Your name?", "Hm.", "Hm.", "Hm.")
    assert answers(script, *texts) == [
        "I have nothing to add.", "Ada.", "I have nothing to add.", STOP, STOP,
    ]  # fmt: skip


LINES = st.lists(st.sampled_from(["name?", "order?", "Hm.", "done", "name and order?"]), max_size=8)


@given(LINES)
def test_a_user_is_a_function_of_the_conversation_alone(texts: list[str]) -> None:
    script = Script(
        opening="Hi.",
        ends="done",
        answers=(
            Answer(asks="name", says="Ada.", once=True),
            Answer(asks="order", says="w1."),
        ),
    )
    once = answers(script, *texts)
    assert answers(script, *texts) == once
    for length in range(len(texts)):
        assert answers(script, *texts[:length]) == once[:length], "the past does not change"


def test_without_a_script_all_is_told_at_once_and_every_question_agreed_to() -> None:
    scenario = Scenario(
        reason_for_call="Cancel w1.", known_info="You are Ada.", task_instructions="Be brief."
    )
    assert user(None, scenario).reply([]).text == "Cancel w1. You are Ada."
    texts = ("Do you confirm?", "Hm?", "You are being transferred to a human agent.")
    assert answers(None, *texts, scenario=scenario) == [
        "Yes, please.", "You are Ada. Be brief.", STOP,
    ]  # fmt: skip
    nothing = Scenario(reason_for_call="")
    assert user(None, nothing).reply([]).text == "Hello."
    assert answers(None, "Hm?", scenario=nothing) == ["I have nothing to add."]


def test_of_a_novel_the_user_hears_the_end() -> None:
    script = Script(opening="Hi.", answers=(Answer(asks="^x.*name", says="Ada."),))
    assert answers(script, "x" * HEARD_CHARACTERS * 3 + " name?") == ["Ada."]
    assert answers(script, "x name?" + "y" * HEARD_CHARACTERS) == ["I have nothing to add."]


def test_an_agent_that_writes_much_at_every_turn_is_answered_soon() -> None:
    """Each text is heard once: 60 of 20,000 characters took an hour when all were at each turn."""
    task = Retail().write_task("cancel", 1)
    playing = Retail().user(task)
    messages = [playing.reply([])]
    for _ in range(60):
        messages.append(said("zip" * 6_600))
        messages.append(playing.reply(messages))
    assert messages[-1].text


def test_a_stored_task_with_a_pattern_that_re2_does_not_take_is_still_played() -> None:
    script = Script(
        opening="Hi.",
        answers=(
            Answer(asks=r"(?<!not )\bconfirm\b", says="Yes."),
            Answer(asks=r"(\w+) or \1", says="Which?"),
        ),
        ends=r"bye(?!e)",
    )
    stored = Script.model_validate_json(script.model_dump_json())
    assert answers(stored, "Confirm?", "I do not confirm.", "An A or a?", "Bye!") == [
        "Yes.", script.otherwise, "Which?", STOP,
    ]  # fmt: skip


def test_a_user_that_hears_another_conversation_forgets_the_first() -> None:
    script = Script(
        opening="Hi.",
        answers=(Answer(asks="name", says="Ada.", once=True), Answer(asks="name", says="I said.")),
    )
    playing = user(script)
    first = [heard("Hi."), said("Your name?")]
    assert playing.reply(first).text == "Ada."
    assert playing.reply([*first, heard("Ada."), said("The name?")]).text == "I said."
    assert playing.reply([heard("Hi."), said("What name?")]).text == "Ada."


@pytest.mark.parametrize("pattern", ["(", "[a", "*", "(?P<a>x)(?P<a>y)", "a{99999999999}"])
def test_a_pattern_that_cannot_be_compiled_is_refused_where_it_is_written(pattern: str) -> None:
    refusal = f"{re.escape(pattern)}' is no regular expression"
    with pytest.raises(ValidationError, match=refusal):
        Answer(asks=pattern, says="Yes.")
    with pytest.raises(ValidationError, match=refusal):
        Script(opening="Hi.", ends=pattern)
