"""Small records of each format, written for the tests; every builder takes overrides."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from producers.importers.importer import Rejection, RolloutImport, read_rollouts

Json = dict[str, Any]


def tau_bench_run(**changes: Any) -> Json:
    """A run of tau-bench v1 that cancels a reservation, and succeeds."""
    actions = [{"name": "cancel_reservation", "kwargs": {"reservation_id": "R1"}}]
    run: Json = {
        "task_id": 7,
        "reward": 1.0,
        "info": {
            "task": {
                "user_id": "ada_1",
                "instruction": "You want to cancel R1.",
                "actions": actions,
                "outputs": ["12"],
            },
            "source": "user",
            "user_cost": 0.1,
            "reward_info": {
                "reward": 1.0,
                "info": {"r_outputs": 1.0, "outputs": {"12": True}},
                "actions": actions,
            },
        },
        "traj": [
            {"role": "system", "content": "# Airline Agent Policy\n\nBe kind."},
            {"role": "user", "content": "Cancel R1, please."},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [openai_call("cancel_reservation", '{"reservation_id": "R1"}')],
            },
            {
                "role": "tool",
                "tool_call_id": "call_1",
                "name": "cancel_reservation",
                "content": "Error: too late",
            },
            {"role": "assistant", "content": "That costs 12."},
            {"role": "user", "content": "Fine. ###STOP###"},
        ],
        "trial": 2,
    }
    return run | changes


def tau2_task(**changes: Any) -> Json:
    """A telecom task whose gold actions are the agent's and the user's."""
    task: Json = {
        "id": "[mobile]data_off",
        "user_scenario": {
            "persona": "Hurried",
            "instructions": {"reason_for_call": "No data.", "known_info": None},
        },
        "evaluation_criteria": {
            "actions": [
                {"action_id": "a", "name": "enable_roaming", "arguments": {"line_id": "L1"}},
                {
                    "action_id": "b",
                    "requestor": "user",
                    "name": "toggle_data",
                    "arguments": {"on": True},
                    "compare_args": [],
                },
            ],
            "communicate_info": ["done"],
            "reward_basis": ["ENV_ASSERTION", "ACTION"],
        },
    }
    return task | changes


def tau2_simulation(**changes: Any) -> Json:
    """A run of the task above: the user calls a tool, too."""
    simulation: Json = {
        "id": "sim-1",
        "task_id": "[mobile]data_off",
        "start_time": "2025-08-01T10:00:00.5",
        "end_time": "2025-08-01T10:01:00",
        "termination_reason": "user_stop",
        "reward_info": {
            "reward": 1.0,
            "reward_breakdown": {"ENV_ASSERTION": 1.0, "ACTION": 1.0},
            "action_checks": [
                {"action": action, "action_match": True}
                for action in tau2_task()["evaluation_criteria"]["actions"]
            ],
        },
        "messages": [
            {"role": "assistant", "content": "Hi!", "tool_calls": None, "cost": 0.0, "usage": None},
            {"role": "user", "content": "No data.", "cost": 0.1},
            {
                "role": "assistant",
                "content": None,
                "cost": 0.2,
                "tool_calls": [
                    tau2_call("c1", "enable_roaming", {"line_id": "L1"}),
                    tau2_call("c2", "get_data_usage", {}),
                ],
            },
            {"role": "tool", "id": "c1", "content": "ok", "error": False},
            {"role": "tool", "id": "c2", "content": "Error: no", "error": True},
            {
                "role": "user",
                "content": None,
                "tool_calls": [tau2_call("c3", "toggle_data", {"on": True})],
            },
            {"role": "tool", "id": "c3", "content": "on", "requestor": "user", "error": False},
            {"role": "user", "content": "###STOP###"},
        ],
        "trial": 1,
        "seed": 300,
    }
    return simulation | changes


def tau2_results(**changes: Any) -> Json:
    """A results file of one simulation."""
    results: Json = {
        "timestamp": "2025-08-01T10:02:00",
        "info": {
            "git_commit": "0123456789abcdef",
            "agent_info": {"implementation": "llm_agent", "llm": "model-a"},
            "user_info": {"implementation": "user_simulator", "llm": "model-u"},
            "environment_info": {"domain_name": "telecom", "policy": "p"},
        },
        "tasks": [tau2_task()],
        "simulations": [tau2_simulation()],
    }
    return results | changes


def openai_record(**changes: Any) -> Json:
    """A conversation with one call, unjudged."""
    record: Json = {
        "messages": [
            {"role": "user", "content": "Where is W1?"},
            {
                "role": "assistant",
                "tool_calls": [openai_call("get_order_details", '{"order_id": "W1"}')],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "{}"},
            {"role": "assistant", "content": "On its way."},
        ],
        "parallel_tool_calls": True,
    }
    return record | changes


def bfcl_result(**changes: Any) -> Json:
    """A multi-turn answer with its log: a native call, then one written as text."""
    result: Json = {
        "id": "multi_turn_base_3",
        "result": [[[{"ls": "{}"}], "[sort('f', reverse=True)]", []]],
        "inference_log": [
            [{"role": "state_info", "class_name": "Files", "content": {}}],
            {
                "begin_of_turn_query": [{"role": "user", "content": "Sort f."}],
                "step_0": [
                    {"role": "assistant", "content": [{"ls": "{}"}]},
                    {"role": "handler_log", "content": "", "model_response_decoded": ["ls()"]},
                    {"role": "tool", "content": '{"error": "no"}'},
                ],
                "step_1": [
                    {"role": "assistant", "content": "[sort('f', reverse=True)]"},
                    {
                        "role": "handler_log",
                        "content": "",
                        "model_response_decoded": ["sort('f', reverse=True)"],
                    },
                    {"role": "tool", "content": "None"},
                ],
            },
        ],
    }
    return result | changes


def openai_call(name: str, arguments: Any, call_id: str = "call_1") -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def tau2_call(call_id: str, name: str, arguments: Json) -> Json:
    return {"id": call_id, "name": name, "arguments": arguments, "requestor": "assistant"}


def write(path: Path, *values: Any) -> Path:
    """One JSON document, or JSON Lines for more than one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(json.dumps(value) for value in values))
    return path


def read(*paths: Path, **options: Any) -> tuple[list[RolloutImport], list[Rejection]]:
    """What `read_rollouts` makes of the files, told apart."""
    rollouts: list[RolloutImport] = []
    rejections: list[Rejection] = []
    for item in read_rollouts(paths, **options):
        if isinstance(item, Rejection):
            rejections.append(item)
        else:
            rollouts.append(item)
    return rollouts, rejections


def only(path: Path, **options: Any) -> RolloutImport:
    """The one rollout of a file without rejections."""
    rollouts, rejections = read(path, **options)
    assert not rejections, rejections
    assert len(rollouts) == 1
    return rollouts[0]


def places(rejections: list[Rejection]) -> list[str]:
    return [rejection.position for rejection in rejections]


def without(value: Mapping[str, Any], *keys: str) -> Json:
    return {key: item for key, item in value.items() if key not in keys}
