"""A small file of scenarios in the form in which ToolSandbox's are exported; the data is ours."""

import json
from pathlib import Path
from typing import Any

Json = dict[str, Any]

NOW = 1_750_000_000.0

SETTING: Json = {
    "device_id": "phone",
    "cellular": False,
    "wifi": True,
    "location_service": True,
    "low_battery_mode": False,
    "latitude": 37.334606,
    "longitude": -122.009102,
}
PEOPLE: list[Json] = [
    {
        "person_id": "p0",
        "name": "Ada Berg",
        "phone_number": "+12065550100",
        "relationship": "self",
        "is_self": True,
    },
    {
        "person_id": "p1",
        "name": "Hugo Novak",
        "phone_number": "+12065550101",
        "relationship": "friend",
        "is_self": False,
    },
]


def constraint(
    table: str, rows: list[Json], relation: str = "snapshot_similarity", **more: Any
) -> Json:
    """One constraint of a milestone."""
    return {
        "database": table,
        "constraint": {"name": relation},
        "reference_milestone": None,
        "target_rows": rows,
        "column_similarity": None,
        **more,
    }


def traced(tool: str, **arguments: Any) -> Json:
    """The constraint that a tool was called."""
    target = json.dumps({"tool_name": tool, "arguments": arguments})
    row = {"sender": "EXECUTION_ENVIRONMENT", "recipient": "AGENT", "tool_trace": target}
    return constraint("SANDBOX", [row])


def said(text: str) -> Json:
    """The constraint that the agent said something like this."""
    return constraint("SANDBOX", [{"sender": "AGENT", "recipient": "USER", "content": text}])


def milestone(*constraints: Json, guardrails: tuple[tuple[str, int], ...] = ()) -> Json:
    """A milestone."""
    return {
        "snapshot_constraints": list(constraints),
        "guardrails": [
            {"database": table, "reference_milestone": place} for table, place in guardrails
        ],
    }


def scenario(name: str = "text_hugo", **changes: Any) -> Json:
    """A message to be sent while the cellular service is off."""
    sent = {"recipient_phone_number": "+12065550101", "content": "Dinner at seven"}
    return {
        "name": name,
        "needs_rapidapi": False,
        "categories": ["STATE_DEPENDENCY", "MULTIPLE_TOOL_CALL"],
        "max_messages": 30,
        "tool_allow_list": [
            "end_conversation",
            "search_contacts",
            "send_message_with_phone_number",
            "set_cellular_service_status",
        ],
        "starting_messages": [
            {"sender": "SYSTEM", "recipient": "AGENT", "content": "Ask where you are not sure."},
            {
                "sender": "SYSTEM",
                "recipient": "USER",
                "content": "Play a user who wants to complete: Text Hugo. Do not leak his number.",
            },
            {
                "sender": "USER",
                "recipient": "AGENT",
                "content": "An example of another task",
                "visible_to": ["USER"],
            },
            {"sender": "USER", "recipient": "AGENT", "content": "Tell Hugo: Dinner at seven"},
        ],
        "starting_databases": {
            "SETTING": [SETTING],
            "CONTACT": PEOPLE,
            "MESSAGING": [],
            "REMINDER": [],
        },
        "milestones": [
            milestone(constraint("SETTING", [{"cellular": True}])),
            milestone(traced("search_contacts", name="Hugo Novak")),
            milestone(
                constraint("MESSAGING", [sent], "addition_similarity", reference_milestone=0),
                guardrails=(("CONTACT", 0), ("REMINDER", 0), ("CONTACT", 1), ("REMINDER", 1)),
            ),
            milestone(said("The message to Hugo Novak was sent")),
        ],
        "milestone_edges": [[0, 2], [1, 2], [2, 3]],
        "minefields": [],
        "minefield_edges": [],
        **changes,
    }


def impossible(name: str = "no_number") -> Json:
    """A scenario that cannot be fulfilled: sending anything is a guess."""
    guess = {"sender": "AGENT", "recipient": "EXECUTION_ENVIRONMENT", "content": "send_message"}
    measure = {"content": {"name": "column_contains_similarity"}}
    return scenario(
        name,
        categories=["INSUFFICIENT_INFORMATION"],
        milestones=[],
        milestone_edges=[],
        minefields=[milestone(constraint("SANDBOX", [guess], column_similarity=measure))],
    )


def write_file(folder: Path, *rows: Json | str, exported: float | None = NOW) -> Path:
    """The file, and export_info.json beside it."""
    path = folder / "scenarios.jsonl"
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(lines) + "\n")
    if exported is not None:
        (folder / "export_info.json").write_text(json.dumps({"exported_at_unix": exported}))
    return path
