"""The components of the data engine that a model can replace, and their data.

Each has an implementation by rule in this package. None of them appends an event: engine.py makes
events of their results.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from envs.environment import Environment
from envs.task import TaskDefinition
from events.errors import KintsugiError
from events.learning import PlanName
from events.synthesis.plans import MOST_PLANS, Aspect, Plan


class NoPlans(KintsugiError):
    """A planner gives no plan; the text says why."""


class NoTask(KintsugiError):
    """A writer gives no task for a plan; the text says why."""


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """A request for plans."""

    seed: str
    """Seed of all random choices."""
    count: int = MOST_PLANS
    """Number of plans wanted, from 1 to `MOST_PLANS`."""
    kinds: Mapping[str, float] = field(default_factory=dict)
    """Kind of task -> weight of its plans; empty for all kinds with equal weights."""


@dataclass(frozen=True, slots=True)
class PlanDrafts:
    """The plans that a planner wrote."""

    entries: tuple[Plan, ...]
    """Plans in writing order, each fit for the earlier ones (planner.find_plan_problem)."""
    writer: str | None = None
    """Model that wrote the plans; None for rules."""
    refused: tuple[str, ...] = ()
    """Reasons why plans of the model were refused, in its order."""
    trouble: str = ""
    """Why the model's plans were not used, or why there are fewer than requested."""


Planner = Callable[[Environment, PlanRequest], PlanDrafts]
"""Returns plans that do not overlap. Raises NoPlans, and CannotSample if the cycle has to wait;
TaskWriter and Reviser may raise CannotSample too."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A task that was written by a plan."""

    task: TaskDefinition
    """The task, named by content (TaskDefinition.name_by_content)."""
    drawn: str
    """Id of the generated task that has its first state. That task's seed is the writer's, so the
    check `contamination` sees that no gate and no report draws it."""
    text_by: str | None = None
    """Model that wrote the words; None for templates."""


class TaskWriter(Protocol):
    """Writes tasks by plans."""

    def write(self, plan: Plan, seed: int) -> Draft:
        """Return a task written by the plan and its rules. `seed`, from FIRST_SEED to LAST_SEED of
        daemon/proposer/candidate, is the only source of randomness. Raise NoTask."""
        ...


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed try to write a task by a plan."""

    event: str
    """Id of the event that recorded it: `TaskRejected` or `TrajectoryVerified`."""
    aspect: Aspect
    """The part of the plan at fault: `writing` for faults of the task and checks, `rollout` for
    faults of the user, `judging` if a model and the rules disagree."""
    check: str
    """The failed check, or the rule that the rollout broke."""
    reason: str
    instruction: str = ""
    """The task's request; "" if there is no task."""


@dataclass(frozen=True, slots=True)
class PlanHistory:
    """A plan with the results of its tries."""

    name: PlanName
    plan: Plan
    tries: int
    accepted: int
    failures: Sequence[Failure]
    """Failures of these tries, in order."""
    refused: Sequence[Plan] = ()
    """Revisions of the plan that were tried and not kept."""
    common: Sequence[Failure] = ()
    """Failures of all plans of the set, without those of rejected changes."""


@dataclass(frozen=True, slots=True)
class RevisionDraft:
    """A changed plan that is to be tried."""

    plan: Plan
    reason: str
    """A text with the counts of the failures."""
    failures: tuple[str, ...]
    """Ids of the events that recorded the failures; at least one."""
    checks: tuple[str, ...]
    """Checks (`Failure.check`) that the change is meant to mend; at least one."""
    writer: str | None = None
    """Model that wrote the change; None for rules."""


class Reviser(Protocol):
    """Revises plans after failures."""

    trouble: str
    """Why a model did not revise the last plan; "" if it did, and for rules."""

    def revise(self, environment: Environment, history: PlanHistory) -> RevisionDraft | None:
        """Return a changed plan with the same name; None if its failures ask for no change."""
        ...
