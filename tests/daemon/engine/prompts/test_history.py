"""The prompts of a conversation are the same ids, simulated and as a client of a server sends it.

A client keeps the messages that it got and sends all of them with the next request. A simulation
has them in our form: `Chat.prompt` in a process of ours, `wire` before a server.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.engine.chat import Chat, NoTemplate
from daemon.engine.responses import ChatFormat, Step, join_steps
from daemon.engine.server import Texts
from daemon.engine.wire import ChatRequest, parse_body
from envs.endpoint import wire
from events.messages import Message, ToolCall
from producers.gateway.capture.asides import ChatAsides
from tests.daemon.engine.chat_kinds import GEMMA, KINDS, make_chat
from tests.daemon.engine.served_prompts import Json, keep, serve

TOOLS: tuple[Json, ...] = (
    {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {}}},
)
STRICT = GEMMA.replace(
    "<start_of_turn>{{",
    "{% if m.role not in ('user', 'assistant') %}{{ raise_exception('no such role') }}{% endif %}"
    "<start_of_turn>{{",
)
"""As the first Gemmas': refuses systems and tools."""


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Chat]:
    made = {kind: make_chat(kind, tmp_path_factory.mktemp(kind)) for kind in KINDS}
    made["strict"] = make_chat("gemma", tmp_path_factory.mktemp("strict"))
    made["strict"].tokenizer.chat_template = STRICT
    return made


def simulate(
    chat: Chat, messages: Sequence[Message], tools: Sequence[Json]
) -> tuple[int, ...] | None:
    """Return the ids that a policy of our own process reads; None likewise."""
    try:
        return chat.prompt(messages, tools if chat.shows_tools else ())
    except NoTemplate:
        return None


def call(number: int, **arguments: Any) -> ToolCall:
    return ToolCall(name="look", arguments=arguments, id=f"call_{number}")


CHAIN = (
    Message(role="system", content="Be kind."),
    Message(role="user", content="Where is my order?"),
    Message(role="assistant", reasoning="Look first.", tool_calls=(call(1, order="W1"),)),
    Message(role="tool", content="not here", tool_call_id="call_1"),
    Message(role="assistant", content="Hm.", reasoning="Then W2.", tool_calls=(call(2), call(3))),
    Message(role="tool", content='{"at": "home"}', tool_call_id="call_2"),
    Message(role="tool", content="{}", tool_call_id="call_3"),
    Message(role="assistant", content="At home.", reasoning="Say so."),
    Message(role="user", content="Thanks. And the other?"),
    Message(role="assistant", reasoning="Again.", tool_calls=(call(4, deep={"a": [1, "é"]}),)),
    Message(role="tool", content="gone", tool_call_id="call_4"),
)


def list_turns(messages: Sequence[Message]) -> list[Sequence[Message]]:
    """Return what the agent reads at each of its turns."""
    return [
        messages[:end]
        for end in range(1, len(messages) + 1)
        if messages[end - 1].role in ("user", "tool")
        and (end == len(messages) or messages[end].role != "tool")
    ]


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
@pytest.mark.parametrize("kind", [*KINDS, "strict"])
def test_each_prompt_of_a_chain_of_calls_has_the_ids_of_the_served_one(
    kind: str, field: str, chats: dict[str, Chat]
) -> None:
    chat = chats[kind]
    for begin in (0, 1):
        for read in list_turns(CHAIN[begin:]):
            served = serve(chat, [keep(message, field) for message in read], TOOLS)
            assert simulate(chat, read, TOOLS) == served
            assert serve(chat, list(map(wire, read)), TOOLS) == served


def test_reasoning_is_read_until_the_user_speaks_again(chats: dict[str, Chat]) -> None:
    chat = chats["qwen3"]
    prompts = [chat.text(chat.prompt(read)) for read in list_turns(CHAIN)]
    thoughts = ("Look first.", "Then W2.", "Say so.", "Again.")
    assert [[text for text in thoughts if text in prompt] for prompt in prompts] == [
        [], ["Look first."], ["Look first.", "Then W2."], [], ["Again."],
    ]  # fmt: skip


def test_a_thought_has_one_prompt_whether_a_server_takes_it_out_of_the_content(
    chats: dict[str, Chat],
) -> None:
    """A policy that our process trains may be served by a vLLM with a reasoning parser."""
    chat, calls = chats["qwen3"], (call(1),)
    whole = Message(role="assistant", content="<think>\nLook.\n</think>\n\nHm.", tool_calls=calls)
    apart = Message(role="assistant", content="\n\nHm.", reasoning="\nLook.\n", tool_calls=calls)
    result = Message(role="tool", content="{}", tool_call_id="call_1")
    for later in ((result,), (result, CHAIN[-4], CHAIN[1])):
        prompts = {chat.prompt([CHAIN[1], own, *later]) for own in (whole, apart)}
        assert len(prompts) == 1


def test_a_template_for_tools_alone_is_taken_where_there_are_tools(tmp_path: Path) -> None:
    chat = make_chat("qwen3", tmp_path)
    plain = chat.tokenizer.chat_template
    chat.tokenizer.chat_template = {"default": GEMMA, "tool_use": plain}
    chat.tokenizer.save_pretrained(tmp_path)
    several = Chat(tmp_path)
    read = CHAIN[:4]
    served = serve(several, list(map(keep, read)), TOOLS)
    assert simulate(several, read, TOOLS) == served
    assert "Look." in several.text(served or ())


texts = st.lists(
    st.sampled_from([
        "hi", " ", "\n", "a b", "é", '{"a": 1}', "<think>", "</think>", "<b>", "\n\n", "0",
    ]),
    max_size=6,
).map("".join)  # fmt: skip
arguments = st.dictionaries(
    st.sampled_from(["id", "a b", "é"]),
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | texts | st.lists(texts, max_size=2),
    max_size=3,
)  # fmt: skip


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """Conversations in which the agent is next, as episodes and clients have them."""
    messages = [Message(role="system", content="Be kind.")] if draw(st.booleans()) else []
    for turn in range(draw(st.integers(1, 3))):
        if turn:
            words = draw(texts) or "Done."
            messages.append(Message(role="assistant", content=words, reasoning=draw(thoughts)))
        messages.append(Message(role="user", content=draw(texts) or "Hi"))
        for _ in range(draw(st.integers(0, 3))):
            begin, count = len(messages), draw(st.integers(1, 2))
            calls = tuple(
                ToolCall(name="look", arguments=draw(arguments), id=f"call_{begin}_{place}")
                for place in range(count)
            )
            content = draw(texts) or None
            messages.append(
                Message(
                    role="assistant", content=content, reasoning=draw(thoughts), tool_calls=calls
                )
            )
            messages += [
                Message(role="tool", content=draw(texts), tool_call_id=made.id, name="look")
                for made in calls
            ]
    return messages


thoughts = st.none() | texts.filter(bool)


@pytest.mark.parametrize("kind", [*KINDS, "strict"])
@settings(max_examples=60, deadline=None)
@given(messages=conversations(), tools=st.sampled_from([(), TOOLS]))
def test_a_simulated_prompt_has_the_ids_of_the_served_one(
    kind: str, messages: list[Message], tools: tuple[Json, ...], chats: dict[str, Chat]
) -> None:
    chat = chats[kind]
    served = serve(chat, list(map(keep, messages)), tools)
    assert simulate(chat, messages, tools) == served
    assert serve(chat, list(map(wire, messages)), tools) == served


def answer(chat: Chat, ids: Sequence[int]) -> Json:
    """Return the message that a client of a gateway over our server gets for these ids."""
    body = {"messages": [{"role": "user", "content": "Hi"}], "tools": list(TOOLS)}
    query = parse_body(ChatRequest, json.dumps(body).encode())
    words = Texts(chat).answer(query, tools=True)
    steps = []
    for place, token in enumerate(ids):
        last = place == len(ids) - 1
        deltas = words.take(token, "stop" if last else None)
        steps.append(Step(0, tuple(deltas), (token,), (), words.finish))
    document = ChatFormat(query, "tiny", ()).response([join_steps(steps)])
    visible = ChatAsides().take_from_whole(document)
    message: Json = visible["choices"][0]["message"]
    return message


written = st.lists(
    st.sampled_from([
        "<think>\n", "\n</think>\n\n", "<reflect>", "</reflect>", "hi", " ", "\n", "é", "<",
        '<tool_call>\n{"name": "look", "arguments": {"id": "W1"}}\n</tool_call>', "<tool_call>",
        "</tool_call>", '{"name": "look", "arguments": {}}', "<|im_end|>"[:5],
    ]),
    max_size=8,
).map("".join)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(first=written, second=written)
def test_an_answer_goes_into_the_next_prompt_as_the_client_sends_it_back(
    kind: str, first: str, second: str, chats: dict[str, Chat]
) -> None:
    chat = chats[kind]
    end = min(chat.ends)
    opening = Message(role="user", content="Hi")
    read, sent = [opening], [keep(opening)]
    for text in (first, second):
        ids = [*chat.encode(text), end]
        message, echo = chat.message(ids, len(read)), answer(chat, ids)
        assert len(message.tool_calls) == len(echo.get("tool_calls", ()))
        for made, kept in zip(message.tool_calls, echo.get("tool_calls", ()), strict=True):
            kept["id"] = made.id  # a server draws ids
        results = [
            Message(role="tool", content="{}", tool_call_id=made.id) for made in message.tool_calls
        ] or [Message(role="user", content="And?")]
        read += [message, *results]
        sent += [echo, *map(keep, results)]
        served = serve(chat, sent, TOOLS)
        assert simulate(chat, read, TOOLS) == served
        assert serve(chat, list(map(wire, read)), TOOLS) == served
