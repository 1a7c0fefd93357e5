"""An operator's folder of real tasks in small, of our own making: retail's six files' worth."""

import json
from pathlib import Path
from typing import Any

from tests.envs.retail.records import CARD, DELIVERED, PENDING, PRODUCTS, RED, database

Json = dict[str, Any]

PROFILE = {"user_id": "ada_berg_1"}
CANCEL = {"order_id": PENDING, "reason": "no longer needed"}
GIVE_BACK = {"order_id": DELIVERED, "item_ids": [RED], "payment_method_id": CARD}


def action(name: str, arguments: Json, **more: Any) -> Json:
    """A gold action as the file has it."""
    return {"action_id": "1", "name": name, "arguments": arguments, "info": None, **more}


def task(number: str, actions: list[Json] | None, **criteria: Any) -> Json:
    """A task as the file has it."""
    return {
        "id": number,
        "description": None,
        "user_scenario": {
            "persona": None,
            "instructions": {
                "domain": "retail",
                "reason_for_call": f"Reason {number}.",
                "known_info": "You are Ada Berg.",
                "unknown_info": None,
                "task_instructions": "Be brief.",
            },
        },
        "initial_state": None,
        "evaluation_criteria": {"actions": actions, **criteria},
    }


TASKS = [
    task("0", [action("get_user_details", PROFILE)], communicate_info=["10.10"]),
    task(
        "1",
        [action("cancel_pending_order", CANCEL, compare_args=["order_id"])],
        nl_assertions=["The agent is kind."],
        reward_basis=["DB", "NL_ASSERTION"],
    ),
    task(
        "2",
        [
            action("get_user_details", {"user_id": "nobody"}),
            action("cancel_pending_order", CANCEL),
            action("return_delivered_order_items", GIVE_BACK, requestor="assistant"),
        ],
        reward_basis=["DB", "NL_ASSERTION"],
    ),
    task("9", [], reward_basis=["DB"]),
]

SPLITS = {"train": ["0", "1"], "test": ["2"], "base": ["0", "1", "2"]}


def write_folder(root: Path) -> Path:
    """Write the files; what KINTSUGI_BENCHMARKS would name."""
    place = root / "tau2" / "retail"
    place.mkdir(parents=True)
    own = database()
    tables = {name: own[name] for name in own.names}
    tables["products"] = PRODUCTS
    schema = {"type": "function", "function": {"name": "theirs", "parameters": {}}}
    for name, content in {
        "db.json": tables,
        "tasks.json": TASKS,
        "split_tasks.json": SPLITS,
        "tools.json": {"assistant": [schema], "user": None},
    }.items():
        (place / name).write_text(json.dumps(content))
    (place / "policy.md").write_text("Their policy.")
    return root
