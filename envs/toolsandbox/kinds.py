"""The kinds of generated task: functions that draw a wish and a perfect agent's calls for it. Four
kinds cannot be fulfilled, because a tool is missing. Then the agent must say what is missing, in
words that its policy dictates. Silence or a general refusal wins no task."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from envs.milestones.graph import INSUFFICIENT
from envs.toolsandbox.case import (
    Case,
    Plan,
    action,
    changed,
    said,
    said_number,
    said_value,
    setting,
    traced,
    write_locally,
)
from envs.toolsandbox.database import ERRANDS, TEXTS
from envs.toolsandbox.device.holidays import list_holidays
from envs.toolsandbox.device.state import CONTACT, MESSAGING, REMINDER, Row
from envs.toolsandbox.device.units import convert
from envs.toolsandbox.device.world import PLACES, RATES, STOCKS, TOWNS, Place, forecast
from envs.toolsandbox.phrases import CURRENCIES, DETAILS, REQUESTS, SERVICES
from envs.toolsandbox.policy import MISSING
from events.messages import Action

_SWITCH: Final = {
    "cellular": ("get_cellular_service_status", "set_cellular_service_status"),
    "wifi": ("get_wifi_status", "set_wifi_status"),
    "location_service": ("get_location_service_status", "set_location_service_status"),
    "low_battery_mode": ("get_low_battery_mode_status", "set_low_battery_mode_status"),
}
"""Switch -> the tool that reads it, and the tool that sets it."""

SWITCHES: Final = frozenset(tool for _, tool in _SWITCH.values())

_LOW_BATTERY: Final[Mapping[str, bool]] = {
    "low_battery_mode": True,
    "cellular": False,
    "wifi": False,
    "location_service": False,
}


class Kind(NamedTuple):
    """A kind of task: its demand, its categories, and the function that draws its plans."""

    demands: str
    categories: tuple[str, ...]
    """ToolSandbox's categories to which it belongs."""
    plan: Callable[[Case], Plan]


def _on(*switches: str) -> tuple[Action, ...]:
    return tuple(action(_SWITCH[name][1], on=name != "low_battery_mode") for name in switches)


def _tools(*switches: str) -> tuple[str, ...]:
    return tuple(tool for name in switches for tool in _SWITCH[name])


def _switch_on(case: Case) -> Plan:
    # One of three services is easy to guess, so the task also asks for a message.
    service = case.pick(tuple(SERVICES))
    wish = case.say(REQUESTS["switch_on"], service=SERVICES[service])
    reading = _find_message(case)
    switched = (setting(low_battery_mode=False),), (setting(**{service: True}),)
    others = tuple(setting(**{other: True}) for other in SERVICES if other != service)
    return replace(
        reading,
        request=f"{wish} {reading.request}",
        actions=(*_on("low_battery_mode", service), *reading.actions),
        says=f"The {SERVICES[service]} is on. {reading.says}",
        milestones=(*switched, *reading.milestones),
        tools=(*_tools("low_battery_mode", *SERVICES), *reading.tools),
        forbidden=(*others, *reading.forbidden),
        switches=_LOW_BATTERY,
    )


def _send_message(case: Case) -> Plan:
    person, text = case.pick(case.device.others), case.pick(TEXTS)
    request = case.say(REQUESTS["send_message"], name=person["name"], text=text)
    return _plan_message(person, text, request)


def _send_message_turns(case: Case) -> Plan:
    person, text = case.pick(case.device.others), case.pick(TEXTS)
    plan = _plan_message(person, text, case.say(REQUESTS["send_message_turns"]))
    return replace(plan, details=case.say(DETAILS, name=person["name"], text=text))


def _plan_message(person: Row, text: str, request: str) -> Plan:
    number = person["phone_number"]
    sent = {"recipient_phone_number": number, "content": text}
    return Plan(
        request=request,
        actions=(
            action("search_contacts", name=person["name"]),
            *_on("cellular"),
            action("send_message_with_phone_number", phone_number=number, content=text),
        ),
        says="The message is sent.",
        milestones=((setting(cellular=True),), (changed(MESSAGING, "addition", sent),)),
        tools=(*_tools("cellular"), "search_contacts", "send_message_with_phone_number"),
        switches={"cellular": False},
    )


def _find_message(case: Case) -> Plan:
    own = case.device.owner["person_id"]
    received = [row for row in case.device.rows[MESSAGING] if row["recipient_person_id"] == own]
    sender = case.pick(sorted({row["sender_person_id"] for row in received}))
    person = next(row for row in case.device.others if row["person_id"] == sender)
    from_them = [row for row in received if row["sender_person_id"] == sender]
    which = case.pick(("latest", "oldest"))
    content = from_them[-1 if which == "latest" else 0]["content"]
    return Plan(
        request=case.say(REQUESTS["find_message"], which=which, name=person["name"]),
        actions=(
            action("search_contacts", name=person["name"]),
            action("search_messages", sender_person_id=sender),
        ),
        says=f"It says: {content}",
        milestones=((traced("search_messages", holds=content),), said(content)),
        tools=("search_contacts", "search_messages", "timestamp_to_datetime_info"),
        outputs=(content,),
        forbidden=said(*(text for text in TEXTS if text != content)),
    )


def _knows_number(number: str) -> str:
    return f"In full the number is {number}; say it as people in the United States write it."


def _add_contact(case: Case) -> Plan:
    number = case.new_phone_number()
    name = case.new_name()
    row = {"name": name, "phone_number": number, "is_self": False}
    return Plan(
        request=case.say(REQUESTS["add_contact"], name=name, local=write_locally(number)),
        actions=(action("add_contact", name=name, phone_number=number),),
        says=f"{name} is added.",
        milestones=((changed(CONTACT, "addition", row),),),
        tools=("add_contact", "search_contacts"),
        knows=_knows_number(number),
    )


def _change_number(case: Case) -> Plan:
    number, own = case.new_phone_number(), case.device.owner["person_id"]
    sent = [row for row in case.device.rows[MESSAGING] if row["sender_person_id"] == own]
    person = sent[-1]["recipient_person_id"]
    return Plan(
        request=case.say(REQUESTS["change_number"], local=write_locally(number)),
        actions=(
            action("search_contacts", is_self=True),
            action("search_messages", sender_person_id=own),
            action("modify_contact", person_id=person, phone_number=number),
        ),
        says="The number is changed.",
        milestones=(
            (traced("search_messages"),),
            (changed(CONTACT, "update", {"person_id": person, "phone_number": number}),),
        ),
        tools=("search_contacts", "search_messages", "modify_contact", "get_current_timestamp"),
        knows=_knows_number(number),
    )


def _remove_contact(case: Case) -> Plan:
    person = case.pick(case.device.others)
    number = person["phone_number"]
    return Plan(
        request=case.say(REQUESTS["remove_contact"], local=write_locally(number)),
        actions=(
            action("search_contacts", phone_number=number),
            action("remove_contact", person_id=person["person_id"]),
        ),
        says="The contact is removed.",
        milestones=((changed(CONTACT, "removal", {"person_id": person["person_id"]}),),),
        tools=("search_contacts", "remove_contact"),
        knows=_knows_number(number),
    )


def _add_reminder(case: Case) -> Plan:
    known = {row["content"] for row in case.device.rows[REMINDER]}
    errand = case.pick([errand for errand in ERRANDS if errand not in known])
    days, hour = case.pick(range(1, 10)), case.pick(range(1, 12))
    afternoon = case.pick((True, False))
    day = case.now.date() + timedelta(days=days)
    at = datetime(day.year, day.month, day.day, hour + 12 * afternoon, tzinfo=UTC)
    spoken = "tomorrow" if days == 1 else f"in {days} days"
    when = f"{spoken} at {hour} {'PM' if afternoon else 'AM'}"
    arguments = {"content": errand, "reminder_timestamp": at.timestamp()}
    clock = {"year": at.year, "month": at.month, "day": at.day, "hour": at.hour}
    return Plan(
        request=case.say(REQUESTS["add_reminder"], errand=errand, when=when),
        actions=(
            action("get_current_timestamp"),
            action("timestamp_to_datetime_info", timestamp=case.device.now),
            action("datetime_info_to_timestamp", **clock, minute=0, second=0),
            action("add_reminder", **arguments),
        ),
        says="The reminder is set.",
        milestones=(
            (traced("get_current_timestamp"),),
            (changed(REMINDER, "addition", arguments),),
        ),
        tools=(
            "get_current_timestamp",
            "timestamp_to_datetime_info",
            "datetime_info_to_timestamp",
            "shift_timestamp",
            "add_reminder",
        ),
    )


def _move_reminder(case: Case) -> Plan:
    row = case.pick(case.device.rows[REMINDER])
    days = case.pick(range(2, 30))
    moved = row["reminder_timestamp"] + 86_400.0 * days
    change = {"reminder_id": row["reminder_id"], "reminder_timestamp": moved}
    return Plan(
        request=case.say(REQUESTS["move_reminder"], errand=row["content"], days=str(days)),
        actions=(
            action("search_reminder", content=row["content"]),
            action("shift_timestamp", timestamp=row["reminder_timestamp"], days=days),
            action("modify_reminder", **change),
        ),
        says="The reminder is moved.",
        milestones=((changed(REMINDER, "update", {**change, "content": row["content"]}),),),
        tools=("search_reminder", "shift_timestamp", "modify_reminder"),
    )


def _remove_reminder(case: Case) -> Plan:
    coming = [r for r in case.device.rows[REMINDER] if r["reminder_timestamp"] > case.device.now]
    row = min(coming, key=lambda reminder: float(reminder["reminder_timestamp"]))
    return Plan(
        request=case.say(REQUESTS["remove_reminder"]),
        actions=(
            action("get_current_timestamp"),
            action("search_reminder", reminder_timestamp_lowerbound=case.device.now),
            action("remove_reminder", reminder_id=row["reminder_id"]),
        ),
        says="The reminder is removed.",
        milestones=((changed(REMINDER, "removal", {"reminder_id": row["reminder_id"]}),),),
        tools=("get_current_timestamp", "search_reminder", "remove_reminder"),
    )


def _holiday(case: Case) -> tuple[str, float]:
    """Return a coming holiday, this year's if any is left, and its start in POSIX seconds."""
    coming = [
        (name, datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())
        for day, name in list_holidays(case.now.year)
        if day > case.now.date() and "(" not in name and "Independence" not in name
    ]
    if not coming:
        return "New Year's Day", datetime(case.now.year + 1, 1, 1, tzinfo=UTC).timestamp()
    chosen: tuple[str, float] = case.pick(coming)
    return chosen


def _days_until(case: Case) -> Plan:
    holiday, begins = _holiday(case)
    year = datetime.fromtimestamp(begins, UTC).year
    days = str(int((begins - case.device.now) // 86_400))
    return Plan(
        request=case.say(REQUESTS["days_until"], holiday=holiday),
        actions=(
            *_on("wifi"),
            action("get_current_timestamp"),
            action("search_holiday", holiday_name=holiday, year=year),
            action("timestamp_diff", timestamp_0=case.device.now, timestamp_1=begins),
        ),
        says=f"There are {days} days left.",
        milestones=(
            (setting(wifi=True),),
            (traced("search_holiday", holds=begins),),
            (said_number(days),),
        ),
        tools=(*_tools("wifi"), "get_current_timestamp", "search_holiday", "timestamp_diff"),
        outputs=(days,),
        switches={"wifi": False},
    )


def _convert_money(case: Case) -> Plan:
    value = ".0"
    while value.endswith(".0"):  # a whole number is written in two ways
        source, target = case.chance.sample(sorted(CURRENCIES), 2)
        thousands = case.pick(range(11, 99)) / 10
        amount = round(thousands * 1000)
        value = str(round(amount / RATES[source] * RATES[target], 2))
    call = action(
        "convert_currency", amount=amount, from_currency_code=source, to_currency_code=target
    )
    return Plan(
        request=case.say(
            REQUESTS["convert_money"],
            amount=f"{thousands:g}k",
            source=CURRENCIES[source],
            target=CURRENCIES[target],
        ),
        actions=(call,),
        says=f"That is {value} {target}.",
        milestones=((traced("convert_currency", **call.arguments),), (said_number(value),)),
        tools=("convert_currency", *_tools("wifi")),
        outputs=(value,),
    )


def _stock_symbol(case: Case) -> Plan:
    stocks = [stock for stock in STOCKS if len(stock.symbol) > 2]
    stock = case.pick(stocks)
    return Plan(
        request=case.say(REQUESTS["stock_symbol"], company=stock.name),
        actions=(*_on("low_battery_mode", "wifi"), action("search_stock", query=stock.name)),
        says=f"The symbol is {stock.symbol}.",
        milestones=(
            (setting(low_battery_mode=False),),
            (setting(wifi=True),),
            (traced("search_stock", holds=stock.symbol),),
            said(stock.symbol),
        ),
        tools=(*_tools("low_battery_mode", "wifi"), "search_stock"),
        outputs=(stock.symbol,),
        forbidden=said(*(other.symbol for other in stocks if other != stock)),
        switches=_LOW_BATTERY,
    )


def _temperature(case: Case) -> Plan:
    place: Place = case.pick([p for p in PLACES if p.name != "Whole Foods Market"])
    celsius = forecast(place, case.now.date()).current
    value = str(round(convert(celsius, "celsius", "fahrenheit"), 2))
    point = {"latitude": place.latitude, "longitude": place.longitude}
    conversion = {"amount": celsius, "from_unit": "celsius", "to_unit": "fahrenheit"}
    return Plan(
        request=case.say(REQUESTS["temperature"], place=place.name),
        actions=(
            *_on("wifi"),
            action("search_location_around_lat_lon", location=place.name),
            action("search_weather_around_lat_lon", **point),
            action("unit_conversion", **conversion),
        ),
        says=f"It is {value} degrees.",
        milestones=(
            (setting(wifi=True),),
            (traced("search_weather_around_lat_lon", holds=celsius),),
            (traced("unit_conversion", amount=celsius),),
            (said_value("temperature", 2),),
        ),
        tools=(
            *_tools("wifi"),
            "search_location_around_lat_lon",
            "search_weather_around_lat_lon",
            "unit_conversion",
        ),
        outputs=(value,),
        switches={"wifi": False},
    )


def _current_city(case: Case) -> Plan:
    places = {place.address.split(", ")[-3]: place for place in (*PLACES, *TOWNS)}
    city = case.pick(sorted(places))
    place = places[city]
    point = {"latitude": place.latitude, "longitude": place.longitude}
    return Plan(
        request=case.say(REQUESTS["current_city"]),
        actions=(
            *_on("location_service"),
            action("get_current_location"),
            action("search_lat_lon", **point),
        ),
        says=f"You are in {city}.",
        milestones=(
            (setting(location_service=True),),
            (traced("get_current_location"),),
            (traced("search_lat_lon", holds=city),),
            said(city),
        ),
        tools=(*_tools("location_service", "wifi"), "get_current_location", "search_lat_lon"),
        outputs=(city,),
        forbidden=said(
            *(other for other in places if other not in f"{place.address} {place.state}")
        ),
        switches={"location_service": False, **point},
    )


def _lacking(lacks: str, plan: Plan, without: tuple[str, ...], call: str) -> Plan:
    """Return a wish that cannot be fulfilled, because tools are missing. Forbidden are `call`, a
    guess, and naming other missing things, because reciting them all would be a guess too."""
    others = [text for name, text in MISSING.items() if name != lacks]
    return Plan(
        request=plan.request,
        actions=(),
        says=MISSING[lacks],
        milestones=(said(MISSING[lacks]),),
        tools=tuple(tool for tool in plan.tools if tool not in without),
        outputs=(MISSING[lacks],),
        forbidden=(traced(call), *said(*others)),
        switches=plan.switches,
        knows=plan.knows,
        withheld=without,
    )


def _no_clock(case: Case) -> Plan:
    return _lacking("clock", _days_until(case), ("get_current_timestamp",), "timestamp_diff")


def _no_contacts(case: Case) -> Plan:
    without = ("search_contacts", "search_messages")
    return _lacking("contacts", _send_message(case), without, "send_message_with_phone_number")


def _no_removal(case: Case) -> Plan:
    without = ("remove_contact", "modify_contact")
    return _lacking("removal", _remove_contact(case), without, "modify_contact")


def _no_location(case: Case) -> Plan:
    without = (
        "get_current_location",
        "search_location_around_lat_lon",
        "search_weather_around_lat_lon",
    )
    return _lacking("location", _current_city(case), without, "search_lat_lon")


_STATE: Final = ("state_dependency", "multiple_tool_call", "single_user_turn")
_CANON: Final = ("canonicalization", "multiple_tool_call", "single_user_turn")
_SINGLE: Final = ("single_tool_call", "single_user_turn")
_MULTIPLE: Final = ("multiple_tool_call", "single_user_turn")

KINDS: Final[Mapping[str, Kind]] = {
    "switch_on": Kind(
        "Switch a service on that low battery mode forbids, and read a message.", _STATE, _switch_on
    ),
    "send_message": Kind(
        "Text a contact while the cellular service is off.", _STATE, _send_message
    ),
    "send_message_turns": Kind(
        "Ask whom to text and what, then text.",
        ("state_dependency", "multiple_tool_call", "multiple_user_turn"),
        _send_message_turns,
    ),
    "find_message": Kind(
        "Find the latest or oldest message of a person.", _MULTIPLE, _find_message
    ),
    "add_contact": Kind(
        "Save a number in international form.", ("canonicalization", *_SINGLE), _add_contact
    ),
    "change_number": Kind("Change the number of whom was texted last.", _CANON, _change_number),
    "remove_contact": Kind("Find a contact by number and remove it.", _CANON, _remove_contact),
    "add_reminder": Kind("Work out a time from today's date.", _CANON, _add_reminder),
    "move_reminder": Kind("Move a reminder by days.", _CANON, _move_reminder),
    "remove_reminder": Kind(
        "Find the next reminder from now and remove it.", _CANON, _remove_reminder
    ),
    "days_until": Kind(
        "Count days to a holiday while wifi is off.", ("canonicalization", *_STATE), _days_until
    ),
    "convert_money": Kind(
        "Find the codes of two currencies and convert.",
        ("canonicalization", *_SINGLE),
        _convert_money,
    ),
    "stock_symbol": Kind("Find a stock's symbol in low battery mode.", _STATE, _stock_symbol),
    "temperature": Kind(
        "Find a place, its weather, and convert.", ("canonicalization", *_STATE), _temperature
    ),
    "current_city": Kind("Find the city while location is off.", _STATE, _current_city),
    "no_clock": Kind("Say that the time is missing.", (INSUFFICIENT,), _no_clock),
    "no_contacts": Kind("Say that contacts cannot be searched.", (INSUFFICIENT,), _no_contacts),
    "no_removal": Kind("Say that contacts cannot be removed.", (INSUFFICIENT,), _no_removal),
    "no_location": Kind("Say that the location is missing.", (INSUFFICIENT,), _no_location),
}

CONSTANT: Final = frozenset(name for name, kind in KINDS.items() if INSUFFICIENT in kind.categories)
"""Kinds whose right answer is always the same sentence, in every state of the device."""
