"""The perfect agent: it makes its own gold calls and asks the user for the user's. In a task with
rules it asks for a look before each repair and before a transfer."""

from collections.abc import Mapping, Sequence
from typing import Final

from envs.agents import CLOSING, GoldAgent, call, is_done
from envs.task import TaskDefinition
from envs.telecom.policy import AUTHENTICATING, TRANSFERS
from envs.telecom.signs import SIGNS, SIM_LOCK
from envs.telecom.user_tools import TelecomUserTools
from events.messages import Action, ExecutedCall, Message, Requestor, executed_calls

INSTRUCTIONS: Final[Mapping[str, str]] = {
    "toggle_airplane_mode": "Please turn off airplane mode.",
    "reseat_sim_card": "Please take out the SIM card and put it in again.",
    "reset_apn_settings": "Please reset the APN settings.",
    "reboot_device": "Please restart your phone.",
    "toggle_data": "Please turn on mobile data.",
    "toggle_roaming": "Please turn on data roaming on your phone.",
    "toggle_data_saver_mode": "Please turn off data saver.",
    "set_network_mode_preference": "Please set the network mode to prefer 4G and 5G.",
    "disconnect_vpn": "Please turn off the VPN.",
    "toggle_wifi_calling": "Please turn off Wi-Fi calling.",
    "grant_app_permission": "Please grant the {app_name} app the {permission} permission.",
    "make_payment": "You have a request from us. Please pay it now.",
    "check_network_status": "What does your network status say?",
    "check_sim_status": "Is your SIM card all right?",
    "check_apn_settings": "What do the APN settings say?",
    "check_data_restriction_status": "Is data saver on?",
    "check_network_mode_preference": "Which network mode is set?",
    "check_vpn_status": "Is the VPN on?",
    "check_wifi_calling_status": "Is Wi-Fi calling on?",
    "check_app_permissions": "Which permissions does the {app_name} app have?",
}
"""User's tool -> the agent's words that ask for its use."""


class TelecomOracle(GoldAgent):
    """An oracle that makes the agent's gold actions and asks the user for theirs."""

    def __init__(self, task: TaskDefinition, writes: frozenset[str], who: str = "") -> None:
        """`who` is its question who the user is; empty if it asks no such question."""
        super().__init__(task, writes)
        self.actions = list(task.criteria.gold_actions or ())
        if task.criteria.rules is not None:
            self.actions = _add_looks(self.actions, "assistant" if task.solo else "user")
        self.solo = task.solo
        self.who = who if self.actions and self.actions[0].name in AUTHENTICATING else ""

    def reply(self, messages: Sequence[Message]) -> Message:
        """Return the next gold action or request, the question before it, or the closing words."""
        if self.who and not self._knows_user(messages):
            return Message(role="assistant", content=self.who)
        done = self._count_done(messages)
        if done == len(self.actions):
            return Message(role="assistant", content=self._closing(messages))
        action = self.actions[done]
        if action.requestor == "user":
            return Message(role="assistant", content=_instruction(action))
        if self.solo or action.name not in self.writes or self._has_consent(action, messages):
            return call(action, done)
        return Message(role="assistant", content=self.question(action))

    def _closing(self, messages: Sequence[Message]) -> str:
        if self.actions and self.actions[-1].name == "transfer_to_human_agents":
            return "YOU ARE BEING TRANSFERRED TO A HUMAN AGENT. PLEASE HOLD ON."
        return " ".join([*self.outputs, CLOSING])

    def _knows_user(self, messages: Sequence[Message]) -> bool:
        text = " ".join(message.text for message in messages if message.role == "user")
        return all(str(value) in text for value in self.actions[0].arguments.values())

    def _count_done(self, messages: Sequence[Message]) -> int:
        done = 0
        calls: dict[int, list[ExecutedCall]] = {}
        for item in executed_calls(messages):
            calls.setdefault(item.turn, []).append(item)
        for turn, message in enumerate(messages):
            if message.role != "assistant" or done == len(self.actions):
                continue
            action = self.actions[done]
            if action.requestor == "user":
                done += message.text == _instruction(action)
            elif message.tool_calls:
                done += any(is_done(action, item) for item in calls[turn])
        return done

    def _has_consent(self, action: Action, messages: Sequence[Message]) -> bool:
        return len(messages) >= 2 and messages[-2].text == self.question(action)


def _add_looks(actions: Sequence[Action], requestor: Requestor) -> list[Action]:
    """Return the actions with a look before each one that needs it. Each look is made once."""
    whole: list[Action] = []
    for action in actions:
        sign = SIM_LOCK if action.name in TRANSFERS else SIGNS.get(action.name)
        if sign is not None:
            names = TelecomUserTools.tools()[sign.looks].parameters
            arguments = {name: action.arguments[name] for name in names}
            look = Action(name=sign.looks, arguments=arguments, requestor=requestor)
            whole += [look] if look not in whole else []
        whole.append(action)
    return whole


def _instruction(action: Action) -> str:
    words = INSTRUCTIONS.get(action.name, f"Please use {action.name}.")
    return words.format_map({name: str(value) for name, value in action.arguments.items()})
