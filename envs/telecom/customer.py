"""A scripted user who acts: it does the agent's requests on its phone and tells what it sees.

    Please turn off airplane mode.    checks whether it is on, switches it if so, tells the result
    Is your SIM card all right?       looks, tells the result
    Please restart your phone.        restarts it, tells the result

After an action it checks whether its problem is solved; if so, it says so and hangs up. The script
answers every other text (envs/users.py). Guarantee: replies depend only on what the user can see.
Not promised: that every wording is understood. Each clause is searched for a part of the phone
(`_PARTS`) and for an action.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from envs.task import TaskDefinition
from envs.telecom.user_tools import TelecomUserTools
from envs.users import HEARD_CHARACTERS, STOP, Listener, ScriptUser, is_end
from events.messages import Message, ToolCall

SOLVED: Final = "It works now, thank you."
NOT_SOLVED: Final = "It still does not work."


@dataclass(frozen=True, slots=True)
class Request:
    """One thing that the agent asks the user to do with the phone."""

    looks: str | None
    """Tool that shows the present state; None if there is nothing to look at."""
    acts: str | None = None
    """Tool that makes the requested change; None if the agent only asks for a look."""
    arguments: tuple[tuple[str, str], ...] = ()
    unless: str = ""
    """Pattern of a result of `looks` after which no change is needed."""


@dataclass(frozen=True, slots=True)
class _Switch:
    noun: str
    looks: str
    on: str
    """Pattern of the result that shows that it is on."""
    off: str
    turn_on: str
    turn_off: str

    def read(self, clause: str) -> Request:
        if re.search(_ASKS, clause) or _describes(clause):
            return Request(self.looks)
        if re.search(_OFF, clause):
            return Request(self.looks, self.turn_off, unless=self.off)
        if re.search(_ON, clause):
            return Request(self.looks, self.turn_on, unless=self.on)
        if re.search(r"\b(toggle|switch|flip)\b", clause):
            return Request(None, self.turn_on)
        return Request(self.looks)


_ASKS: Final = (
    r"^\W*(please )?(also )?((can|could) you )?"
    r"(is|are|does|do you|did|what|which|check|look|see|tell|verify|confirm|if)\b|\bwhether\b"
)
"""Beginning of a clause that asks for information and not for a change."""

_DESCRIBES: Final = r"\b(is|are|was|were|been|says|shows)\b"
_ORDERS: Final = (
    r"\b(turn|switch|toggle|flip|(dis|en)able|(de)?activate|(dis)?connect|stop|make sure|ensure"
    r"|should|must|needs? to)\b"
)

_IT: Final = r"\b(it|that)\b"
"""Pronouns that refer to a part of the phone named before."""

_OFF: Final = r"\b(off|disable|deactivate|disconnect|stop using)\b"
_ON: Final = r"\b(on|enable|activate|connect to)\b(?! (the|your) (phone|device|screen))"
_WIFI: Final = r"\bwi-?fi\b"


def _describes(clause: str) -> bool:
    """Return whether a clause only describes a state: "data saver is off" asks for no change."""
    return bool(re.search(_DESCRIBES, clause)) and not re.search(_ORDERS, clause)


_SWITCHES: Final = (
    _Switch(
        r"\b(air ?plane|flight) mode\b",
        "check_network_status",
        "Airplane Mode: ON",
        "Airplane Mode: OFF",
        "toggle_airplane_mode",
        "toggle_airplane_mode",
    ),
    _Switch(
        r"\b(mobile|cellular) data\b(?! (saver|plan|usage|roaming))",
        "check_network_status",
        "Mobile Data Enabled: Yes",
        "Mobile Data Enabled: No",
        "toggle_data",
        "toggle_data",
    ),
    _Switch(
        r"\broaming\b",
        "check_network_status",
        "Data Roaming Enabled: Yes",
        "Data Roaming Enabled: No",
        "toggle_roaming",
        "toggle_roaming",
    ),
    _Switch(
        r"\bdata[- ]saver\b",
        "check_data_restriction_status",
        "is ON",
        "is OFF",
        "toggle_data_saver_mode",
        "toggle_data_saver_mode",
    ),
    _Switch(
        rf"{_WIFI} calling\b",
        "check_wifi_calling_status",
        "turned ON",
        "turned OFF",
        "toggle_wifi_calling",
        "toggle_wifi_calling",
    ),
    _Switch(
        rf"{_WIFI}(?! calling)",
        "check_wifi_status",
        "Wi-Fi is ON",
        "Wi-Fi is turned OFF",
        "toggle_wifi",
        "toggle_wifi",
    ),
    _Switch(r"\bvpn\b", "check_vpn_status", "is ON", "turned OFF", "connect_vpn", "disconnect_vpn"),
)

_MODES: Final = (("2g_only", r"\b2g"), ("3g_only", r"\b3g"), ("4g_only", r"\b(4g|lte)[ _]only"))
_PERMISSIONS: Final = ("sms", "storage", "phone", "network")

_CLAUSE: Final = re.compile(r"[!?;:,\n]|\.(?!\d)|\b(?:and|then|after that|next)\b", re.IGNORECASE)
_SENTENCE: Final = re.compile(r"[!?;\n]|\.(?!\d)")
_NOT_FOR_THE_USER: Final = re.compile(
    r"\bI(?:'ll|'m|'ve| will| have| am| can| could| would| need to| just| see)\b"
    r"|\b(?:shall|should|may) I\b|\b(?:do not|don't|no need to)\b|\bdo you confirm\b"
    r"|\b(?:company|plan|on our side|account)\b",
    re.IGNORECASE,
)
"""Words that show that a sentence asks nothing of the user."""

_TOOL_NAME: Final = re.compile(
    "|".join(sorted(TelecomUserTools.tools(), key=len, reverse=True)), re.IGNORECASE
)


@lru_cache(maxsize=4096)
def read_requests(text: str) -> tuple[Request, ...]:
    """Return the things that a text of the agent asks the user to do with the phone, in order."""
    found: dict[Request, None] = {}
    named: _Switch | None = None
    for sentence in _SENTENCE.split(text[-HEARD_CHARACTERS:]):
        if not _NOT_FOR_THE_USER.search(sentence):
            # Permissions may be a list with one verb, such as "sms and storage".
            whole = "permission" in sentence.lower()
            for clause in [sentence.lower()] if whole else _CLAUSE.split(sentence.lower()):
                named = _find_switch(clause, named)
                found |= dict.fromkeys(_read_clause(clause, named))
    return tuple(found)


def _find_switch(clause: str, before: _Switch | None) -> _Switch | None:
    """Return the switch that a clause names or refers to by a pronoun, or None."""
    named = next((switch for switch in _SWITCHES if re.search(switch.noun, clause)), None)
    is_meant = re.search(_IT, clause) and re.search(f"{_OFF}|{_ON}", clause)
    return named or (before if is_meant or not clause.strip() else None)


def _read_clause(clause: str, switch: _Switch | None) -> Iterator[Request]:
    named = _TOOL_NAME.search(clause)
    if named is not None:
        yield from _read_tool(named.group())
        return
    if switch is not None and clause.strip():
        yield switch.read(clause)
        return
    for noun, read in _PARTS.items():
        if re.search(noun, clause):
            yield from read(clause)
            return


def _read_tool(name: str) -> Iterator[Request]:
    tool = TelecomUserTools.tools()[name]
    if tool.parameters:
        return
    yield Request(name) if tool.kind == "read" else Request(None, name)


def _read_sim(clause: str) -> Iterator[Request]:
    moves = re.search(r"re-?seat|remove|take|re-?insert|insert|put|eject", clause)
    yield Request(None, "reseat_sim_card") if moves else Request("check_sim_status")


def _read_apn(clause: str) -> Iterator[Request]:
    resets = re.search(r"\b(reset|restore|default)", clause)
    yield Request(None, "reset_apn_settings") if resets else Request("check_apn_settings")


def _read_reboot(clause: str) -> Iterator[Request]:
    yield Request(None, "reboot_device")


def _read_mode(clause: str) -> Iterator[Request]:
    is_set = re.search(r"\b(is|was) (\w+ )?set\b", clause)
    if is_set or not re.search(r"\b(set|change|switch|choose|select|prefer)\b", clause):
        yield Request("check_network_mode_preference")
        return
    mode = next((name for name, word in _MODES if re.search(word, clause)), "4g_5g_preferred")
    yield Request(
        "check_network_mode_preference",
        "set_network_mode_preference",
        (("mode", mode),),
        unless=f": {mode}",
    )


def _read_permission(clause: str) -> Iterator[Request]:
    app = "browser" if "browser" in clause else "messaging"
    wanted = [name for name in _PERMISSIONS if re.search(rf"\b{name}\b", clause)]
    if wanted and re.search(r"\b(grant|allow|give|enable|turn on|add)\b", clause):
        for name in wanted:
            yield Request(None, "grant_app_permission", (("app_name", app), ("permission", name)))
    else:
        yield Request("check_app_permissions", arguments=(("app_name", app),))


def _read_payment(clause: str) -> Iterator[Request]:
    if _describes(clause) and not re.search(r"\bpay\b", clause):
        return
    if re.search(r"\b(check|look|see|received|have)\b", clause):
        yield Request("check_payment_request")
    else:
        yield Request("check_payment_request", "make_payment", unless="No payment request")


_PARTS: Final[Mapping[str, Any]] = {
    r"\bsim\b": _read_sim,
    r"\bapn\b|access point": _read_apn,
    r"\b(re-?start|re-?boot|power cycle)\b": _read_reboot,
    r"network (mode|preference|type)|preferred network": _read_mode,
    r"permission": _read_permission,
    r"\b(pay|payment|bill)\b": _read_payment,
    r"\bapps?\b": lambda clause: iter([Request("check_installed_apps")]),
    r"network status|connection status": lambda clause: iter([Request("check_network_status")]),
    r"\bspeed\b": lambda clause: iter([Request("run_speed_test")]),
    r"\bmms\b|\b(picture|photo)s?\b": lambda clause: iter([Request("can_send_mms")]),
    r"status bar|\bsignal\b|\bbars\b": lambda clause: iter([Request("check_status_bar")]),
}
"""Pattern of a part of the phone -> reader of a clause's request. The first match counts."""

_GOALS: Final = {
    "assert_can_send_mms": ("can_send_mms", "app can send"),
    "assert_internet_speed": ("run_speed_test", r"\(Excellent\)"),
    "assert_mobile_data_status": ("run_speed_test", "Speed Test Result"),
    "assert_service_status": ("check_network_status", "Cellular Connection: connected"),
}
"""Assertion -> tool and result pattern by which the user sees it hold; the first of a task
counts."""


class ActingUser:
    """A scripted user that also carries out the agent's requests."""

    def __init__(self, task: TaskDefinition) -> None:
        self.script = ScriptUser(task).script
        self._listener = Listener(self.script)
        self._understood: dict[str, tuple[Request, ...]] = {}
        """Text of the agent -> the requests in it."""
        self.goal = _find_goal(task)
        """Tool and result pattern that show that the user's problem is solved, or None."""

    def reply(self, messages: Sequence[Message]) -> Message:
        """Return the user's next line or next call."""
        if not any(message.role == "user" for message in messages):
            return Message(role="user", content=self.script.opening)
        place = max(i for i, message in enumerate(messages) if message.role == "assistant")
        requests = self._understand(messages[place].text)
        if requests:
            return self._act(requests, messages[place + 1 :], len(messages))
        first = next(i for i, message in enumerate(messages) if message.role == "user")
        heard = [
            message.text
            for message in messages[first + 1 :]
            if message.role == "assistant" and not self._understand(message.text)
        ]
        return Message(role="user", content=self._listener.answer(heard))

    def _understand(self, text: str) -> tuple[Request, ...]:
        if text not in self._understood:
            requests = () if is_end(self.script, text) else read_requests(text)
            self._understood[text] = requests
        return self._understood[text]

    def _act(self, requests: Sequence[Request], own: Sequence[Message], number: int) -> Message:
        """Return the next call that the requests need, or at last a report of the results."""
        answers = [message.text for message in own if message.role == "tool"]
        steps = self._steps(requests)
        for place, answer in enumerate([None, *answers]):
            try:
                name, arguments = next(steps) if place == 0 else steps.send(answer)
            except StopIteration:
                break
            if place == len(answers):
                call = ToolCall(name=name, arguments=arguments, id=f"user_{number}")
                return Message(role="user", tool_calls=(call,))
        names = [call.name for message in own for call in message.tool_calls]
        return Message(role="user", content=self._report(requests, names, answers))

    def _steps(self, requests: Sequence[Request]) -> Any:
        has_acted = False
        for request in requests:
            arguments = dict(request.arguments)
            if request.looks is not None:
                seen = yield request.looks, {} if request.acts else arguments
                if request.acts is None or re.search(request.unless, seen):
                    continue
            assert request.acts is not None
            yield request.acts, arguments
            has_acted = True
        if has_acted and self.goal is not None:
            yield self.goal[0], {}

    def _report(
        self, requests: Sequence[Request], names: Sequence[str], answers: Sequence[str]
    ) -> str:
        """Return the user's words about the results, without looks that came before a change."""
        before = {request.looks for request in requests if request.acts in names}
        seen = "; ".join(
            answer.rstrip(".").replace("\n", "; ")
            for name, answer in zip(names, answers, strict=True)
            if name not in before
        )
        if self.goal is None or self.goal[0] not in names:
            return f"I see: {seen}."
        if re.search(self.goal[1], dict(zip(names, answers, strict=True))[self.goal[0]]):
            return f"I see: {seen}. {SOLVED} {STOP}"
        return f"I see: {seen}. {NOT_SOLVED}"


def _find_goal(task: TaskDefinition) -> tuple[str, str] | None:
    """Return the tool and pattern that show the problem solved, or None if the phone cannot."""
    wanted = {
        assertion.name
        for assertion in task.criteria.assertions
        if assertion.expected and assertion.arguments.get("expected_status") != "no_service"
    }
    return next((goal for name, goal in _GOALS.items() if name in wanted), None)
