"""Add tasks to the buffer of an agent and retire one, as events of an operator.

    TaskWriter(app, act, target).append(additions)    TaskProposed, with its body
    retire_task(app, act, alias, task)                TaskRetired

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
            derive_id(self._cause, "task", item.task.id): TaskProposed(
                alias=self._target.alias,
                base=self._target.base,
                task=item.task.record(),
                pattern=self._target.pattern or OPERATOR,
                verified=item.verified,
                text_by=self._act.actor,
                definition=item.body,
            )
            for item in new
        }
        self._decisions.record(events, self._cause)


def retire_task(app: "App", act: Act, alias: str, task: str) -> str:
    """Append the retirement of a task, and see it in the tables; return the id of the act. Raises
    LogError, DatabaseUnavailable."""
    decisions = Decisions(app)
    cause = decisions.act(act, RETIRE, {"alias": alias, "task": task})
    decisions.take(TaskRetired(alias=alias, task=task, reason=act.reason), "retired", cause)
    return cause
