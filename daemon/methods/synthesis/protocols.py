"""The parts of the data engine that a model can take the place of, and what they exchange.

    Planner      lays out how tasks are to be written
    TaskWriter   writes one task by a plan
    Reviser      changes a plan by its failures

Each has an implementation by rule in this package. None appends an event (engine.py does).
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
    """What a planner is asked for."""

    seed: str
    """What everything is drawn from."""
    count: int = MOST_PLANS
    """Plans that are wanted, 1 to `MOST_PLANS`."""
    kinds: Mapping[str, float] = field(default_factory=dict)
    """Capability -> weight of its plans; empty: all of the environment, equally."""


@dataclass(frozen=True, slots=True)
class PlanDrafts:
    """What a planner gives."""

    entries: tuple[Plan, ...]
    """In the order in which they were written, each fit for the earlier ones
    (planner.find_plan_problem)."""
    writer: str | None = None
    """Model that wrote them; None for rules."""
    refused: tuple[str, ...] = ()
    """Why plans of the model were not taken, in its order."""
    trouble: str = ""
    """Why the model's plans were not used, or why there are fewer than were wanted."""


Planner = Callable[[Environment, PlanRequest], PlanDrafts]
"""Returns plans that do not overlap. Raises NoPlans, and CannotSample where the cycle must wait; so
do TaskWriter and Reviser."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A task as a writer gives it."""

    task: TaskDefinition
    """By content (TaskDefinition.name_by_content)."""
    drawn: str
    """Id of the generated task whose first state it begins in: its seed is the writer's, so that
    the check `contamination` sees that no gate and no report draws it."""
    text_by: str | None = None
    """Model that wrote the words; None for templates."""


class TaskWriter(Protocol):
    """Writes tasks."""

    def write(self, plan: Plan, seed: int) -> Draft:
        """Return a task by the plan and its rules. `seed`, FIRST_SEED to LAST_SEED of
        daemon/proposer/candidate, is the only source of chance. Raises NoTask."""
        ...


@dataclass(frozen=True, slots=True)
class Failure:
    """A try of a plan that failed."""

    event: str
    """Id of the event that says so: `TaskRejected` or `TrajectoryVerified`."""
    aspect: Aspect
    """What of the plan it speaks against: faults of the task and checks `writing`, faults of the
    user `rollout`, examiners that disagree `judging`."""
    check: str
    """The check that failed, or the rule by which the rollout was refused."""
    reason: str
    instruction: str = ""
    """The request of the task, as far as there is one."""


@dataclass(frozen=True, slots=True)
class PlanHistory:
    """A plan with what became of its tries."""

    name: PlanName
    plan: Plan
    tries: int
    accepted: int
    failures: Sequence[Failure]
    """Of these tries, in their order."""
    refused: Sequence[Plan] = ()
    """Revisions of it that were tried and not kept."""
    common: Sequence[Failure] = ()
    """Failures of all plans of its set; those of changes that did not stay are left out."""


@dataclass(frozen=True, slots=True)
class RevisionDraft:
    """A change of a plan that is to be tried."""

    plan: Plan
    reason: str
    """In words, with the counts of the failures."""
    failures: tuple[str, ...]
    """Events that say what failed, at least one."""
    checks: tuple[str, ...]
    """Checks (`Failure.check`) that the change is to mend, at least one."""
    writer: str | None = None
    """Model that wrote it; None for rules."""


class Reviser(Protocol):
    """Revises plans."""

    trouble: str
    """Why a model that was to be asked about the last plan revised nothing; empty where it did, and
    for rules."""

    def revise(self, environment: Environment, history: PlanHistory) -> RevisionDraft | None:
        """Return a change of the plan, with the name of the plan kept; None where its failures ask
        for none."""
        ...
