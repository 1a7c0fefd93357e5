"""Add tasks to the buffer of an agent, retire and replace one, as events of an operator.

    TaskWriter(app, act, target).append(additions)    TaskProposed, with its body, or that sealed
    retire_task(app, act, alias, task)                TaskRetired
    replace_task(app, act, action, target, addition, task)    TaskProposed and TaskRetired

Each follows from one `OperatorActed`. What `append` was given is durable when it returns, so that
after a kill the same command adds what is left.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from daemon.core.decision_log import Act, Decisions
from daemon.proposer.additions import Addition
from events.envelope import derive_id
from events.learning import OPERATOR, Decision, TaskProposed, TaskRetired

if TYPE_CHECKING:
    from daemon.core.app import App

ADD: Final = "tasks add"
RETIRE: Final = "tasks retire"
"""Actions of a person; each names the `alias`, the second the `task` too."""


@dataclass(frozen=True, slots=True)
class Target:
    """The agent, base model and pattern that tasks are added for."""

    alias: str
    base: str
    pattern: str | None
    """The failure pattern that they stress; None for none."""


class TaskWriter:
    """Appends tasks as proposals; all of them follow from one act of an operator."""

    def __init__(self, app: "App", act: Act, target: Target) -> None:
        self._decisions, self._act, self._target = Decisions(app), act, target
        self._cause: str | None = None

    def append(self, additions: Sequence[Addition]) -> None:
        """Append the proposals of the tasks that are not known, all or none, and see them in the
        tables. Raises LogError, DatabaseUnavailable."""
        new = [item for item in additions if not item.is_known]
        if not new:
            return
        if self._cause is None:
            self._cause = self._decisions.act(self._act, ADD, {"alias": self._target.alias})
        events: dict[str, Decision] = {
            derive_id(self._cause, "task", item.task.id): _propose(item, self._act, self._target)
            for item in new
        }
        self._decisions.record(events, self._cause)


def _propose(item: Addition, act: Act, target: Target) -> TaskProposed:
    return TaskProposed(
        alias=target.alias,
        base=target.base,
        task=item.task.record(),
        pattern=target.pattern or OPERATOR,
        source_rollout=item.task.source_rollout,
        verified=item.verified,
        text_by=act.actor,
        definition=item.body,
        sealed=item.sealed,
    )


def replace_task(
    app: "App", act: Act, action: str, target: Target, addition: Addition, replaced: str | None
) -> None:
    """Append the proposal of a task, unless it is known, and the retirement of the one that it
    replaces, unless that is None: both or neither, also after a kill; and see them in the tables.
    `action` names what the operator did. Raises LogError, DatabaseUnavailable."""
    if addition.is_known and replaced is None:
        return
    decisions = Decisions(app)
    arguments = {"alias": target.alias, "task": addition.task.id}
    cause = decisions.act(act, action, arguments)
    events: dict[str, Decision] = {}
    if not addition.is_known:
        events[derive_id(cause, "task", addition.task.id)] = _propose(addition, act, target)
    if replaced is not None:
        events[derive_id(cause, "retired")] = TaskRetired(
            alias=target.alias, task=replaced, reason=f"in its place: {addition.task.id}"
        )
    decisions.record(events, cause)


def retire_task(app: "App", act: Act, alias: str, task: str) -> str:
    """Append the retirement of a task, and see it in the tables; return the id of the act. Raises
    LogError, DatabaseUnavailable."""
    decisions = Decisions(app)
    cause = decisions.act(act, RETIRE, {"alias": alias, "task": task})
    decisions.take(TaskRetired(alias=alias, task=task, reason=act.reason), "retired", cause)
    return cause
