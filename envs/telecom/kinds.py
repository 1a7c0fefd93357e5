"""The kinds of generated task: functions that take a case and return a plan. Most are trouble with
the phone (faults.py). One is a transfer to a person, and one a change of the company's records. An
agent that does nothing fails every kind."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from random import Random
from typing import Final

from envs.agents import CLOSING
from envs.task import (
    Answer,
    Assertion,
    Basis,
    Criteria,
    Kind,
    Rules,
    Scenario,
    Script,
    StateCall,
    TaskDefinition,
)
from envs.tau2.customer import CORRECT, FAREWELL, NOTHING_ELSE, YES, fill_phrase
from envs.telecom import phrases
from envs.telecom.case import ABROAD, HOME, Case, agent, draw_case, prepare
from envs.telecom.database import build_database
from envs.telecom.faults import SEARCH, combine, draw_bill_id, draw_refuel, suspend
from events.messages import Action

WHO: Final = "Please tell me the phone number that this is about."

_IDENTITY: Final = (
    r"\byour ((full|first|last|phone|mobile|customer) )*(names?|number|id)\b|phone number"
    r"|verify|identity|who you are"
)
_ENDS: Final = rf"being transferred to a human agent|{CLOSING}"

SERVICE: Final = (
    Assertion(
        name="assert_service_status", arguments={"expected_status": "connected"}, side="user"
    ),
)
FAST_DATA: Final = (
    Assertion(name="assert_mobile_data_status", arguments={"expected_status": True}, side="user"),
    Assertion(
        name="assert_internet_speed",
        arguments={"expected_speed": 200, "expected_desc": "excellent"},
        side="user",
    ),
)
PICTURES: Final = (
    Assertion(name="assert_can_send_mms", arguments={"expected_status": True}, side="user"),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """The customer's words, the setup of the faults, and the gold actions."""

    request: phrases.Phrases
    setup: tuple[StateCall, ...]
    calls: tuple[Action, ...]
    """The gold actions after the look-up of the customer."""
    assertions: tuple[Assertion, ...] = ()
    basis: tuple[Basis, ...] = ("DB", "ENV_ASSERTION", "POLICY")


_SERVICE_FAULTS: Final = ("airplane_mode", "no_sim", "access_point")
_CUTS: Final = (*_SERVICE_FAULTS, "data_off")
"""Faults that cut off the mobile internet."""
_SLOW_FAULTS: Final = ("data_saver", "old_network", "slow_vpn")
_PICTURE_FAULTS: Final = (
    "airplane_mode",
    "no_sim",
    "data_off",
    "oldest_network",
    "sms_permission",
    "storage_permission",
    "wifi_calling",
    "picture_address",
)


def _draw(case: Case, names: Sequence[str], least: int, most: int) -> list[str]:
    return case.chance.sample(list(names), case.chance.randint(least, most))


def _draw_set(
    case: Case, names: Sequence[str], needs: Sequence[str], sizes: Sequence[int] = (2, 3, 4)
) -> list[str]:
    """Return a random set of such a size with a name of `needs`. All such sets are equally
    likely."""
    sets = (group for size in sizes for group in combinations(names, size))
    return list(case.chance.choice([group for group in sets if {*group} & {*needs}]))


def _mend_internet(case: Case, request: phrases.Phrases, needs: Sequence[str]) -> Plan:
    faults = _draw_set(case, (*_CUTS, *_SLOW_FAULTS), needs)
    return _plan(case, request, faults, FAST_DATA)


def _plan(
    case: Case,
    request: phrases.Phrases,
    faults: Sequence[str],
    assertions: tuple[Assertion, ...],
) -> Plan:
    whole = combine(case, faults)
    return Plan(request, whole.setup, whole.repair, assertions)


def _no_service(case: Case) -> Plan:
    return _mend_internet(case, phrases.NO_SERVICE, _SERVICE_FAULTS)


def _suspended_line(case: Case) -> Plan:
    return _plan_resumption(case, phrases.SUSPENDED)


def _plan_resumption(case: Case, request: phrases.Phrases) -> Plan:
    faults = ["suspended", *_draw(case, _SERVICE_FAULTS, 0, 1)]
    plan = _plan(case, request, faults, SERVICE)
    bill_id = next(call.arguments["bill_id"] for call in plan.calls if "bill_id" in call.arguments)
    paid = Assertion(name="assert_no_overdue_bill", arguments={"overdue_bill_id": bill_id})
    return replace(plan, assertions=(*SERVICE, paid))


def _no_data(case: Case) -> Plan:
    return _mend_internet(case, phrases.NO_DATA, _CUTS)


def _slow_data(case: Case) -> Plan:
    return _mend_internet(case, phrases.SLOW_DATA, _SLOW_FAULTS)


def _data_used_up(case: Case) -> Plan:
    others = _draw(case, (*_SLOW_FAULTS, "data_off"), 0, 1)
    return _plan(case, phrases.USED_UP, ["used_up", *others], FAST_DATA)


def _roaming(case: Case) -> Plan:
    case.is_abroad = True
    own = _draw(case, ("line_roaming", "phone_roaming"), 1, 2)
    allowed = () if "line_roaming" in own else (_allow_roaming(case, "enable_roaming"),)
    prepared = () if "phone_roaming" in own else (prepare("turn_roaming_on"),)
    others = _draw_set(case, ("airplane_mode", "data_off", *_SLOW_FAULTS), _SLOW_FAULTS, (1, 2, 3))
    plan = _plan(case, phrases.ROAMING, [*own, *others], FAST_DATA)
    return replace(plan, setup=(*allowed, *prepared, *plan.setup))


def _allow_roaming(case: Case, tool: str) -> StateCall:
    return prepare(tool, "assistant", **case.owner)


def _picture_messages(case: Case) -> Plan:
    faults = _draw_set(case, _PICTURE_FAULTS, _PICTURE_FAULTS, (2, 3))
    return _plan(case, phrases.PICTURES, faults, PICTURES)


def _several_faults(case: Case) -> Plan:
    faults = _draw_set(case, (*_CUTS, *_SLOW_FAULTS), _CUTS, (3, 4, 5))
    return _plan(case, phrases.NO_DATA, faults, FAST_DATA)


def _hand_over(case: Case) -> Plan:
    """Plan a transfer or, for half of the tasks, a line to resume, with the same words."""
    if case.chance.random() < 0.5:
        return _plan_resumption(case, phrases.HAND_OVER)
    customer_id = case.customer["customer_id"]
    summary = f"The phone of customer {customer_id} has no service, which nobody can mend here."
    transfer = Action(name="transfer_to_human_agents", arguments={"summary": summary}, compare=())
    basis: tuple[Basis, ...] = ("DB", "POLICY")
    if case.chance.random() < 0.5:
        lock = prepare("lock_sim_card", mode=case.chance.choice(("pin", "puk")))
        return Plan(phrases.HAND_OVER, (lock,), (transfer,), basis=basis)
    look = agent("get_details_by_id", id=case.line["line_id"])
    suspension = suspend(case, draw_bill_id(case), contract_ended=True)
    return Plan(phrases.HAND_OVER, (suspension, SEARCH), (look, transfer), basis=basis)


def _line_change(case: Case) -> Plan:
    wish = case.chance.choice(("suspend", "disable", "enable"))
    look = agent("get_details_by_id", id=case.line["line_id"])
    if wish == "suspend":
        reason = "away for a while"
        return Plan(
            phrases.SUSPEND, (), (look, agent("suspend_line", **case.owner, reason=reason)),
            basis=("DB", "POLICY"),
        )  # fmt: skip
    setup = (_allow_roaming(case, f"{'disable' if wish == 'enable' else 'enable'}_roaming"),)
    request = phrases.START_ROAMING if wish == "enable" else phrases.STOP_ROAMING
    return Plan(
        request, setup, (look, agent(f"{wish}_roaming", **case.owner)), basis=("DB", "POLICY")
    )


KINDS: Final[Mapping[str, Kind[Case, Plan]]] = {
    "no_service": Kind("finds what cuts the phone off, and has it mended", _no_service),
    "suspended_line": Kind("has an overdue bill paid before it resumes the line", _suspended_line),
    "no_data": Kind("finds why there is no mobile internet, and has it mended", _no_data),
    "slow_data": Kind("finds everything that slows the internet down", _slow_data),
    "data_used_up": Kind("adds the data that the customer wants, and no more", _data_used_up),
    "roaming": Kind("looks at line and phone of a customer abroad", _roaming),
    "picture_messages": Kind("finds why pictures are not sent", _picture_messages),
    "several_faults": Kind("goes on after the first fault is mended", _several_faults),
    "hand_over": Kind("hands over what it can or may not mend, and mends the rest", _hand_over),
    "line_change": Kind("changes a line as asked, after a yes", _line_change),
}


def write_task(task_id: str, capability: str, seed: int, phrasing: int | None) -> TaskDefinition:
    """Return the task of a kind and seed, in its first words or in those of a phrasing."""
    words = None if phrasing is None else Random(f"telecom phrasing {phrasing}")
    chance = Random(f"telecom task {capability} {seed}")
    case = draw_case(build_database(seed), chance)
    plan = KINDS[capability].plan(case)
    number, name = case.line["phone_number"], case.customer["full_name"]
    identity = fill_phrase(words, phrases.IDENTITY, name=name, number=number)
    place = ABROAD if case.is_abroad else HOME
    amount = f"{draw_refuel(case):g}"
    request = fill_phrase(words, plan.request, place=place, amount=amount, number=number)
    find = agent("get_customer_by_phone", phone_number=number)
    return TaskDefinition(
        id=task_id,
        environment="telecom",
        capability=capability,
        seed=seed,
        scenario=Scenario(
            reason_for_call=request,
            known_info=f"{identity} {place}",
            task_instructions="You hold the phone. Do what the agent asks, and tell what the phone "
            "shows. Agree to what fits your request, to nothing else. You have no other request.",
        ),
        script=_write_script(case, identity, request, place, told_at_once=chance.random() < 0.5),
        criteria=Criteria(
            gold_actions=(find, *plan.calls),
            assertions=plan.assertions,
            reward_basis=plan.basis,
            rules=Rules(),
        ),
        setup=(*case.setup, *plan.setup),
    )


def _write_script(
    case: Case, identity: str, request: str, place: str, told_at_once: bool
) -> Script:
    amount = f"{draw_refuel(case):g} GB, please."
    born = f"I was born on {case.customer['date_of_birth']}."
    return Script(
        opening=f"{identity} {request}" if told_at_once else request,
        answers=(
            FAREWELL,
            YES,
            Answer(asks=r"how (much|many)|what amount|(gb|gigabytes)[^.!]*\?", says=amount),
            Answer(asks=r"abroad|travel|where are you|outside|location|country", says=place),
            Answer(asks=r"date of birth|born|birthday", says=f"{identity} {born}"),
            Answer(asks=_IDENTITY, says=identity),
            CORRECT,
            *NOTHING_ELSE,
        ),
        otherwise=request,
        ends=_ENDS,
    )
