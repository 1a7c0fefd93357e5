"""Which rules of telecom a transcript breaks."""

import json
from typing import Any

import pytest

from envs.telecom.environment import Telecom
from events.messages import Message, ToolCall
from tests.envs.mini import said

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
ACTS = Message(role="user", tool_calls=(ToolCall(name="reboot_device"),))


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


def looked(*answers: str) -> list[Message]:
    """Looks of the user, which the agent asked for."""
    look = Message(role="user", tool_calls=(ToolCall(name="check_network_status"),))
    return [part for text in answers for part in (look, Message(role="tool", content=text))]


AIRPLANE = "Airplane Mode: ON\nSIM Card Status: active"
OFF = said("Please turn off airplane mode.")
ENDED = {"line_id": "L1", "status": "Suspended", "contract_end_date": "2025-01-31"}
LOCKED = looked("The SIM card is locked with a PIN code.")
TRANSFER = called("transfer_to_human_agents", summary="Customer C1 has no service.")


@pytest.mark.parametrize(
    ("messages", "broken"),
    [
        ([*looked(AIRPLANE), OFF], []),
        ([OFF], ["toggle_airplane_mode, and nothing seen before"]),
        ([OFF, *looked(AIRPLANE)], ["toggle_airplane_mode, and nothing seen before"]),
        ([*looked("Airplane Mode: OFF"), OFF], ["toggle_airplane_mode, and nothing seen before"]),
        ([said("Airplane mode is off. Please restart your phone.")], []),
        ([said("Please turn off airplane mode and turn off the VPN.")], ["airplane", "vpn"]),
        ([*looked("App 'messaging' has permission for: sms."),
          said("Please grant the messaging app the sms and storage permissions.")],
         ["nothing seen"]),
        ([said("Hello."), ACTS], []),
        ([said("Hello."), Message(role="user", tool_calls=(ToolCall(name="toggle_data"),))],
         ["toggle_data, and nothing seen before"]),
        ([OFF.model_copy(update={"sampled": False})], []),
        ([*FIND, *LOCKED, *TRANSFER], []),
        ([*FIND, *called("get_details_by_id", ENDED), *TRANSFER], []),
        ([*FIND, *called("get_details_by_id", {**ENDED, "status": "Active"}), *TRANSFER],
         ["nothing seen before gives a reason"]),
        ([*FIND, *called("get_details_by_id", {**ENDED, "contract_end_date": "2026-01-31"}),
          *TRANSFER], ["nothing seen before gives a reason"]),
        ([*FIND, *TRANSFER], ["nothing seen before gives a reason"]),
        ([*LOCKED, *TRANSFER], ["before the customer is found"]),
        ([*FIND, *LOCKED, *called("transfer_to_human_agents", summary="Locked.")],
         ["without the customer's id"]),
    ],
)  # fmt: skip
def test_a_task_with_rules_demands_that_something_was_seen(
    messages: list[Message], broken: list[str]
) -> None:
    found = TELECOM.violations(TASK, messages)
    assert len(found) == len(broken), found
    assert all(part in sentence for part, sentence in zip(broken, found, strict=True))
    plain = TASK.criteria.model_copy(update={"rules": None})
    assert TELECOM.violations(TASK.model_copy(update={"criteria": plain}), messages) == ()


def test_a_call_that_failed_hands_nobody_over() -> None:
    seeds = (
        seed for seed in range(20) if not TELECOM.generate("hand_over", seed).criteria.assertions
    )
    task = TELECOM.generate("hand_over", next(seeds))
    failed = TRANSFER[1].model_copy(update={"error": True})
    assert TELECOM.violations(task, [TRANSFER[0], failed]) == ("the user was not handed over",)


def test_an_agent_that_works_alone_looks_before_it_repairs() -> None:
    solo = TELECOM.make_solo(TASK)
    look, repair = called("check_network_status", AIRPLANE), called("toggle_airplane_mode")
    assert TELECOM.violations(solo, [*look, *repair, said("I turned off airplane mode.")]) == ()
    assert len(TELECOM.violations(solo, [*repair, *look])) == 1
