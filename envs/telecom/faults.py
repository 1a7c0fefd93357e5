"""The faults of a line or a phone, each with its setup and its repair. A task may have several
faults. Setups and repairs run in the order of `FAULTS`, so that none undoes another (`combine`)."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Final

from envs.task import StateCall
from envs.telecom.case import Case, agent, prepare, user
from events.messages import Action

OVERUSE_GB: Final = 0.1
"""Gigabytes by which a line exceeds its limit."""

RESTART: Final = user("reboot_device")
SEARCH: Final = prepare("simulate_network_search")


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault in one case: the calls that cause it, and the actions that repair it."""

    setup: tuple[StateCall, ...]
    repair: tuple[Action, ...]
    """Actions of a perfect agent and its user. Several faults share the last restart."""


def _suspended(case: Case) -> Fault:
    bill_id = draw_bill_id(case)
    return Fault(
        (
            suspend(case, bill_id, contract_ended=False),
            SEARCH,
        ),
        (
            agent("get_details_by_id", id=case.line["line_id"]),
            agent("get_bills_for_customer", customer_id=case.customer["customer_id"]),
            agent(
                "send_payment_request",
                customer_id=case.customer["customer_id"],
                bill_id=bill_id,
            ),
            user("make_payment"),
            agent("resume_line", **case.owner),
            RESTART,
        ),
    )


def suspend(case: Case, bill_id: str, *, contract_ended: bool) -> StateCall:
    """Return the setup call that adds an overdue bill and suspends the case's line for it."""
    return prepare(
        "suspend_line_for_overdue_bill",
        "assistant",
        **case.owner,
        new_bill_id=bill_id,
        contract_ended=contract_ended,
    )


def draw_bill_id(case: Case) -> str:
    """Return a random id that no bill of the case's state has."""
    while (bill_id := f"B{case.chance.randrange(10_000, 100_000)}") in case.database["bills"]:
        pass
    return bill_id


def _line_roaming(case: Case) -> Fault:
    return Fault(
        (prepare("disable_roaming", "assistant", **case.owner),),
        (
            agent("get_details_by_id", id=case.line["line_id"]),
            agent("enable_roaming", **case.owner),
        ),
    )


def _used_up(case: Case) -> Fault:
    used = round(case.plan["data_limit_gb"] + OVERUSE_GB, 1)
    return Fault(
        (prepare("set_data_usage", "assistant", **case.owner, data_used_gb=used),),
        (
            agent("get_data_usage", **case.owner),
            agent("get_details_by_id", id=case.plan["plan_id"]),
            agent("refuel_data", **case.owner, gb_amount=draw_refuel(case)),
        ),
    )


def draw_refuel(case: Case) -> float:
    """Return the GB (0.5 to 2) that the customer wants to add, always the same for one case."""
    return (0.5, 1.0, 1.5, 2.0)[int(case.line["data_used_gb"] * 10) % 4]


def _old_network(case: Case) -> Fault:
    mode = "2g_only" if case.chance.random() < 0.5 else "3g_only"
    return Fault((prepare("set_network_mode_preference", mode=mode),), (_PREFER_NEW,))


_PREFER_NEW: Final = user("set_network_mode_preference", mode="4g_5g_preferred")


def _permission(name: str) -> Callable[[Case], Fault]:
    arguments = {"app_name": "messaging", "permission": name}
    return _make(
        prepare("remove_app_permission", **arguments), user("grant_app_permission", **arguments)
    )


def _make(setup: StateCall, *repair: Action) -> Callable[[Case], Fault]:
    """Return a function that makes the same fault in every case."""
    return lambda _: Fault((setup,), repair)


FAULTS: Final[Mapping[str, Callable[[Case], Fault]]] = {
    "airplane_mode": _make(prepare("turn_airplane_mode_on"), user("toggle_airplane_mode")),
    "no_sim": _make(prepare("unseat_sim_card"), user("reseat_sim_card")),
    "suspended": _suspended,
    "line_roaming": _line_roaming,
    "phone_roaming": _make(prepare("turn_roaming_off"), user("toggle_roaming")),
    "used_up": _used_up,
    "data_off": _make(prepare("turn_data_off"), user("toggle_data")),
    "old_network": _old_network,
    "oldest_network": _make(prepare("set_network_mode_preference", mode="2g_only"), _PREFER_NEW),
    "data_saver": _make(prepare("turn_data_saver_mode_on"), user("toggle_data_saver_mode")),
    "slow_vpn": _make(prepare("break_vpn"), user("disconnect_vpn")),
    "sms_permission": _permission("sms"),
    "storage_permission": _permission("storage"),
    "wifi_calling": _make(
        prepare("set_wifi_calling", enabled=True, mms_over_wifi=True), user("toggle_wifi_calling")
    ),
    "access_point": _make(prepare("break_apn_settings"), user("reset_apn_settings"), RESTART),
    "picture_address": _make(prepare("break_apn_mms_setting"), user("reset_apn_settings"), RESTART),
}
"""Name -> fault, in the order of setups and repairs."""


def combine(case: Case, names: Iterable[str]) -> Fault:
    """Return several faults as one: a shared step is made once, and a restart comes last."""
    wanted = set(names)
    faults = [make(case) for name, make in FAULTS.items() if name in wanted]
    steps: list[Action] = []
    for step in chain.from_iterable(fault.repair for fault in faults):
        if step not in steps:
            steps.append(step)
    if RESTART in steps:
        steps.remove(RESTART)
        steps.append(RESTART)
    return Fault(tuple(call for fault in faults for call in fault.setup), tuple(steps))
