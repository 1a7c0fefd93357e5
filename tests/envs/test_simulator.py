"""A user whom a model plays, behind a real HTTP server."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from envs.endpoint import AnswerFailure, Endpoint, Sampling
from envs.episode import Termination
from envs.simulator import ModelUser, TokenMeter, find_breach, swap_roles
from envs.task import Criteria, Scenario, TaskDefinition
from envs.users import STOP
from events.messages import Message, ToolCall
from tests.envs.model_server import (
    Answering,
    Json,
    ModelServer,
    Reply,
    answer,
    called,
    refused,
    said,
)

TASK = TaskDefinition(
    id="shop/cancel/1",
    environment="shop",
    capability="cancel",
    scenario=Scenario(reason_for_call="Cancel order #1.", known_info="You are Ada."),
    criteria=Criteria(),
)
GREETING = Message(role="assistant", content="How can I help?", sampled=False)
TALK = (
    GREETING,
    Message(role="user", content="Cancel my order."),
    Message(role="assistant", content="Which one?"),
)


def line(
    answering: Answering, said_so_far: Sequence[Message] = TALK, candidates: int = 1,
    **options: Any,
) -> tuple[str, ModelUser, list[Json]]:  # fmt: skip
    """What the user says next, the user, and what the server was asked."""

    async def run(url: str) -> tuple[str, ModelUser]:
        async with Endpoint(url, "small", attempts=2, wait_seconds=0.001) as endpoint:
            user = ModelUser(endpoint, TASK, seed=7, candidates=candidates, **options)
            return (await user.reply(said_so_far)).text, user

    with ModelServer(answering) as server:
        text, user = asyncio.run(run(server.url))
        return text, user, server.requests


TOOLS = [{"type": "function", "function": {"name": "toggle_data", "parameters": {}}}]


def reply_with_tools(answering: Answering, seen: Sequence[Message]) -> tuple[Message, list[Json]]:
    """What a user with tools answers next, and what the server was asked."""

    async def run(url: str) -> Message:
        async with Endpoint(url, "small", attempts=2, wait_seconds=0.001) as endpoint:
            return await ModelUser(endpoint, TASK, seed=7, candidates=2, tools=TOOLS).reply(seen)

    with ModelServer(answering) as server:
        return asyncio.run(run(server.url)), server.requests


def test_a_user_with_tools_is_offered_them_and_sees_its_own_calls() -> None:
    call = Message(role="user", tool_calls=(ToolCall(name="toggle_data", id="u1"),))
    result = Message(role="tool", content="Mobile Data is now ON.", tool_call_id="u1")
    reply, (request, *_) = reply_with_tools(
        lambda _: answer(called("toggle_data", {}), said("I see it.")), [*TALK, call, result]
    )
    assert (reply.role, [item.name for item in reply.tool_calls]) == ("user", ["toggle_data"])
    assert request["tools"] == TOOLS
    system, *_, own, answered = request["messages"]
    assert "one step at a time" in system["content"]
    assert (own["role"], own["tool_calls"][0]["function"]["name"]) == ("assistant", "toggle_data")
    assert (answered["role"], answered["content"]) == ("tool", "Mobile Data is now ON.")


def test_a_user_who_has_only_called_tools_does_not_hang_up() -> None:
    call = Message(role="user", tool_calls=(ToolCall(name="toggle_data", id="u1"),))
    result = Message(role="tool", content="Mobile Data is now ON.", tool_call_id="u1")
    reply, _ = reply_with_tools(
        lambda _: answer(said(STOP), said("My phone is dead.")), [GREETING, call, result]
    )
    assert reply.text == "My phone is dead."


def is_choice(body: Json) -> bool:
    return "Candidates:" in body["messages"][-1]["content"]


def candidates_and_choice(*lines: str, choice: str) -> Answering:
    """All candidates at once, then the choice."""
    return lambda body: answer(said(choice)) if is_choice(body) else answer(*map(said, lines))


def test_the_model_is_told_the_situation_and_sees_the_roles_turned() -> None:
    text, user, (request,) = line(lambda _: said("Order #1."))
    assert text == "Order #1."
    system, *spoken = request["messages"]
    assert system["role"] == "system"
    assert "Reason for call: Cancel order #1.\nKnown info: You are Ada." in system["content"]
    assert [(one["role"], one["content"]) for one in spoken] == [
        ("user", "How can I help?"),
        ("assistant", "Cancel my order."),
        ("user", "Which one?"),
    ]
    assert "tools" not in request
    assert user.usage.completion_tokens == 10


def test_a_user_reads_no_reasoning_of_its_agent_or_its_own() -> None:
    call = ToolCall(name="look", id="1")
    said = [
        Message(role="assistant", content="Hi", reasoning="Be kind."),
        Message(role="user", tool_calls=(call,), reasoning="Look."),
        Message(role="tool", content="on", tool_call_id="1"),
    ]
    assert [message.reasoning for message in swap_roles(said)] == [None] * 3


def test_where_nobody_has_spoken_the_model_is_told_to_begin() -> None:
    (opening,) = swap_roles(())
    assert opening.role == "user"
    _, _, (request,) = line(lambda _: said("Hello"), said_so_far=())
    assert [one["role"] for one in request["messages"]] == ["system", "user"]


def test_each_line_has_a_seed_of_its_own() -> None:
    _, _, (first,) = line(lambda _: said("Hello"))
    _, _, (again,) = line(lambda _: said("Hello"))
    _, _, (other,) = line(lambda _: said("Hello"), said_so_far=(GREETING,))
    assert first["seed"] == again["seed"] != other["seed"]


def test_the_best_candidate_is_chosen_by_its_number() -> None:
    text, user, requests = line(
        candidates_and_choice("One.", "Two.", "Three.", choice="Number 2"), candidates=3
    )
    assert text == "Two."
    assert [request.get("n") for request in requests] == [3, None]
    assert requests[1]["temperature"] == 0.0
    assert not user.remarks
    assert user.usage.requests == 2


def test_an_endpoint_that_gives_one_candidate_is_asked_as_often_as_needed() -> None:
    lines = iter(["One.", "Two.", "Three."])
    text, _, requests = line(
        lambda body: said("3") if is_choice(body) else said(next(lines)), candidates=3
    )
    assert text == "Three."
    assert [request.get("n") for request in requests] == [3, 2, None, None]
    assert len({request["seed"] for request in requests}) == 4


@pytest.mark.parametrize("choice", ["neither", "1 or 2", "7", "0"])
def test_a_choice_that_fails_takes_the_first_and_is_remarked(choice: str) -> None:
    text, user, _ = line(candidates_and_choice("One.", "Two.", choice=choice), candidates=2)
    assert text == "One."
    assert user.remarks == [
        "the choice of the user's line failed, the first was taken: it named none"
    ]


def test_the_likeliest_line_of_a_trained_user_counts_where_it_names_none() -> None:
    def write(body: Json) -> Json | Reply:
        if is_choice(body):
            return said("Cancel it, please.")
        greedy = body["temperature"] == 0
        return said("Order #1.") if greedy else answer(said("Order #9."), said("Order #3."))

    drawn = Sampling(temperature=1.0)
    text, user, requests = line(write, candidates=3, trained=True, sampling=drawn)
    assert text == "Order #1."
    assert [(body.get("n"), body["temperature"]) for body in requests] == [
        (None, 0.0), (2, 1.0), (None, 0.0),
    ]  # fmt: skip
    assert "it named none" in user.remarks[0]


def test_a_trained_user_speaks_where_that_is_likeliest_though_a_candidate_calls_a_tool() -> None:
    def write(body: Json) -> Json | Reply:
        if is_choice(body):
            return said("2")
        greedy = body["temperature"] == 0
        return said("Is it on?") if greedy else answer(called("toggle_data", {}), said("Wait."))

    drawn = Sampling(temperature=1.0)
    text, *_ = line(write, candidates=3, trained=True, sampling=drawn, tools=TOOLS)
    assert text == "Wait."


@pytest.mark.parametrize(
    ("candidate", "opening", "problem"),
    [
        (Message(role="assistant", content="Order #1."), False, None),
        (Message(role="assistant", content=STOP), False, None),
        (Message(role="assistant", content=STOP), True, "hangs up"),
        (Message(role="assistant", content=" "), False, "empty"),
        (Message(role="assistant", content="**Agent:** Done!"), False, "for the agent"),
        (Message(role="assistant", content="Yes.\nAssistant: Done!"), False, "for the agent"),
        (Message(role="assistant", content="The agent: was rude"), False, None),
        (Message(role="assistant", tool_calls=(ToolCall(name="look"),)), False, "calls a tool"),
    ],
)
def test_candidates_are_dropped_by_rule(
    candidate: Message, opening: bool, problem: str | None
) -> None:
    broken = find_breach(candidate, opening=opening)
    assert broken is None if problem is None else problem in (broken or "")


def test_unusable_candidates_are_dropped_before_the_choice() -> None:
    text, _, requests = line(
        lambda _: answer(called("look", {}), said("Agent: Done."), said("Order #1.")), candidates=3
    )
    assert text == "Order #1."
    assert len(requests) == 1


def test_a_line_is_asked_for_again_with_another_seed() -> None:
    replies = iter([said(STOP), said("Cancel my order.")])
    text, user, requests = line(lambda _: next(replies), said_so_far=(GREETING,))
    assert text == "Cancel my order."
    assert requests[0]["seed"] != requests[1]["seed"]
    assert len(user.remarks) == 1


def test_a_line_with_a_value_that_its_user_cannot_know_is_drawn_again() -> None:
    drawn = ["Order O58.", "It is O85.", *(f"Yes, O85{'!' * more}" for more in range(6))]
    replies: Iterator[Json | Reply] = iter([said("Order O58, please."), answer(*map(said, drawn))])
    seen = [GREETING, Message(role="assistant", content="Is it O85?")]
    text, user, requests = line(
        lambda _: next(replies), seen, trained=True, sampling=Sampling(temperature=1.0)
    )
    assert text == "It is O85.", "the agent named it"
    asked = [(body.get("n", 1), body["temperature"]) for body in requests]
    assert asked == [(1, 0.0), (8, 1.0)]
    assert user.remarks == ["the user's line names 'O58', which it cannot know"]


def test_where_all_lines_have_such_a_value_the_first_counts() -> None:
    replies = iter([said("Order O58."), said("Order O59."), said("Order O60.")])
    text, *_ = line(lambda _: next(replies))
    assert text == "Order O58.", "what judges transcripts may say otherwise"


@pytest.mark.parametrize(
    ("answering", "termination", "reason"),
    [
        (lambda _: said("Agent: Done."), Termination.USER_ERROR, "speaks for the agent"),
        (lambda _: said(""), Termination.USER_ERROR, "it is empty"),
        (lambda _: refused(500, "on fire"), Termination.INFRASTRUCTURE_ERROR, "on fire"),
    ],
)
def test_a_user_that_fails_ends_the_episode_as_the_users_failure(
    answering: Answering, termination: Termination, reason: str
) -> None:
    with pytest.raises(AnswerFailure) as failed:
        line(answering)
    assert failed.value.termination is termination
    assert failed.value.reason.startswith("the user's model: ")
    assert reason in failed.value.reason


@pytest.mark.parametrize(
    ("written", "limit"),
    [
        (said("please " * 400_000), 512),
        (said("please " * 400_000), None),
        (said("\u8bf7" * 16_385), 512),
        (called("toggle_data", {"why": "please " * 400_000}), 512),
    ],
)
def test_a_line_far_above_its_tokens_is_the_users_failure(written: Json, limit: int | None) -> None:
    """Servers may ignore `max_tokens`, and say that the model stopped by itself."""
    with pytest.raises(AnswerFailure) as failed:
        line(lambda _: written, sampling=Sampling(max_tokens=limit), tools=TOOLS)
    assert failed.value.termination is Termination.USER_ERROR
    assert "it never stops" in failed.value.reason
    assert len(failed.value.reason) < 400


def test_what_a_server_writes_above_its_bound_is_counted() -> None:
    meter = TokenMeter(None)
    with pytest.raises(AnswerFailure):
        line(lambda _: said("please " * 3_000), sampling=Sampling(max_tokens=512), meter=meter)
    assert meter.spent > 3 * 7_000


@pytest.mark.parametrize("token", ["please ", "\u8bf7", "internationalization", "=" * 32])
def test_a_line_of_as_many_tokens_as_it_may_have_is_a_line(token: str) -> None:
    text, *_ = line(lambda _: said(token * 512), sampling=Sampling(max_tokens=512))
    assert text == (token * 512).strip()


@pytest.mark.parametrize("piece", ["\n", " ", "-", "agent\n", "\u2014"])
def test_no_line_of_a_user_takes_long_to_check(piece: str) -> None:
    """20,000 newlines took 53 seconds."""
    assert find_breach(Message(role="user", content=f"Hi.{piece * 100_000}"), opening=True) is None
    labelled = Message(role="user", content=f"Hi.{piece * 100_000}\n**Agent** : Hello.")
    assert "speaks for the agent" in (find_breach(labelled, opening=True) or "")


def test_words_of_the_agent_that_fill_the_users_context_are_the_agents_failure() -> None:
    """A user's failure is not judged, so an agent could write its way out of every failure."""

    def overflow(_: Json) -> Any:
        return refused(400, "This model's maximum context length is 8192 tokens.")

    novel = Message(role="assistant", content="Once upon a time. " * 2000)
    with pytest.raises(AnswerFailure) as failure:
        line(overflow, [*TALK, novel])
    assert failure.value.termination is Termination.CONTEXT_OVERFLOW
    assert "the agent wrote 36,0" in failure.value.reason
    chatty = Message(role="user", content="So I said to him. " * 2000)
    question = Message(role="assistant", content="Which order?")
    with pytest.raises(AnswerFailure) as failure:
        line(overflow, [*TALK, chatty, question])
    assert failure.value.termination is Termination.USER_ERROR
