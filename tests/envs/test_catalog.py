"""The declared catalogs, which environment owns a set of tools, and the guess where none does."""

import json
from pathlib import Path

import pytest

from envs.catalog import CATALOGS, ToolCatalog, identify, infer_catalog


@pytest.mark.parametrize("declared", CATALOGS.values(), ids=list(CATALOGS))
def test_every_tool_has_one_kind_and_every_role_a_tool(declared: ToolCatalog) -> None:
    kinds = (declared.writes, declared.reads, declared.generic, declared.user_tools)
    assert sum(len(kind) for kind in kinds) == len(declared.tools)
    assert declared.transfer <= declared.generic
    assert declared.authenticating <= declared.user_record <= declared.reads


@pytest.mark.parametrize("name", CATALOGS)
def test_an_environment_owns_all_its_tools(name: str) -> None:
    assert identify(CATALOGS[name].tools) == name


@pytest.mark.parametrize(
    ("names", "owner"),
    [
        (["get_reservation_details", "get_user_details"], "airline"),
        (["get_order_details", "get_user_details", "calculate"], "retail"),
        (["get_customer_by_phone", "toggle_airplane_mode", "done"], "telecom"),
        (["cancel_reservation", "get_user_details", "search_direct_flight", "nonsense"], "airline"),
    ],
)
def test_a_majority_of_tools_tells_the_owner(names: list[str], owner: str) -> None:
    assert identify(names) == owner


@pytest.mark.parametrize(
    "names",
    [
        [],
        ["get_user_details", "calculate"],
        ["transfer_to_human_agents"],
        ["ls", "cd", "mkdir"],
        ["update_task_status", "list_projects", "assign_task"],
    ],
)
def test_shared_and_strange_tools_tell_no_owner(names: list[str]) -> None:
    assert identify(names) is None


def test_the_most_specific_argument_names_the_record() -> None:
    telecom = CATALOGS["telecom"]
    arguments = {"customer_id": "C1", "line_id": " L7 ", "reason": "x"}
    assert telecom.record(arguments) == ("line_id", "L7")
    assert telecom.record({"customer_id": "C1", "line_id": None}) == ("customer_id", "C1")
    assert telecom.record({"summary": "x"}) is None


def test_undeclared_tools_are_told_by_their_first_word() -> None:
    names = ["crm.create_ticket", "updateTicket", "get_update_log", "ls", "db__delete_row"]
    found = infer_catalog([*names, "escalate_to_supervisor"])
    assert found.writes == {"crm.create_ticket", "updateTicket", "db__delete_row"}
    assert found.transfer == {"escalate_to_supervisor"}
    assert found.reads == {"get_update_log", "ls"}
    assert not found.user_record
    assert not found.authenticating


def test_write_tools_of_the_event_beat_the_first_word() -> None:
    found = infer_catalog(["create_ticket", "ls"], write_tools=["ls"])
    assert found.writes == {"ls"}


def test_undeclared_records_are_named_by_things_before_people() -> None:
    names = ["user_id", "ticket_id", "payment_id", "new_item_id", "note", "id"]
    found = infer_catalog(["create_ticket"], argument_names=names)
    assert found.record_arguments == ("id", "ticket_id", "user_id")


@pytest.mark.benchmarks
@pytest.mark.parametrize("name", [n for n in CATALOGS if n not in ("shop", "toolsandbox")])
def test_tau2_declares_the_same_kinds(benchmarks: Path, name: str) -> None:
    declared = CATALOGS[name]
    stated = json.loads((benchmarks / "tau2" / name / "tools.json").read_text())
    agents = {tool["function"]["name"] for tool in stated["assistant"]}
    users = {tool["function"]["name"] for tool in stated["user"] or []}
    kinds = stated["tool_types"]
    assert declared.user_tools == users
    assert declared.writes == {tool for tool in agents if kinds[tool] == "write"}
    assert declared.writes == {tool for tool in agents if stated["mutates_state"][tool]}
    assert declared.reads == {tool for tool in agents if kinds[tool] == "read"}
    assert declared.generic - {"think"} == {tool for tool in agents if kinds[tool] == "generic"}


@pytest.mark.benchmarks
def test_toolsandbox_publishes_the_same_tools(benchmarks: Path) -> None:
    stated = json.loads((benchmarks / "toolsandbox" / "tools.json").read_text())
    declared = CATALOGS["toolsandbox"]
    names = {tool["function"]["name"] for tool in stated} - {"end_conversation"}
    assert declared.reads | declared.writes | declared.generic == names
