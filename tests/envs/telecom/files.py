"""An operator's folder of telecom tasks in small, of our own making."""

import json
from pathlib import Path
from typing import Any

from tests.envs.telecom.test_tools import COMPANY, LINE, NUMBER

Json = dict[str, Any]

WHO = {"name": "Ada Berg", "phone_number": NUMBER}
FIX: list[Json] = [
    {"action_id": "a", "requestor": "assistant", "name": "enable_roaming", "arguments": LINE},
    {"action_id": "b", "requestor": "user", "name": "toggle_airplane_mode", "arguments": {}},
]
TICKET = "Ada Berg, 217-402-1187, is abroad and has no data. Make it work."


def prepared(env_type: str, func_name: str, **arguments: Any) -> Json:
    """A call of a task's first state, or of its assertions."""
    return {"env_type": env_type, "func_name": func_name, "arguments": arguments}


def task(number: str, **more: Any) -> Json:
    """A task as the file has it: abroad, in airplane mode, with a line that may not roam."""
    return {
        "id": number,
        "user_scenario": {"persona": None, "instructions": {"reason_for_call": "No data."}},
        "ticket": TICKET,
        "initial_state": {
            "initialization_data": None,
            "initialization_actions": [
                {**prepared("user", "set_user_info"), "arguments": WHO},
                prepared("user", "set_user_location", abroad=True),
                prepared("user", "turn_roaming_on"),
                prepared("user", "turn_airplane_mode_on"),
            ],
            "message_history": None,
        },
        "evaluation_criteria": {
            "actions": FIX,
            "env_assertions": [
                {**prepared("user", "assert_mobile_data_status", expected_status=True),
                 "assert_value": True},
            ],
            "reward_basis": ["ENV_ASSERTION"],
        },
        **more,
    }  # fmt: skip


TASKS = [task("[mobile_data_issue]a"), task("b")]
SPLITS = {"base": ["[mobile_data_issue]a", "b"], "test": ["b"], "full": ["b", "c"]}


def toml(tables: dict[str, list[Json]]) -> str:
    """The tables as TOML: arrays of tables whose values are written as JSON is, inline."""
    blocks = []
    for name, rows in tables.items():
        for row in rows:
            lines = [f"{key} = {inline(value)}" for key, value in row.items()]
            blocks.append("\n".join([f"[[{name}]]", *lines]))
    return "\n\n".join(blocks)


def inline(value: Any) -> str:
    """One value."""
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key} = {inline(item)}' for key, item in value.items())} }}"
    return json.dumps(value)


def write_folder(root: Path, **files: str) -> Path:
    """Write the files; what KINTSUGI_BENCHMARKS would name. `files` replaces some by name."""
    place = root / "tau2" / "telecom"
    place.mkdir(parents=True)
    schema = {"type": "function", "function": {"name": "theirs", "parameters": {}}}
    contents = {
        "db.toml": toml(COMPANY),
        "user_db.toml": "[device]\nairplane_mode = false\n",
        "tasks.json": json.dumps(TASKS),
        "split_tasks.json": json.dumps(SPLITS),
        "tools.json": json.dumps({"assistant": [schema], "user": [schema]}),
        "main_policy.md": "Their rules.",
        "main_policy_solo.md": "Their rules alone.",
        "tech_support_manual.md": "Their manual.",
        "tech_support_workflow.md": "Their workflow.",
        "tech_support_workflow_solo.md": "Their workflow alone.",
    }
    for name, content in (contents | files).items():
        (place / name).write_text(content)
    return root
