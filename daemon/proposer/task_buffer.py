"""Add, retire and replace tasks of an agent's buffer, as events of one operator's act. Appended
tasks are durable at return, so after a crash the same command adds the rest."""

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
"""Names of the operator's actions. Both have the argument `alias`, and `RETIRE` also `task`."""


@dataclass(frozen=True, slots=True)
class Target:
    """Agent, base model and pattern of added tasks."""

    alias: str
    base: str
    pattern: str | None
    """Failure pattern that the tasks practise, if any."""


class TaskWriter:
    """Appends added tasks as proposals of one operator's act."""

    def __init__(self, app: "App", act: Act, target: Target) -> None:
        self._decisions, self._act, self._target = Decisions(app), act, target
        self._cause: str | None = None

    def append(self, additions: Sequence[Addition]) -> None:
        """Append the tasks that are new, all or none, and fold them into the tables. Raise
        LogError, DatabaseUnavailable."""
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
    """Append a new task, and the retirement of the task `replaced` unless it is None. Append both
    or neither, and fold them into the tables. `action` names the operator's command. Raise
    LogError, DatabaseUnavailable."""
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
    """Retire a task and return the act's event id. Raise LogError, DatabaseUnavailable."""
    decisions = Decisions(app)
    cause = decisions.act(act, RETIRE, {"alias": alias, "task": task})
    decisions.take(TaskRetired(alias=alias, task=task, reason=act.reason), "retired", cause)
    return cause
