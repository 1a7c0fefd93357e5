"""Decide whose fault the failure of a rollout was (pure). The parties are examined in the order of
ALGORITHMS 4.1, and the first one with a fault is blamed:

    task         the task cannot be won, whatever the verdict (task_faults.py)
    user         the played user broke its instructions (user_faults.py), or failed technically
    trajectory   the agent failed; the rule names the part of the verdict that failed

The environment's exact user never errs. Not covered: rollouts without a verdict.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from envs.attribution.task_faults import TaskFault, find_task_fault
from envs.environment import Environment
from envs.episode import Termination
from envs.evidence.user_faults import find_user_fault
from envs.grading import Grade
from envs.task import TaskDefinition
from events.errors import KintsugiError
from events.messages import Message

_SHOWN: Final = 200
"""Largest number of characters of a value that a reason quotes."""


class NoVerdict(KintsugiError):
    """A rollout has no verdict, although neither its task nor its user has a fault."""


@dataclass(frozen=True, slots=True)
class RolloutFault:
    """The party at fault for a rollout, the rule that shows it, and a reason in words."""

    fault: Literal["task", "user", "trajectory"]
    rule: str
    reason: str

    @property
    def summary(self) -> str:
        """The fault in one line."""
        whose = "the agent" if self.fault == "trajectory" else f"the {self.fault}"
        return f"{whose}'s fault ({self.rule}): {self.reason}"


def examine(
    environment: Environment,
    task: TaskDefinition,
    messages: Sequence[Message],
    termination: str | None,
    verdict: Grade | None,
    *,
    exact_user: bool = False,
) -> RolloutFault | None:
    """Return whose fault a rollout is; None for a faultless success. `messages` lack the system
    prompt; `verdict` is unshaped, None if the user or the machine failed. Raise NoVerdict."""
    fault = find_task_fault(environment, task)
    if fault is not None:
        return blame_task(fault)
    return find_fault_beside_task(
        environment, task, messages, termination, verdict, exact_user=exact_user
    )


def blame_task(fault: TaskFault) -> RolloutFault:
    """Return the fault that every rollout of a faulty task gets."""
    return RolloutFault("task", fault.rule, fault.reason)


def find_fault_beside_task(
    environment: Environment,
    task: TaskDefinition,
    messages: Sequence[Message],
    termination: str | None,
    verdict: Grade | None,
    *,
    exact_user: bool = False,
) -> RolloutFault | None:
    """Examine a rollout as `examine` does, whose task has no fault. Raise NoVerdict."""
    if not exact_user:
        fault = find_user_fault(environment, task, messages)
        if fault is not None:
            return RolloutFault("user", fault.rule, f"message {fault.place}: {fault.reason}")
        if termination == Termination.USER_ERROR:
            return RolloutFault("user", "ending", "the user did not get through the episode")
    if verdict is None or verdict.success is None:
        parts = (
            "" if verdict is None else f"; only a judge can tell {', '.join(verdict.open_parts)}"
        )
        raise NoVerdict(f"a rollout of {task.id} that ended as {termination} has no verdict{parts}")
    return None if verdict.success else _blame_agent(verdict)


def _blame_agent(verdict: Grade) -> RolloutFault:
    if verdict.irregular is not None:
        return RolloutFault("trajectory", "ending", f"it ended as {verdict.irregular}")
    if verdict.violations:
        return RolloutFault("trajectory", "policy", verdict.violations[0][:_SHOWN])
    if verdict.difference:
        first = verdict.difference[0]
        path = "/".join(first.path)
        reason = f"{path} is {_quote(first.actual)}, and {_quote(first.expected)} is expected"
        return RolloutFault("trajectory", "state", reason)
    if verdict.missing:
        reason = f"it never says {verdict.missing[0][:_SHOWN]!r}"
        return RolloutFault("trajectory", "outputs", reason)
    lost = [basis for basis, value in verdict.parts.items() if value == 0]
    return RolloutFault("trajectory", "verdict", f"it fails by {', '.join(lost) or 'its reward'}")


def _quote(value: object) -> str:
    return repr(value)[:_SHOWN]
