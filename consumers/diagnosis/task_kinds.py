"""Select the rollouts on tasks that an agent's environment can write again. A cycle can write tasks
only after failures on such tasks. The event that closes a round names the kinds that the
environment writes (daemon/core/task_kinds.py), so a replay counts the same under other settings.

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
    """Return the SQL condition (never null) that a rollout's task is of one of these kinds."""
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
    """Return the SQL condition that a rollout's task is of `kinds`; true if `kinds` is None."""
    return true() if kinds is None else has_kind(rollouts, kinds)
