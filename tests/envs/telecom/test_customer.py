"""The user who acts: what it understands, what it does, and when it hangs up."""

import pytest

from envs.task import TaskDefinition
from envs.telecom.customer import ActingUser, read_requests
from envs.telecom.environment import Telecom
from envs.users import STOP
from events.messages import Message, ToolCall
from tests.envs.mini import said

TELECOM = Telecom()


def asked(text: str) -> list[str]:
    """The tools that a text of the agent would have the user call: what it changes, else looks."""
    return [request.acts or request.looks or "" for request in read_requests(text)]


@pytest.mark.parametrize(
    ("text", "tools"),
    [
        ("Please turn off airplane mode.", ["toggle_airplane_mode"]),
        ("Could you disable Airplane Mode for me?", ["toggle_airplane_mode"]),
        ("Is airplane mode on?", ["check_network_status"]),
        ("Check whether airplane mode is on. If it is on, turn it off.",
         ["check_network_status", "toggle_airplane_mode"]),
        ("Please enable mobile data and turn off data saver.",
         ["toggle_data", "toggle_data_saver_mode"]),
        ("Turn on data roaming on your phone.", ["toggle_roaming"]),
        ("Please re-seat your SIM card.", ["reseat_sim_card"]),
        ("Is your SIM card locked?", ["check_sim_status"]),
        ("Reset the APN settings, then restart the phone.",
         ["reset_apn_settings", "reboot_device"]),
        ("Set the network mode to 4g_5g_preferred.", ["set_network_mode_preference"]),
        ("Please disconnect the VPN.", ["disconnect_vpn"]),
        ("Turn off Wi-Fi calling.", ["toggle_wifi_calling"]),
        ("Grant the messaging app the sms and storage permissions.",
         ["grant_app_permission", "grant_app_permission"]),
        ("Please run a speed test.", ["run_speed_test"]),
        ("Try to send a picture, please.", ["can_send_mms"]),
        ("What does the status bar show?", ["check_status_bar"]),
        ("Please use the toggle_data tool.", ["toggle_data"]),
        ("I have sent a payment request. Please check it.", []),
        ("Please pay the bill now.", ["make_payment"]),
        ("Airplane mode is off. Is the VPN on?", ["check_network_status", "check_vpn_status"]),
        ("Data saver is off and the VPN was off.",
         ["check_data_restriction_status", "check_vpn_status"]),
        ("Mobile data must be on.", ["toggle_data"]),
        ("Your network mode is set to 3g_only.", ["check_network_mode_preference"]),
        ("A bill of 45.0 USD is overdue. Shall I send you a request for it (yes/no)?", []),
        ("Do not turn on airplane mode.", []),
        ("I will enable roaming on your line: line_id L1. Do you confirm (yes/no)?", []),
        ("Thank you for your message.", []),
        ("", []),
    ],
)  # fmt: skip
def test_what_an_agent_asks_is_understood(text: str, tools: list[str]) -> None:
    assert asked(text) == tools


def user(task: TaskDefinition | None = None) -> ActingUser:
    """The user of a task about the service alone."""
    return ActingUser(task or TELECOM.generate("suspended_line", 0))


def answered(name: str, text: str) -> list[Message]:
    """A call of the user, and its result."""
    call = Message(role="user", tool_calls=(ToolCall(name=name, id="u"),))
    return [call, Message(role="tool", content=text, tool_call_id="u")]


OPEN = [Message(role="user", content="No service."), said("Please turn off airplane mode.")]


def test_the_user_looks_before_it_switches_and_then_whether_it_helped() -> None:
    talk = list(OPEN)
    made = []
    for text in ("Airplane Mode: ON", "Airplane Mode is now OFF.", "Cellular Connection: none"):
        (call,) = user().reply(talk).tool_calls
        made.append(call.name)
        talk += answered(call.name, text)
    assert made == ["check_network_status", "toggle_airplane_mode", "check_network_status"]
    assert user().reply(talk).text.endswith("It still does not work.")


def test_the_user_leaves_alone_what_is_already_as_it_should_be() -> None:
    talk = [*OPEN, *answered("check_network_status", "Airplane Mode: OFF")]
    line = user().reply(talk)
    assert line.tool_calls == ()
    assert "Airplane Mode: OFF" in line.text


def test_the_user_hangs_up_when_it_works_and_not_before() -> None:
    talk = [Message(role="user", content="No service."), said("What does your network status say?")]
    works = [*talk, *answered("check_network_status", "Cellular Connection: connected")]
    assert STOP in user().reply(works).text
    broken = [*talk, *answered("check_network_status", "Cellular Connection: no_service")]
    assert STOP not in user().reply(broken).text


def test_an_agent_that_says_nothing_of_the_phone_is_answered_by_the_script() -> None:
    talk = [Message(role="user", content="No service."), said("May I have your phone number?")]
    task = TELECOM.generate("no_service", 0)
    number = next(call.arguments["phone_number"] for call in task.setup if "name" in call.arguments)
    assert number in user(task).reply(talk).text


def test_a_user_who_is_handed_over_hangs_up_whatever_else_is_said() -> None:
    text = "YOU ARE BEING TRANSFERRED TO A HUMAN AGENT. PLEASE HOLD ON. Turn off airplane mode."
    assert STOP in user().reply([OPEN[0], said(text)]).text


def test_a_novel_of_the_agent_takes_no_long_time() -> None:
    assert asked("please turn off airplane mode " * 20_000) == ["toggle_airplane_mode"]
