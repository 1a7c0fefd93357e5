"""Signs on the phone that a repair is needed, and signs that only a person can solve the problem.

A repair is a user's tool that corrects one part of the phone. Restarts, payments and Wi-Fi do not
count: they repair nothing by themselves, or the company's records judge them.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from envs.telecom.tools import SUSPENDED, TODAY


@dataclass(frozen=True, slots=True)
class Sign:
    """A tool's result that shows a fault of the phone."""

    looks: str
    """The user's tool to look with. Other tools may show the sign too."""
    pattern: str
    """Pattern of the sign in a result of any tool."""


_NETWORK: Final = "check_network_status"
_APN: Final = Sign("check_apn_settings", r"APN Name: (broken|Not Set)|picture messages\): Not Set")

SIGNS: Final[Mapping[str, Sign]] = {
    "toggle_airplane_mode": Sign(_NETWORK, "Airplane Mode: ON|Airplane Mode is now ON|✈️"),
    "reseat_sim_card": Sign(_NETWORK, "SIM Card Status: missing|No SIM card"),
    "reset_apn_settings": _APN,
    "set_apn_settings": _APN,
    "toggle_data": Sign(
        _NETWORK, "Mobile Data Enabled: No|Mobile Data is now OFF|📵 Data Disabled"
    ),
    "toggle_roaming": Sign(_NETWORK, "Data Roaming Enabled: No|Data Roaming is now OFF"),
    "toggle_data_saver_mode": Sign(
        "check_data_restriction_status", r"Data Saver mode is (now )?ON|🔽 Data Saver"
    ),
    "set_network_mode_preference": Sign(
        "check_network_mode_preference", r"\b[234]g_only|Network Type: [23]G|\| [23]G\b"
    ),
    "disconnect_vpn": Sign("check_vpn_status", "VPN is ON|VPN Connected"),
    "toggle_wifi_calling": Sign("check_wifi_calling_status", r"Wi-Fi Calling is \w+ (turned )?ON"),
    "grant_app_permission": Sign(
        "check_app_permissions",
        r"(?is)\A(?=.*\b{app_name}\b)(?=.*(permission for|permissions granted|permissions: none))"
        r"(?!.*\b{permission}\b)",
    ),
}
"""Repair -> its sign. `{argument}` in a pattern stands for an argument of the repair."""

SIM_LOCK: Final = Sign("check_sim_status", r"SIM Card Status: locked|locked with a P[IU][NK] ")
"""The sign of a SIM card that only a person at the company can unlock."""


def is_needed(tool: str, arguments: Mapping[str, Any], answers: Iterable[str]) -> bool:
    """Return whether a result shows the need for a repair; True for tools that are no repair."""
    if tool not in SIGNS:
        return True
    pattern = SIGNS[tool].pattern
    for name, value in arguments.items():
        if isinstance(value, str):
            pattern = pattern.replace(f"{{{name}}}", re.escape(value))
    return any(re.search(pattern, answer) for answer in answers)


def is_beyond_repair(answers: Iterable[str]) -> bool:
    """Return whether a result shows a locked SIM card, or a suspended line of an ended contract."""
    return any(re.search(SIM_LOCK.pattern, answer) or _shows_ended(answer) for answer in answers)


def _shows_ended(answer: str) -> bool:
    try:
        line = json.loads(answer)
    except (ValueError, RecursionError):
        return False
    if not isinstance(line, dict) or line.get("status") != SUSPENDED:
        return False
    return str(line.get("contract_end_date") or TODAY) < TODAY
