"""The turn protocol: who speaks, what counts, what each party sees, and when it is over."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.environment import Limits
from envs.episode import Episode, Party, Termination, play
from envs.task import Rules
from envs.users import STOP, STOP_TOKENS
from events.messages import Message, ToolCall
from tests.envs.mini import DONE, Mini, Reciting, called, calls, heard, played, said, task

LOOK = called("get_order", order_id="w1")
WRONG = called("get_order", order_id="w9")


def episode(**limits: Any) -> Episode:
    """An episode of the first task."""
    return Episode(Mini(), task(), limits=Limits(**limits))


def after(*messages: Message, **limits: Any) -> Episode:
    """An episode that was told these messages, while it would hear any."""
    made = episode(**limits)
    for message in messages:
        made.receive(message)
    return made


def roles(made: Episode) -> list[str]:
    """Who spoke, in order."""
    return [message.role for message in made.messages]


def test_the_user_opens_and_then_speaks_with_the_agent_by_turns() -> None:
    made = episode()
    turns = [made.turn]
    for message in (heard("Hello."), said("Yes?"), heard("Cancel w1."), LOOK, said("Sure?")):
        made.receive(message)
        turns.append(made.turn)
    user, agent = Party.USER, Party.AGENT
    assert turns == [user, agent, user, agent, agent, user]
    assert roles(made) == ["user", "assistant", "user", "assistant", "tool", "assistant"]


def test_a_greeting_stands_before_the_user_and_costs_no_step() -> None:
    class Greeting(Mini):
        greeting = "Hi!"

    made = Episode(Greeting(), task())
    assert made.turn is Party.USER
    assert [(m.role, m.text, m.sampled) for m in made.messages] == [("assistant", "Hi!", False)]
    assert made.steps == 0


@pytest.mark.parametrize(
    ("messages", "termination"),
    [
        ([heard(f"Bye. {STOP_TOKENS[0]}")], Termination.USER_STOP),
        ([heard("Hi."), said("Hm."), heard(STOP_TOKENS[1])], Termination.USER_STOP),
        ([heard(STOP_TOKENS[2])], Termination.USER_STOP),
        ([heard("Hi."), said(f"All done. {STOP}")], Termination.AGENT_STOP),
        ([heard("Hi."), said("")], Termination.AGENT_ERROR),
        ([heard("Hi."), said(" \n")], Termination.AGENT_ERROR),
        ([heard("Hi."), Message(role="assistant")], Termination.AGENT_ERROR),
        ([heard("")], Termination.USER_ERROR),
        ([Message(role="user", content=[{"type": "image"}])], Termination.USER_ERROR),
    ],
)
def test_some_words_and_some_silence_end_it(
    messages: list[Message], termination: Termination
) -> None:
    made = after(*messages)
    assert (made.termination, made.turn) == (termination, None)
    assert made.messages[-1] == messages[-1], "the last message is on record"


def test_what_is_said_beside_a_call_ends_nothing_and_is_not_heard() -> None:
    beside = LOOK.model_copy(update={"content": f"Wait. {STOP}"})
    made = after(heard("Hi."), beside)
    assert (made.termination, made.turn) == (None, Party.AGENT)
    assert made.view(Party.USER) == [heard("Hi.")]
    assert made.view(Party.AGENT)[2] == beside


def test_a_user_who_calls_a_tool_is_an_error_of_the_users_and_nothing_is_run() -> None:
    call = ToolCall(name="cancel_order", arguments={"order_id": "w1"})
    made = after(Message(role="user", content="Do it.", tool_calls=(call,)))
    assert made.termination is Termination.USER_ERROR
    assert "users here have none" in made.reason
    assert made.database.same(Mini().reset(task()))


def test_nothing_is_heard_after_the_end() -> None:
    made = after(heard(STOP))
    before = list(made.messages)
    for message in (heard("Hello?"), said("Hello?")):
        with pytest.raises(RuntimeError, match="episode of mini/cancel/0 is over: user_stop"):
            made.receive(message)
    assert made.messages == before


@pytest.mark.parametrize("wrong", [said("Hi."), Message(role="tool"), Message(role="system")])
def test_only_the_party_whose_turn_it_is_may_speak(wrong: Message) -> None:
    with pytest.raises(ValueError, match="the user's message has the role"):
        episode().receive(wrong)
    made = after(heard("Hi."))
    with pytest.raises(ValueError, match="the agent's message has the role 'user'"):
        made.receive(heard("Hi."))
    assert roles(made) == ["user"]


def test_the_user_sees_what_was_said_and_nothing_of_tools() -> None:
    made = after(heard("Hi."), said("Hm?"), heard("w1."), LOOK, WRONG, said("It costs."))
    assert [m.text for m in made.view(Party.USER)] == ["Hi.", "Hm?", "w1.", "It costs."]
    assert {m.role for m in made.view(Party.USER)} == {"user", "assistant"}
    system, *rest = made.view(Party.AGENT)
    assert (system.role, system.text) == ("system", "Ask before you cancel.")
    assert rest == made.messages


def test_the_user_hears_no_thoughts_in_a_task_with_rules() -> None:
    made = Episode(Mini(), task("tell", rules=Rules()))
    made.receive(heard("Hello."))
    made.receive(said("<think>Shall I? ###STOP###</think>Good day."))
    assert [message.text for message in made.view(Party.USER)][-1] == "Good day."
    assert made.view(Party.AGENT)[-1].text.startswith("<think>")
    made.receive(heard("Well?"))
    made.receive(said("<think>I say nothing.</think>"))
    assert made.termination == Termination.AGENT_ERROR


def test_results_follow_their_calls_in_order() -> None:
    made = after(
        heard("Hi."),
        calls(
            ("get_order", {"order_id": "w1"}),
            ("get_order", {"order_id": "w9"}),
            ("get_order", "order w1"),
            ("broken", {}),
        ),
    )
    results = made.messages[2:]
    assert [(m.tool_call_id, m.error) for m in results] == [
        ("call_0", False), ("call_1", True), ("call_2", True), ("call_3", True),
    ]  # fmt: skip
    assert results[1].text == "Error: no order 'w9'"
    assert (made.errors, made.malformed) == (3, 1)
    assert made.defects == ["broken: ZeroDivisionError: by zero"]


def test_a_call_and_its_results_are_two_steps_and_a_message_one() -> None:
    made = after(heard("Hi."), LOOK, said("Hm?"), heard("Yes."))
    assert made.steps == 5
    made.receive(calls(*[("get_order", {"order_id": "w1"})] * 9))
    assert made.steps == 7, "several calls of one message are one hop"


def test_an_episode_without_end_is_cut_off_between_messages() -> None:
    made = episode(max_steps=6)
    play(made, Reciting(LOOK), Mini().user(task()))
    assert (made.termination, made.steps) == (Termination.MAX_STEPS, 7)
    assert made.messages[-1].role == "tool", "no call stays without its result"


def test_the_limit_of_steps_is_reached_and_not_passed() -> None:
    talk = (heard("Hi."), said("Hm?"), heard("Yes."))
    made = after(*talk, max_steps=3)
    assert (made.termination, made.reason) == (Termination.MAX_STEPS, "3 steps")
    assert after(*talk, max_steps=4).turn is Party.AGENT


def test_calls_between_two_messages_of_the_user_may_be_limited() -> None:
    talk = (heard("Hi."), LOOK, LOOK, said("Hm?"), heard("Yes."), LOOK, LOOK)
    made = after(*talk, max_rounds=2)
    assert (made.turn, made.rounds) == (Party.AGENT, 2)
    made.receive(LOOK)
    assert made.termination is Termination.MAX_STEPS
    assert made.reason == "3 messages with calls in one turn"


def test_calls_that_fail_add_up_to_an_end_though_not_in_a_row() -> None:
    made = episode(max_errors=3)
    play(made, Reciting(WRONG, LOOK, WRONG, LOOK, WRONG, LOOK), Mini().user(task()))
    assert (made.termination, made.errors) == (Termination.TOO_MANY_ERRORS, 3)
    assert made.reason == "3 calls failed"


def test_ten_thousand_calls_in_one_message_are_no_message_and_none_is_run() -> None:
    made = after(heard("Hi."), calls(*[("cancel_order", {"order_id": "w1"})] * 10_000))
    assert made.termination is Termination.AGENT_ERROR
    assert made.reason == "10,000 calls in one message; 64 may be"
    assert made.database.same(Mini().reset(task()))
    assert after(heard("Hi."), calls(*[("get_order", {"order_id": "w1"})] * 64)).turn


def test_an_episode_changes_no_other() -> None:
    environment = Mini()
    first, second = (Episode(environment, task()) for _ in range(2))
    first.receive(heard("Hi."))
    first.receive(called("cancel_order", order_id="w1"))
    assert first.database["orders"]["w1"]["status"] == "cancelled"
    assert second.database["orders"]["w1"]["status"] == "pending"
    assert Episode(environment, task()).database.same(second.database)


ODD = st.sampled_from(
    [
        LOOK, WRONG, called("cancel_order", order_id="w1"), said("Do you confirm?"), said("No."),
        calls(("note", {"order_id": "w1", "notes": ["x"]}), ("broken", {})),
        calls(("get_order", "{order")), calls(("", {})), said(STOP), said(DONE),
        calls(("strange", {"copy": {"v": float("nan")}})), said("\ud800"),
    ]
)  # fmt: skip


def told(made: Episode) -> str:
    """Everything that is on record."""
    messages = [message.model_dump() for message in made.messages]
    return repr((messages, made.termination, made.reason, made.steps, made.errors, made.malformed))


@settings(deadline=None)
@given(st.lists(ODD, min_size=1, max_size=12))
def test_the_same_outputs_of_the_agent_give_the_same_episode(messages: list[Message]) -> None:
    one, other = (played(task(), *messages) for _ in range(2))
    assert one.termination is not None
    assert told(one) == told(other)
    assert one.database.same(other.database)
    assert one.steps <= one.limits.max_steps + 1


def test_an_agents_transfer_word_ends_nothing() -> None:
    assert after(heard("Hi."), said(STOP_TOKENS[1])).turn is Party.USER


def test_a_regular_end_in_the_last_step_is_regular() -> None:
    made = after(heard("Hi."), said("Hm?"), heard(STOP), max_steps=3)
    assert made.termination is Termination.USER_STOP
