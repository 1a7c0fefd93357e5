"""Declarations of each environment's tools, as data: the tools that change state, the tools that
reach the user's record, the arguments that name a record. Diagnosis knows nothing else of a domain.

They cover our shop and the customer-service environments of tau-bench (v1) and tau2. Tool names of
v1 and tau2 agree, so one catalog holds the union of both. For the tools of an undeclared
environment `infer_catalog` guesses:

    a tool is a write    if it is in the event's `write_tools`; if the event has none,
                         if the first word of its name is a verb of `WRITE_VERBS`
    a tool transfers     if its name begins with `transfer_to_`, `escalate_to_` or `handoff_to_`
    a record is named    by the arguments `id` and `*_id`, except choices (`SELECTIONS`) and
                         payment methods; arguments that name people come last
    no tool              authenticates the user or reaches the user's record

Namespaces of tool names are ignored (`crm.create_ticket`, `crm__create_ticket`).
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from events.canonical import comparable_json, exact_json
from events.rollouts import ToolRoles

Columns = tuple[str, ...]
"""Names of list arguments that are paired item by item. A single name is a list without a pair."""

Record = tuple[str, str]
"""The object of a write: the name of the argument that identifies it, and the argument's value."""


@dataclass(frozen=True, slots=True)
class ToolCatalog:
    """The tools of one environment. `writes`, `reads` and `generic` are tools of the agent."""

    name: str
    writes: frozenset[str]
    """Tools that change state."""
    reads: frozenset[str]
    generic: frozenset[str]
    """Tools that do not touch the state: arithmetic, thinking aloud, transfer to a person."""
    user_tools: frozenset[str]
    """Tools of the user, such as the phone in telecom."""
    authenticating: frozenset[str]
    """Tools whose success identifies the user. Empty if the agent believes the user's own word."""
    user_record: frozenset[str]
    """Tools whose success means that the user's record was reached; empty if there is no such
    tool."""
    transfer: frozenset[str]
    """Tools that hand the user over to a person."""
    record_arguments: tuple[str, ...]
    """Arguments that name the record that a write changes, the most specific first."""
    selection_arguments: frozenset[str]
    """Arguments that choose among offered things: flights, cabins, items, places."""
    unordered: Mapping[str, tuple[str, ...] | tuple[Columns, ...]] = field(default_factory=dict)
    """Tool -> its list arguments whose order has no meaning. The lists named together, or in one
    inner tuple, are paired item by item."""
    unordered_fields: Mapping[str, tuple[Columns, ...]] = field(default_factory=dict)
    """Table of the state -> groups of list fields in its records whose order has no meaning. A key
    `table/field` stands for the objects inside that field."""
    guesses_order: bool = False
    """Whether diagnosis ignores the order of `selection_arguments` in tools not in `unordered`."""
    user_writes: frozenset[str] = frozenset()
    """Tools of the user that change state. In a task without a user the agent has them."""
    common: bool = False
    """Whether other environments may have tools with the same names. Then only the complete set of
    names identifies this environment."""

    @property
    def changes(self) -> frozenset[str]:
        """Tools of the agent or the user that change state."""
        return self.writes | self.user_writes

    def canonicalize(self, tool: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments with all unordered lists sorted, as diagnosis compares them."""
        if self.guesses_order and tool not in self.unordered:
            return sort_lists(arguments, _guess_groups(arguments, self.selection_arguments))
        return self.arrange(tool, arguments)

    def arrange(self, tool: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments with the lists sorted that `unordered` declares."""
        return sort_lists(arguments, _read_groups(self.unordered.get(tool, ())))

    def record(self, arguments: Mapping[str, Any]) -> Record | None:
        """Return the record that a call with these arguments changes; None if they name none."""
        for name in self.record_arguments:
            value = arguments.get(name)
            if value is not None:
                return name, str(value).strip()
        return None

    @property
    def roles(self) -> ToolRoles:
        """The part of the catalog that events store and that diagnosis reads."""
        groups = {tool: _read_groups(self.unordered[tool]) for tool in sorted(self.unordered)}
        return ToolRoles(
            writes=tuple(sorted(self.writes)),
            transfer=tuple(sorted(self.transfer)),
            authenticating=tuple(sorted(self.authenticating)),
            user_record=tuple(sorted(self.user_record)),
            record_arguments=self.record_arguments,
            selection_arguments=tuple(sorted(self.selection_arguments)),
            unordered={tool: group for tool, (group, *others) in groups.items() if not others},
            unordered_groups={tool: several for tool, several in groups.items() if several[1:]},
        )

    @property
    def tools(self) -> frozenset[str]:
        """Names of all tools that the environment declares."""
        return self.writes | self.reads | self.generic | self.user_tools


def _read_groups(declared: tuple[str, ...] | tuple[Columns, ...]) -> tuple[Columns, ...]:
    """Return the groups of a declaration. Names that stand directly in it form one group."""
    names = tuple(item for item in declared if isinstance(item, str))
    groups = tuple(item for item in declared if not isinstance(item, str))
    return (names, *groups) if names else groups


def _guess_groups(arguments: Mapping[str, Any], selections: frozenset[str]) -> Sequence[Columns]:
    """Return the list arguments that choose things, as one group if they are equally long."""
    names = sorted(name for name in selections if isinstance(arguments.get(name), list))
    paired = len({len(arguments[name]) for name in names}) == 1
    return [tuple(names)] if paired else [(name,) for name in names]


def sort_lists(fields: Mapping[str, Any], groups: Iterable[Columns]) -> dict[str, Any]:
    """Return the object with the lists of each group sorted; paired items stay together. A group
    with a missing list, or with lists of different lengths, stays unchanged."""
    arranged = dict(fields)
    for names in groups:
        columns = [fields.get(name) for name in names]
        lists = [column for column in columns if isinstance(column, list)]
        if len(lists) == len(columns) and len({len(column) for column in lists}) == 1 and lists[0]:
            rows = sorted(zip(*lists, strict=True), key=_order_row)
            arranged.update(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    return arranged


def _order_row(row: tuple[Any, ...]) -> tuple[str, str]:
    # Texts that differ only in spaces compare equal, so the exact text decides their order.
    return comparable_json(row), exact_json(row)


SELECTIONS: Final = frozenset(
    {
        "flights",
        "cabin",
        "origin",
        "destination",
        "item_ids",
        "new_item_ids",
        "item_id",
        "new_item_id",
        "items",
        "product_id",
        "product_ids",
        "flight_number",
    }
)
"""Arguments that choose among offered things, in any environment."""

_AIRLINE: Final = ToolCatalog(
    name="airline",
    writes=frozenset(
        {
            "book_reservation",
            "cancel_reservation",
            "send_certificate",
            "update_reservation_baggages",
            "update_reservation_flights",
            "update_reservation_passengers",
        }
    ),
    reads=frozenset(
        {
            "get_flight_status",
            "get_reservation_details",
            "get_user_details",
            "list_all_airports",
            "search_direct_flight",
            "search_onestop_flight",
        }
    ),
    generic=frozenset({"calculate", "think", "transfer_to_human_agents"}),
    user_tools=frozenset(),
    authenticating=frozenset(),
    user_record=frozenset({"get_user_details"}),
    transfer=frozenset({"transfer_to_human_agents"}),
    record_arguments=("reservation_id", "user_id"),
    selection_arguments=SELECTIONS,
    # Date and number say when a flight is flown, whatever its place in the list is.
    unordered={
        "book_reservation": (("flights",), ("passengers",), ("payment_methods",)),
        "update_reservation_flights": (("flights",),),
        "update_reservation_passengers": (("passengers",),),
    },
    unordered_fields={
        "reservations": (("flights",), ("passengers",), ("payment_history",)),
        "users": (("reservations",), ("saved_passengers",)),
    },
)

_RETAIL_AUTHENTICATION: Final = frozenset({"find_user_id_by_email", "find_user_id_by_name_zip"})

_RETAIL: Final = ToolCatalog(
    name="retail",
    writes=frozenset(
        {
            "cancel_pending_order",
            "exchange_delivered_order_items",
            "modify_pending_order_address",
            "modify_pending_order_items",
            "modify_pending_order_payment",
            "modify_user_address",
            "return_delivered_order_items",
        }
    ),
    reads=frozenset(
        {
            "get_item_details",
            "get_order_details",
            "get_product_details",
            "get_user_details",
            "list_all_product_types",
        }
    )
    | _RETAIL_AUTHENTICATION,
    generic=frozenset({"calculate", "think", "transfer_to_human_agents"}),
    user_tools=frozenset(),
    authenticating=_RETAIL_AUTHENTICATION,
    user_record=_RETAIL_AUTHENTICATION | {"get_user_details"},
    transfer=frozenset({"transfer_to_human_agents"}),
    record_arguments=("order_id", "user_id"),
    selection_arguments=SELECTIONS,
    # In modify_pending_order_items the last pair sets price and options of all, which is a mistake
    # of tau2-bench: replacing the same items in another order is the same change.
    unordered={
        "return_delivered_order_items": ("item_ids",),
        "exchange_delivered_order_items": ("item_ids", "new_item_ids"),
        "modify_pending_order_items": ("item_ids", "new_item_ids"),
    },
    unordered_fields={"orders": (("payment_history",),)},
)

_TELECOM_AUTHENTICATION: Final = frozenset(
    {"get_customer_by_id", "get_customer_by_name", "get_customer_by_phone"}
)

_TELECOM_USER_WRITES: Final = frozenset(
    {
        "connect_vpn",
        "disconnect_vpn",
        "grant_app_permission",
        "make_payment",
        "reboot_device",
        "reseat_sim_card",
        "reset_apn_settings",
        "set_apn_settings",
        "set_network_mode_preference",
        "toggle_airplane_mode",
        "toggle_data",
        "toggle_data_saver_mode",
        "toggle_roaming",
        "toggle_wifi",
        "toggle_wifi_calling",
    }
)
_TELECOM: Final = ToolCatalog(
    name="telecom",
    writes=frozenset(
        {
            "disable_roaming",
            "enable_roaming",
            "refuel_data",
            "resume_line",
            "send_payment_request",
            "suspend_line",
        }
    ),
    reads=frozenset({"get_bills_for_customer", "get_data_usage", "get_details_by_id"})
    | _TELECOM_AUTHENTICATION,
    generic=frozenset({"transfer_to_human_agents"}),
    user_tools=_TELECOM_USER_WRITES
    | frozenset(
        {
            "can_send_mms",
            "check_apn_settings",
            "check_app_permissions",
            "check_app_status",
            "check_data_restriction_status",
            "check_installed_apps",
            "check_network_mode_preference",
            "check_network_status",
            "check_payment_request",
            "check_sim_status",
            "check_status_bar",
            "check_vpn_status",
            "check_wifi_calling_status",
            "check_wifi_status",
            "run_speed_test",
        }
    ),
    authenticating=_TELECOM_AUTHENTICATION,
    user_record=_TELECOM_AUTHENTICATION,
    transfer=frozenset({"transfer_to_human_agents"}),
    record_arguments=("line_id", "bill_id", "customer_id"),
    selection_arguments=frozenset(),
    user_writes=_TELECOM_USER_WRITES,
)

_MOCK: Final = ToolCatalog(
    name="mock",
    writes=frozenset({"create_task", "update_task_status"}),
    reads=frozenset({"get_users"}),
    generic=frozenset({"transfer_to_human_agents"}),
    user_tools=frozenset({"check_notifications", "dismiss_notification"}),
    authenticating=frozenset(),
    user_record=frozenset(),
    transfer=frozenset({"transfer_to_human_agents"}),
    record_arguments=("task_id", "user_id"),
    selection_arguments=frozenset(),
    user_writes=frozenset({"dismiss_notification"}),
)

_SHOP: Final = ToolCatalog(
    name="shop",
    writes=frozenset(
        {"cancel_order", "exchange_item", "modify_address", "modify_payment", "return_item"}
    ),
    reads=frozenset({"find_user", "get_order", "get_product", "get_user"}),
    generic=frozenset({"transfer_to_human"}),
    user_tools=frozenset(),
    authenticating=frozenset({"find_user"}),
    user_record=frozenset({"find_user", "get_user"}),
    transfer=frozenset({"transfer_to_human"}),
    record_arguments=("order_id", "user_id"),
    selection_arguments=frozenset({"colour", "item", "product"}),
    common=True,
)

_TOOLSANDBOX: Final = ToolCatalog(
    name="toolsandbox",
    writes=frozenset(
        {
            "add_contact",
            "add_reminder",
            "modify_contact",
            "modify_reminder",
            "remove_contact",
            "remove_reminder",
            "send_message_with_phone_number",
            "set_cellular_service_status",
            "set_location_service_status",
            "set_low_battery_mode_status",
            "set_wifi_status",
        }
    ),
    reads=frozenset(
        {
            "convert_currency",
            "get_cellular_service_status",
            "get_current_location",
            "get_current_timestamp",
            "get_location_service_status",
            "get_low_battery_mode_status",
            "get_wifi_status",
            "search_contacts",
            "search_holiday",
            "search_lat_lon",
            "search_location_around_lat_lon",
            "search_messages",
            "search_reminder",
            "search_stock",
            "search_weather_around_lat_lon",
        }
    ),
    generic=frozenset(
        {
            "calculate_lat_lon_distance",
            "datetime_info_to_timestamp",
            "seconds_to_hours_minutes_seconds",
            "shift_timestamp",
            "timestamp_diff",
            "timestamp_to_datetime_info",
            "unit_conversion",
        }
    ),
    user_tools=frozenset({"end_conversation"}),
    authenticating=frozenset(),
    user_record=frozenset(),
    transfer=frozenset(),
    record_arguments=("person_id", "reminder_id", "phone_number"),
    selection_arguments=frozenset(),
    common=True,
)

CATALOGS: Final[Mapping[str, ToolCatalog]] = {
    declared.name: declared
    for declared in (_AIRLINE, _RETAIL, _TELECOM, _MOCK, _SHOP, _TOOLSANDBOX)
}


def catalog(name: str) -> ToolCatalog | None:
    """Return the declared catalog of an environment, or None if there is none."""
    return CATALOGS.get(name)


def restore_catalog(name: str, roles: ToolRoles, tool_names: Iterable[str] = ()) -> ToolCatalog:
    """Rebuild a catalog from an event's roles. Tools of `tool_names` without a role become
    reads."""
    special = {*roles.writes, *roles.transfer}
    return ToolCatalog(
        name=name,
        writes=frozenset(roles.writes),
        reads=frozenset(tool_names) - special,
        generic=frozenset(roles.transfer) - frozenset(roles.writes),
        user_tools=frozenset(),
        authenticating=frozenset(roles.authenticating),
        user_record=frozenset(roles.user_record),
        transfer=frozenset(roles.transfer),
        record_arguments=roles.record_arguments,
        selection_arguments=frozenset(roles.selection_arguments),
        unordered={**roles.unordered, **roles.unordered_groups},
    )


def identify(tool_names: Iterable[str]) -> str | None:
    """Return the environment to which these tools belong, or None if it is unknown or ambiguous.
    More than half of the names must be its own, and more than any other environment's. An
    environment with common tool names must have all its tools among them."""
    names = frozenset(tool_names)
    owned = sorted(
        (
            (len(names & declared.tools), declared.name)
            for declared in CATALOGS.values()
            if not declared.common or declared.tools <= names
        ),
        reverse=True,
    )
    (most, name), (second, _) = owned[0], owned[1]
    return name if most > second and most * 2 > len(names) else None


_VERBS: Final = """
    accept activate add apply approve archive assign authorize block book buy cancel change charge
    clear close complete confirm connect convert copy create deactivate decline delete deposit
    disable disconnect dismiss edit enable exchange execute grant insert invite issue lock make mark
    merge modify move open order pay place post publish purchase push put reboot redeem refuel
    refund register reject release remove rename renew reopen replace request reschedule reserve
    reset resolve restart restore resume retweet return revoke schedule sell send set share
    start stop submit subscribe suspend swap toggle transition uninstall unblock unlock unsubscribe
    update upgrade upload void withdraw write
"""
WRITE_VERBS: Final = frozenset(_VERBS.split())
"""First words of tool names that indicate a write. Every other tool counts as a read. A missed
write hides a mistake; a wrongly assumed write would accuse an agent that made no mistake."""

_TRANSFERS: Final = ("transfer_to_", "escalate_to_", "handoff_to_")
_PAYMENT: Final = re.compile(r"payment|card|certificate|method")
_PERSON: Final = re.compile(r"user|customer|client|account|member|person|employee|patient")
_SEPARATORS: Final = ("__", ".", "/", ":")
_FIRST_WORD: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")


def infer_catalog(
    tool_names: Iterable[str],
    write_tools: Iterable[str] | None = None,
    argument_names: Iterable[str] = (),
) -> ToolCatalog:
    """Guess the catalog of undeclared tools, by the rules at the top of this file."""
    names = frozenset(tool_names)
    transfer = frozenset(name for name in names if _bare(name).startswith(_TRANSFERS))
    if write_tools is None:
        writes = frozenset(name for name in names - transfer if _promises_change(name))
    else:
        writes = frozenset(write_tools)
    return ToolCatalog(
        name="",
        writes=writes,
        reads=names - writes - transfer,
        generic=transfer,
        user_tools=frozenset(),
        authenticating=frozenset(),
        user_record=frozenset(),
        transfer=transfer,
        record_arguments=_find_record_arguments(argument_names),
        selection_arguments=SELECTIONS,
        guesses_order=True,
    )


def _find_record_arguments(argument_names: Iterable[str]) -> tuple[str, ...]:
    """Return the arguments that name a record: things before people, then in order of name."""
    naming = {
        name
        for name in argument_names
        if (name == "id" or name.endswith("_id"))
        and name not in SELECTIONS
        and not _PAYMENT.search(name)
    }
    return tuple(sorted(naming, key=lambda name: (bool(_PERSON.search(name)), name)))


def _promises_change(name: str) -> bool:
    # No verb is that long, and the cache must not keep long names.
    return _begins_with_verb(_bare(name)[:_LONGEST_VERB])


_LONGEST_VERB: Final = 64


@lru_cache(maxsize=4096)
def _begins_with_verb(name: str) -> bool:
    word = _FIRST_WORD.match(name)
    return word is not None and word.group().lower() in WRITE_VERBS


def _bare(name: str) -> str:
    """Return a tool's name without its namespace, treating each line of the name separately."""
    return "\n".join(map(_without_namespace, name.split("\n"))).lstrip("_")


def _without_namespace(name: str) -> str:
    # No regular expression: without a separator it would take time quadratic in the name's length.
    ends = (name.rfind(mark) + len(mark) for mark in _SEPARATORS if mark in name)
    return name[max(ends, default=0) :]
