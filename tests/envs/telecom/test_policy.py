"""Which rules of telecom a transcript breaks."""

import json
from typing import Any

import pytest

from envs.telecom.environment import Telecom
from events.messages import Message, ToolCall

TELECOM = Telecom()
TASK = TELECOM.generate("line_change", 0)
LINE = {"customer_id": "C1", "line_id": "L1"}


def called(name: str, answer: Any = "ok", /, **arguments: Any) -> list[Message]:
    """A call of the agent, and its result."""
    return [
        Message(role="assistant", tool_calls=(ToolCall(name=name, arguments=arguments),)),
        Message(role="tool", content=answer if isinstance(answer, str) else json.dumps(answer)),
    ]


FIND = called("get_customer_by_phone", {"customer_id": "C1"}, phone_number="1")
WRITE = called("enable_roaming", **LINE)
YES = Message(role="user", content="Yes, please.")
NO = Message(role="user", content="Wait.")
ACTS = Message(role="user", tool_calls=(ToolCall(name="toggle_data"),))


@pytest.mark.parametrize(
    ("messages", "broken"),
    [
        ([*FIND, YES, *WRITE], []),
        ([*FIND, YES, ACTS, *WRITE], []),
        ([*FIND, NO, *WRITE], ["without the user's yes"]),
        ([YES, *WRITE], ["before the customer is found"]),
        ([*FIND, YES, *called("enable_roaming", **{**LINE, "customer_id": "C2"})], ["data of C2"]),
        ([*called("get_customer_by_name", [{"customer_id": "C1"}]), YES, *WRITE], []),
        ([*called("get_customer_by_name", "no JSON"), YES, *WRITE], ["before the customer"]),
        ([Message(role="assistant", tool_calls=(ToolCall(name="get_data_usage"),) * 2)],
         ["2 calls at once"]),
    ],
)  # fmt: skip
def test_a_broken_rule_is_named(messages: list[Message], broken: list[str]) -> None:
    found = TELECOM.violations(TASK, messages)
    assert len(found) == len(broken)
    assert all(part in sentence for part, sentence in zip(broken, found, strict=True))


def test_an_agent_that_works_alone_needs_no_yes() -> None:
    solo = TELECOM.make_solo(TASK)
    assert TELECOM.violations(solo, [*FIND, *WRITE]) == ()
