"""Build explanations of plans, sets of plans, faults and gates of users, from the tables."""

import json
from typing import Any

from sqlalchemy import Connection, Row

from consumers.methods.synthesis.plans import (
    PlanSetLine,
    PlanState,
    list_plan_sets,
    read_plan_changes,
    read_plans,
)
from consumers.methods.synthesis.verdicts import read_task_verdicts
from consumers.reads.explanation import Node, find_pattern, find_rollout
from events.serving import UserEvaluated


def build_plan_node(connection: Connection, task: Row[Any]) -> Node | None:
    """Return a node for a task's plan, with its set and patterns below; None without a plan."""
    sets = {line.plans: line for line in list_plan_sets(connection, task.alias)}
    line = sets.get(task.plans)
    if line is None:
        return None
    state = next(
        (item for item in read_plans(connection, line.plans) if item.plan.plan == task.plan), None
    )
    if state is None:
        return None
    changes = read_plan_changes(connection, line.plans, task.plan)
    tried = f"{sum(item.kept for item in changes)} of {len(changes)} revisions kept"
    revision = f"revision {task.plan_revision}"
    if task.plan_revision != state.revision:
        revision += f", it is at revision {state.revision} now"
    text = _join(
        state.plan.summary, revision, tried if changes else "no revision was tried",
        f"written by {line.author}", _describe_plan_counts(state),
    )  # fmt: skip
    return Node(f"{line.plans}/{task.plan}", "plan", text, (_build_set_node(connection, line),))


def _describe_plan_counts(item: PlanState | PlanSetLine) -> str:
    counts = item.counts
    faults = [f"{count} by the {fault}" for fault, count in counts.faults.items() if count]
    text = f"{counts.accepted} of {counts.tries} tries accepted"
    return f"{text}, rollouts failed: {', '.join(faults)}" if faults else text


def find_set_node(connection: Connection, name: str) -> Node | None:
    line = next((line for line in list_plan_sets(connection) if line.plans == name), None)
    return None if line is None else _build_set_node(connection, line)


def _build_set_node(connection: Connection, line: PlanSetLine) -> Node:
    text = _join(
        f"{line.plans_count} plans of {line.alias} on {line.base} by {line.author}",
        _describe_plan_counts(line), f"{line.rounds} rounds of revisions", line.stopped,
        line.trouble,
    )  # fmt: skip
    patterns = (find_pattern(connection, name) for name in line.patterns)
    return Node(line.plans, "plans", text, tuple(node for node in patterns if node is not None))


def build_verdict_nodes(connection: Connection, task: Row[Any]) -> list[Node]:
    """Return a node for the verdict on each examined rollout of a task."""
    nodes = []
    for line in read_task_verdicts(connection, task.task, task.alias):
        rollout = find_rollout(connection, line.rollout)
        because = () if rollout is None else (rollout,)
        nodes.append(Node(f"{task.task}/verdict", "verdict", line.describe(), because))
    return nodes


def describe_role_gate(adapter: Row[Any]) -> tuple[str, str]:
    """Return the result of an adapter's gate as a user, and the reason of its state. The reason is
    "" if the result has it already."""
    stored, reason = adapter.user_gate, adapter.reason
    repeats = stored is not None and json.loads(stored)["reason"] == reason
    return _describe_user_gate(stored), "" if repeats else reason


def _describe_user_gate(stored: str | None) -> str:
    if stored is None:
        return ""
    gate = UserEvaluated.model_validate_json(stored)
    rates = ", ".join(
        f"{name} {rate.count:,} of {rate.of:,} (at most {rate.upper:.2%}, {rate.limit:.1%} may be)"
        for name, rate in gate.rates.items()
    )
    words = "passed" if gate.passed else "failed"
    before = f", in place of {gate.previous}" if gate.previous is not None and gate.passed else ""
    examples = f"; faults: {'; '.join(gate.examples)}" if gate.examples else ""
    return f"{words} its gate of {gate.dialogues:,} dialogues{before}: {rates}{examples}"


def _join(*parts: str) -> str:
    return "; ".join(part for part in parts if part)
