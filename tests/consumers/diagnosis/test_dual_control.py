"""Whose fault a failure is where the user acts too."""

from typing import Any

import pytest

from consumers.diagnosis.detectors import Diagnosis, diagnose
from envs.catalog import CATALOGS
from events.messages import Action, Message, ToolCall
from events.rollouts import RolloutContent, RolloutEnded, Task

TELECOM = CATALOGS["telecom"]
LINE = {"customer_id": "C1", "line_id": "L1"}
GOLD = (
    Action(name="enable_roaming", arguments=LINE),
    Action(name="toggle_roaming", requestor="user"),
)


def called(name: str, role: Any = "assistant", /, **arguments: Any) -> list[Message]:
    """A call of a party, and an answer."""
    calls = (ToolCall(name=name, arguments=arguments),)
    return [Message(role=role, tool_calls=calls), Message(role="tool", content="done")]


FIND = called("get_customer_by_phone", phone_number="1")
ENABLE = called("enable_roaming", **LINE)
ASK = [Message(role="assistant", content="Please turn on roaming on your phone, will you?")]
ACT = called("toggle_roaming", "user")
TRANSFER = called("transfer_to_human_agents", summary="")
BYE = [Message(role="user", content="Goodbye. ###STOP###")]


def failed(
    *messages: list[Message],
    gold: tuple[Action, ...] = GOLD,
    parts: dict[str, float] | None = None,
) -> Diagnosis:
    """The diagnosis of a failed rollout with these messages."""
    rollout = RolloutEnded(
        rollout="r1",
        alias="a",
        base="b",
        policy="b",
        source="tau2",
        purpose="import",
        task=Task(id="telecom/1", environment="telecom", gold_actions=gold),
        success=False,
        reward=0.0,
        reward_parts=dict(parts or {}),
        termination="user_stop",
        content=RolloutContent(messages=tuple(m for group in messages for m in group)),
    )
    return diagnose(rollout, TELECOM)


@pytest.mark.parametrize("parts", [{}, {"ENV_ASSERTION": 0.0}, {"DB": 1.0, "ENV_ASSERTION": 0.0}])
def test_a_step_that_the_user_left_out_is_no_fault_of_the_agent(parts: dict[str, float]) -> None:
    found = failed(FIND, ENABLE, ASK, BYE, parts=parts)
    assert (found.category, found.pivot) == ("other", "*")
    (step,) = found.evidence["other"]
    assert (step["expected"], step["of"], step["gold"]) == ("toggle_roaming", "user", 1)


def test_a_missing_write_of_the_agent_is_its_own_whatever_the_user_left_out() -> None:
    found = failed(FIND, ASK, BYE)
    assert found.category == "premature_termination"
    assert "missing_write_action" in found.categories
    assert found.pivot == "enable_roaming"


def test_handing_over_instead_of_asking_for_the_step_is_over_cautious() -> None:
    assert failed(FIND, ENABLE, TRANSFER, BYE).category == "over_cautious"


def test_a_loop_of_the_agent_is_its_own_fault_though_the_user_left_out_a_step() -> None:
    assert failed(FIND * 4, ENABLE, ASK, BYE).category == "tool_loop"


def test_a_user_who_did_the_step_leaves_the_failure_unexplained_without_evidence() -> None:
    found = failed(FIND, ENABLE, ASK, ACT, BYE)
    assert (found.category, found.evidence["other"]) == ("other", [])


def test_what_the_user_repeats_is_no_loop_of_the_agent() -> None:
    assert failed(FIND, ENABLE, ASK, ACT * 5, BYE).category == "other"


ALONE = tuple(action.model_copy(update={"requestor": "assistant"}) for action in GOLD)
DONE = [Message(role="assistant", content="###STOP###")]


def test_every_step_is_the_agent_s_where_it_works_alone() -> None:
    found = failed(FIND, ENABLE, DONE, gold=ALONE)
    assert (found.category, found.pivot) == ("missing_write_action", "toggle_roaming")


def test_what_an_agent_alone_tries_on_the_phone_breaks_no_policy() -> None:
    tried = called("reboot_device") + called("toggle_wifi") + called("toggle_wifi")
    found = failed(FIND, ENABLE, tried, DONE, gold=ALONE)
    assert found.category == "missing_write_action"
    assert "policy_violation" not in found.categories
