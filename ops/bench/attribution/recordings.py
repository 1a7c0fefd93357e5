"""Faults of users in recorded simulations of tau2-bench (its results files)."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from envs.attribution.task_faults import find_task_fault
from envs.attribution.user_faults import find_user_fault
from envs.environment import Environment
from envs.registry import open_environment
from envs.task import GENERATED, TaskDefinition
from events.messages import Message, ToolCall


def measure_recordings(file: Path, benchmarks: Path) -> dict[str, Any]:
    """Return how many simulations of a file have a fault, by its rule and by whether the agent
    passed, and each fault in a line, with the faults of their tasks. Simulations of tasks that the
    folder lacks are left out."""
    document = json.loads(file.read_text())
    domain = document["info"]["environment_info"]["domain_name"]
    environment = open_environment(domain, benchmarks=benchmarks)
    tasks = _read_tasks(environment)
    counts, faults = Counter[str](), list[str]()
    known = [item for item in document["simulations"] if str(item["task_id"]) in tasks]
    for item in known:
        task = tasks[str(item["task_id"])]
        fault = find_user_fault(environment, task, list(_read_messages(item["messages"])))
        if fault is not None:
            passed = "passed" if (item["reward_info"] or {}).get("reward") == 1 else "failed"
            counts[f"{fault.rule}, {passed}"] += 1
            faults.append(f"{task.id}: {fault.summary}")
    played = {str(item["task_id"]): tasks[str(item["task_id"])] for item in known}
    task_faults = [
        f"{task.id}: {wrong.summary}"
        for task in played.values()
        if (wrong := find_task_fault(environment, task)) is not None
    ]
    return {
        "simulations": len(known), "faults": dict(counts), "which": faults, "tasks": task_faults
    }  # fmt: skip


def _read_tasks(environment: Environment) -> dict[str, TaskDefinition]:
    """Return the real tasks of an environment by the name that tau2-bench has for them."""
    return {
        task.id.partition("/")[2]: task
        for split in environment.splits
        if split != GENERATED
        for task in environment.tasks(split)
    }


def _read_messages(items: list[Mapping[str, Any]]) -> Iterator[Message]:
    for item in items:
        calls = tuple(
            ToolCall(name=call["name"], arguments=call["arguments"], id=call["id"] or "call")
            for call in item.get("tool_calls") or ()
        )
        if item["role"] != "tool":
            yield Message(role=item["role"], content=item["content"], tool_calls=calls)
        else:
            yield Message(role="tool", content=item["content"], tool_call_id=item["id"])
