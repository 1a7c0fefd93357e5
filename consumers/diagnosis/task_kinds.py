"""Tell the rollouts on tasks that an agent's environment can write again from all others.

A cycle can use a failure only where a task like the failed one can be written. The environment says
which kinds it writes (daemon/core/task_kinds.py), and the event that closes a round names them, so
a replay counts the same after the settings have changed. A rollout does not count if its task is of
another environment, of a benchmark, or of a kind that the environment has no longer, or if it has
no task.

    ENV/GENERATOR     tasks that this generator drew
    ENV/=CAPABILITY   tasks by content of this capability: fresh ones like them are drawn
    ENV/              every task of an environment whose ids name no generator
"""

from collections import defaultdict
from collections.abc import Collection
from typing import Any

from sqlalchemy import and_, case, or_, true
from sqlalchemy.sql import ColumnElement


def has_kind(rollouts: Any, kinds: Collection[str]) -> ColumnElement[bool]:
    """Tell whether a rollout (columns of the table) is on a task of one of these kinds. The
    condition is never null."""
    names = sorted(kinds)
    capabilities: defaultdict[str, list[str]] = defaultdict(list)
    for environment, equals, capability in (name.partition("/=") for name in names):
        if equals:
            capabilities[environment + equals].append(capability)
    by_content = [
        and_(rollouts.task.startswith(prefix, autoescape=True), rollouts.capability.in_(own))
        for prefix, own in capabilities.items()
    ]
    wide = [rollouts.task.startswith(name, autoescape=True) for name in names if name[-1:] == "/"]
    return case((or_(rollouts.kind.in_(names), *by_content, *wide), True), else_=False)


def is_usable(rollouts: Any, kinds: Collection[str] | None) -> ColumnElement[bool]:
    """Tell whether a cycle may use a rollout. With None for `kinds` it may use any; else its task
    must be of one of them."""
    return true() if kinds is None else has_kind(rollouts, kinds)
