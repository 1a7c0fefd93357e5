"""The parts of the data engine that a model can replace, and their data.

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
    """A request to a planner."""

    seed: str
    """Seed of all draws."""
    count: int = MOST_PLANS
    """Wanted plans, 1 to `MOST_PLANS`."""
    kinds: Mapping[str, float] = field(default_factory=dict)
    """Capability -> weight of its plans; empty: all of the environment, equally."""


@dataclass(frozen=True, slots=True)
class PlanDrafts:
    """The plans of a planner."""

    entries: tuple[Plan, ...]
    """In writing order, each fit for the earlier ones (planner.find_plan_problem)."""
    writer: str | None = None
    """Model that wrote them; None for rules."""
    refused: tuple[str, ...] = ()
    """Why plans of the model were not taken, in its order."""
    trouble: str = ""
    """Why the model's plans were not used, or why there are fewer than wanted."""


Planner = Callable[[Environment, PlanRequest], PlanDrafts]
"""Returns plans that do not overlap. Raises NoPlans, and CannotSample where the cycle must wait; so
do TaskWriter and Reviser."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A written task."""

    task: TaskDefinition
    """Named by content (TaskDefinition.name_by_content)."""
    drawn: str
    """Id of the generated task with its first state: the seed is the writer's, so the check
    `contamination` sees that no gate and no report draws it."""
    text_by: str | None = None
    """Model that wrote the words; None for templates."""


class TaskWriter(Protocol):
    """A writer of tasks."""

    def write(self, plan: Plan, seed: int) -> Draft:
        """Return a task by the plan and its rules. `seed`, FIRST_SEED to LAST_SEED of
        daemon/proposer/candidate, is the only source of chance. Raise NoTask."""
        ...


@dataclass(frozen=True, slots=True)
class Failure:
    """A try of a plan that failed."""

    event: str
    """Id of its event: `TaskRejected` or `TrajectoryVerified`."""
    aspect: Aspect
    """The part of the plan at fault: `writing` for faults of the task and checks, `rollout` for
    faults of the user, `judging` for examiners that disagree."""
    check: str
    """The failed check, or the rule that refused the rollout."""
    reason: str
    instruction: str = ""
    """The task's request, if there is one."""


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
    """Revisions of it that were tried and not kept."""
    common: Sequence[Failure] = ()
    """Failures of all plans of its set, without those of rejected changes."""


@dataclass(frozen=True, slots=True)
class RevisionDraft:
    """A change of a plan that is to be tried."""

    plan: Plan
    reason: str
    """In words, with the counts of the failures."""
    failures: tuple[str, ...]
    """Ids of the events of the failures, at least one."""
    checks: tuple[str, ...]
    """Checks (`Failure.check`) that the change is to mend, at least one."""
    writer: str | None = None
    """Model that wrote it; None for rules."""


class Reviser(Protocol):
    """A reviser of plans."""

    trouble: str
    """Why a model did not revise the last plan; empty if it did, and for rules."""

    def revise(self, environment: Environment, history: PlanHistory) -> RevisionDraft | None:
        """Return a change of the plan, under the same name; None if its failures need none."""
        ...
