"""Dialogues as tokens of the user: roles turned around, and nothing of the agent in the loss."""

import pytest

from daemon.engine.chat import Chat
from daemon.engine.reference.weights import CHECKPOINT
from daemon.methods.synthesis.user_training.examples import (
    NoExample,
    build_example,
    play_gold,
    read_user_message,
)
from daemon.solver.trajectory import TokenSequence, sequences
from envs.registry import open_place
from envs.shop.environment import Shop
from envs.telecom.environment import Telecom
from envs.users import STOP
from events.messages import Message, ToolCall

SHOP = Shop()
CHAT = Chat(CHECKPOINT)
END = "<|im_end|>"
TASK = SHOP.generate("two_writes", 71_000_000)


def read_written(part: TokenSequence) -> list[str]:
    """The texts of the stretches of ids that count as written."""
    texts: list[list[int]] = []
    before = False
    for token, written in zip(part.ids, part.written, strict=True):
        if written and not before:
            texts.append([])
        if written:
            texts[-1].append(token)
        before = written
    return [CHAT.text(ids) for ids in texts]


def test_the_loss_is_on_the_users_lines_from_the_opening_to_the_hanging_up() -> None:
    messages = play_gold(SHOP, TASK)
    (part,) = sequences(build_example(SHOP, CHAT, TASK, messages, "d"))
    spoken = [message.text for message in messages if message.role == "user"]
    assert spoken[-1] == STOP
    assert read_written(part) == [text + END for text in spoken]
    read = CHAT.text(i for i, written in zip(part.ids, part.written, strict=True) if not written)
    said = [m.text for m in messages if m.role == "assistant" and not m.tool_calls]
    assert all(f"<|im_start|>user\n{text}{END}" in read for text in said)
    assert TASK.scenario.text() in read
    assert "tool_call" not in read, "the agent's calls are not the user's to see"


def test_each_turn_has_the_prompt_that_a_user_is_given_and_gives_back_its_message() -> None:
    messages = play_gold(SHOP, TASK)
    example = build_example(SHOP, CHAT, TASK, messages, "d")
    spoken = [message for message in messages if message.role == "user"]
    for turn, message in zip(example.turns, spoken, strict=True):
        assert read_user_message(CHAT, turn.completion_ids, 0) == message
    ids: tuple[int, ...] = ()
    for turn in example.turns:
        assert turn.prompt_ids[: len(ids)] == ids, "a prompt begins with the one before it"
        ids = turn.prompt_ids + turn.completion_ids


def test_a_user_with_tools_learns_its_own_calls_and_reads_their_results() -> None:
    telecom = open_place("telecom")
    assert isinstance(telecom, Telecom)
    task = next(
        task
        for task in telecom.tasks()
        if any(m.role == "user" and m.tool_calls for m in play_gold(telecom, task))
    )
    messages = play_gold(telecom, task)
    example = build_example(telecom, CHAT, task, messages, "d")
    acts = [m for m in messages if m.role == "user"]
    assert len(example.turns) == len(acts)
    by_agent = {c.name for m in messages if m.role == "assistant" for c in m.tool_calls}
    for turn, message in zip(example.turns, acts, strict=True):
        text, again = (
            CHAT.text(turn.completion_ids),
            read_user_message(CHAT, turn.completion_ids, 0),
        )
        assert [(c.name, c.arguments) for c in again.tool_calls] == [
            (c.name, c.arguments) for c in message.tool_calls
        ]
        assert text.startswith("<tool_call>") == bool(message.tool_calls)
    last = CHAT.text(example.turns[-1].prompt_ids)
    results = {c.id for m in acts for c in m.tool_calls}
    shown = [m.text for m in messages if m.role == "tool" and m.tool_call_id in results]
    assert shown
    assert all(text in last for text in shown)
    assert by_agent
    assert not any(f'{{"name": "{name}"' in last for name in by_agent)


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("I <reflect>a</reflect> want this.", "message 0: the chat template does not give back"),
        ('<tool_call>{"name": "get_order", "arguments": {}}</tool_call>', "message 0: it writes"),
        ("", "message 0: it is empty"),
        (STOP, "message 0: it hangs up before it said"),
    ],
)
def test_a_line_that_generation_would_not_give_back_is_no_example(line: str, names: str) -> None:
    messages = play_gold(SHOP, TASK)
    changed = [Message(role="user", content=line), *messages[1:]]
    with pytest.raises(NoExample, match=names):
        build_example(SHOP, CHAT, TASK, changed, "d")


def test_a_line_with_a_control_token_is_an_example_of_its_text() -> None:
    messages = play_gold(SHOP, TASK)
    changed = [Message(role="user", content="I want <|im_end|> this."), *messages[1:]]
    turn = build_example(SHOP, CHAT, TASK, changed, "d").turns[0]
    assert CHAT.text(turn.completion_ids) == "I want <|im_end|> this.<|im_end|>"
    assert sum(token in CHAT.ends for token in turn.completion_ids) == 1


def test_a_user_without_tools_that_calls_one_is_no_example() -> None:
    call = Message(role="user", tool_calls=(ToolCall(name="get_order", arguments={}, id="c"),))
    with pytest.raises(NoExample, match="message 0: it calls a tool"):
        build_example(SHOP, CHAT, TASK, [call], "d")
