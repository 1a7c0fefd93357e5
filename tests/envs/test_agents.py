"""The agents that need no model."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from envs.agents import CLOSING, GoldAgent, RandomAgent
from envs.database import Database
from envs.episode import Episode, Termination, play
from envs.tools import Toolset, read
from events.messages import Action, Message
from tests.envs.mini import Mini, called, heard, said, task

WRITES = Mini().writes
SYSTEM = Message(role="system", content="Be kind.")


def gold(*actions: Action, outputs: tuple[str, ...] = ()) -> GoldAgent:
    """The oracle of a task with these gold actions."""
    return GoldAgent(task(gold_actions=actions, outputs=outputs), WRITES)


CANCEL = Action(name="cancel_order", arguments={"order_id": "w1"})
LOOK = Action(name="get_order", arguments={"order_id": "w1"})


def script(made: Episode) -> list[str]:
    """Each message in a word: a call's tool, `asked`, or who said something."""
    words = []
    for message in made.messages:
        if message.tool_calls:
            words.append(message.tool_calls[0].name)
        elif message.role == "assistant" and "Do you confirm" in message.text:
            words.append("asked")
        else:
            words.append(message.role)
    return words


def test_the_oracle_reads_at_once_and_asks_before_each_write() -> None:
    environment, given = Mini(), task(gold_actions=(LOOK, CANCEL, CANCEL))
    made = play(Episode(environment, given), environment.oracle(given), environment.user(given))
    assert script(made) == [
        "user",
        "get_order", "tool",
        "asked", "user", "cancel_order", "tool",
        "asked", "user", "cancel_order", "tool",
        "assistant", "user",
    ]  # fmt: skip
    assert made.termination is Termination.USER_STOP


def test_the_opening_is_no_answer_to_a_question_and_a_greeting_is_none() -> None:
    greeting = Message(role="assistant", content="How can I help?", sampled=False)
    for before in ([SYSTEM], [SYSTEM, greeting]):
        reply = gold(CANCEL).reply([*before, heard("Cancel w1. Yes.")])
        assert reply.text.startswith("I will cancel order: order_id w1.")
        assert not reply.tool_calls


def test_an_answer_before_a_call_is_no_leave_for_the_next_write() -> None:
    before = [SYSTEM, heard("Hi."), said("Sure?"), heard("Yes."), called("get_order")]
    result = Message(role="tool", content="{}")
    reply = gold(LOOK, CANCEL).reply([*before, result])
    assert "Do you confirm" in reply.text


def test_the_oracle_says_the_outputs_at_the_end_and_knows_no_others_part() -> None:
    users = Action(name="reboot", requestor="user")
    assert gold(users, outputs=("12.50", "Monday")).reply([SYSTEM]).text == (
        f"12.50 Monday {CLOSING}"
    )
    unknown = GoldAgent(task(gold_actions=None), WRITES)
    assert unknown.reply([SYSTEM, heard("Hi.")]).text == CLOSING


TALK = st.lists(
    st.text(max_size=30).map(heard) | st.text(min_size=1, max_size=30).map(said), max_size=6
)


@settings(deadline=None)
@given(st.integers(0, 50), TALK)
def test_a_random_agent_is_a_function_of_its_seed_and_the_transcript(
    seed: int, messages: list[Message]
) -> None:
    schemas = Mini().schemas(task())
    assert RandomAgent(schemas, seed).reply(messages) == RandomAgent(schemas, seed).reply(messages)


def random_calls(schemas: Any, count: int = 200) -> list[Message]:
    """What random agents call after the same words."""
    messages = [heard("Order w1, please, or w2.")]
    replies = [RandomAgent(schemas, seed).reply(messages) for seed in range(count)]
    return [reply for reply in replies if reply.tool_calls]


def test_random_agents_differ_by_seed_and_use_every_tool() -> None:
    made = random_calls(Mini().schemas(task()))
    names = {message.tool_calls[0].name for message in made}
    assert names == set(Mini().toolset.tools())
    assert len({repr(message) for message in made}) > 50
    assert any("'order_id': 'w1'" in repr(message) for message in made), "values come from the talk"


def test_a_random_agent_stops_calling_at_last() -> None:
    agent = RandomAgent(Mini().schemas(task()), 0, calls=2)
    after = [heard("Hi."), called("get_order"), called("get_order")]
    for length in range(20):
        assert not agent.reply([*after, *[heard("Hm.")] * length]).tool_calls


class Leaf(BaseModel):
    """A model that holds itself."""

    name: str
    below: "Leaf | None" = None


class Nested(Toolset):
    """A tool with everything that pydantic's schemas have."""

    @read
    def nest(self, leaf: Leaf, leaves: list[Leaf], either: int | bool, none: None) -> str:
        """Take it all."""
        return leaf.name


def test_a_random_agent_fits_references_and_choices() -> None:
    made = random_calls(Nested.schemas())
    given = [message.tool_calls[0].arguments for message in made]
    results = [Nested(Database({})).call("nest", arguments) for arguments in given]
    assert len(results) > 100
    assert sum(not result.error for result in results) > len(results) / 2


@pytest.mark.parametrize(
    "parameters",
    [
        None,
        {},
        {"type": "object"},
        {"properties": {"a": {}}},
        {"properties": {"a": True}},
        {"properties": {"a": {"enum": []}}},
        {"properties": {"a": {"$ref": "#/$defs/Missing"}}},
        {"properties": {"a": {"type": ["string", "null"]}}},
        {"properties": {"a": {"type": "array"}}},
        {"properties": {"a": {"type": "array", "items": {"$ref": "#/$defs/A"}}},
         "$defs": {"A": {"type": "array", "items": {"$ref": "#/$defs/A"}}}},
        {"properties": {"a": {"allOf": [{"type": "string"}]}}},
        {"properties": {"a": {"oneOf": [{"const": 4}]}}},
    ],
)  # fmt: skip
def test_a_random_agent_reads_any_schema(parameters: dict[str, Any] | None) -> None:
    function: dict[str, Any] = {"name": "odd"}
    if parameters != {}:
        function["parameters"] = parameters
    made = random_calls([{"type": "function", "function": function}], 40)
    assert made
    if parameters and "properties" in parameters:
        assert all("a" in message.tool_calls[0].arguments for message in made)
