"""An honest agent that knows nothing of a task wins it: it looks, and mends what it saw."""

import json
import re
from collections.abc import Generator, Sequence
from typing import Any

import pytest

from envs.agents import call
from envs.episode import Episode, play
from envs.grading import grade
from envs.telecom.environment import Telecom
from envs.telecom.kinds import KINDS, WHO
from events.messages import Action, Message

TELECOM = Telecom()
STEPS = (
    ("What does your network status say?", "Airplane Mode: ON", "Please turn off airplane mode."),
    ("Is your SIM card all right?", "No SIM card", "Please take the SIM card out and put it in."),
    ("What do the APN settings say?", "Name: broken|MMSC[^;]*Not Set", "Please reset the APN."),
    ("What does your network status say?", "Data Enabled: No", "Please turn on mobile data."),
    ("Is data saver on?", "is ON", "Please turn off data saver."),
    ("Which network mode is set?", "[23]g_only", "Please set the network mode to 4g_5g_preferred."),
    ("Is the VPN on?", "VPN is ON", "Please disconnect the VPN."),
    ("Is Wi-Fi calling on?", "turned ON", "Please turn off Wi-Fi calling."),
    ("Which permissions does the messaging app have?", "^((?!sms).)*$",
     "Please grant the messaging app the sms permission."),
    ("Which permissions does the messaging app have?", "^((?!storage).)*$",
     "Please grant the messaging app the storage permission."),
)  # fmt: skip
"""The policy's order: a look, what it shows where something is wrong, and the repair."""

Plan = Generator[str | Action, str, None]


class Troubleshooter:
    """Follows the policy: finds customer and line, looks step by step, repairs what it saw."""

    def __init__(self) -> None:
        self.plan: Plan | None = None

    def reply(self, messages: Sequence[Message]) -> Message:
        """The next step of the plan, given the last answer."""
        if self.plan is None:
            self.plan = troubleshoot(messages[-1].text)
            step = next(self.plan)
        else:
            step = self.plan.send(messages[-1].text)
        if isinstance(step, Action):
            return call(step, len(messages))
        return Message(role="assistant", content=step)


def tool(name: str, **arguments: Any) -> Action:
    return Action(name=name, arguments=arguments)


def troubleshoot(opening: str) -> Plan:
    number = re.search(r"\d{3}-\d{3}-\d{4}", opening) or re.search(
        r"\d{3}-\d{3}-\d{4}", (yield WHO)
    )
    assert number is not None
    customer = json.loads((yield tool("get_customer_by_phone", phone_number=number.group())))
    for line_id in customer["line_ids"]:
        line = json.loads((yield tool("get_details_by_id", id=line_id)))
        if line["phone_number"] == number.group():
            break
    owner = {"customer_id": customer["customer_id"], "line_id": line["line_id"]}
    if line["status"] == "Suspended":
        if line["contract_end_date"] < "2025-02-25":
            yield from hand_over(customer["customer_id"])
        yield from resume(owner)
    for look, wrong, repair in STEPS:
        answer = yield look
        if "locked" in answer:
            yield from hand_over(customer["customer_id"])
        if re.search(wrong, answer):
            yield repair
            if "APN" in repair:
                yield "Please restart your phone."
    while True:
        yield "Your request is complete."


def hand_over(customer_id: str) -> Plan:
    yield tool("transfer_to_human_agents", summary=f"{customer_id} has no service.")
    yield "YOU ARE BEING TRANSFERRED TO A HUMAN AGENT. PLEASE HOLD ON."


def resume(owner: dict[str, Any]) -> Plan:
    bills = json.loads((yield tool("get_bills_for_customer", customer_id=owner["customer_id"])))
    bill = next(bill for bill in bills if bill["status"] == "Overdue")
    request = {"customer_id": owner["customer_id"], "bill_id": bill["bill_id"]}
    yield f"A bill of {bill['total_due']} USD is overdue. Shall I send a request (yes/no)?"
    yield tool("send_payment_request", **request)
    yield "Please pay it now."
    yield "The line will work again. Shall I resume it (yes/no)?"
    yield tool("resume_line", **owner)
    yield "Please restart your phone."


PHONE = sorted(set(KINDS) - {"data_used_up", "roaming", "line_change"})


@pytest.mark.parametrize("capability", PHONE)
def test_an_agent_that_mends_what_it_saw_wins(capability: str) -> None:
    for seed in range(20):
        task = TELECOM.generate(capability, seed)
        episode = play(Episode(TELECOM, task), Troubleshooter(), TELECOM.user(task))
        verdict = grade(TELECOM, task, episode.messages, episode.termination)
        assert verdict.success, (task.id, verdict)
