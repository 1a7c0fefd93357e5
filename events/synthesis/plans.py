"""Plans of how tasks are written and judged: events of the stream `learning`. A plan follows
AReaL-SEA (arXiv 2601.22607, section 3.1). A writer of ours or a model follows it; the checks of
daemon/proposer/verification.py decide."""

from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from events.learning import Decision, PlanName, Text
from events.messages import StrictModel
from events.rollouts import Count, Id, Name, Reason

MOST_PLANS: Final = 64
"""Most plans of one set (AReaL-SEA has 64)."""
MOST_ROUNDS: Final = 3
"""Most rounds of revisions of one set; the paper gives no number."""

Complexity = Literal["simple", "compound", "long"]
"""Number of gold calls: one or two, three to five, more."""

ToolMode = Literal["read", "write", "both_parties", "none"]
"""Kind of gold calls: look up, change, need the user's calls too; or none (the policy answers)."""

Aspect = Literal["writing", "rollout", "judging"]
"""Subject of a plan's rule: writing tasks, the user's conduct in a rollout, or judging."""


class PlanRule(StrictModel):
    """A rule for a plan's tasks, added after failures."""

    aspect: Aspect
    check: Name
    """Check that failed (learning.Check), or rule that refused a trajectory."""
    text: Text


class Plan(StrictModel):
    """A way of writing and judging some tasks."""

    plan: Name
    domain: Name
    """Subject of its tasks: a table of the environment, or a kind of thing."""
    kind: Name | None = None
    """Capability that gives state and calls; None: the writer explores."""
    complexity: Complexity
    tool_mode: ToolMode
    tools: tuple[Name, ...]
    """Tools that the gold calls of its tasks need."""
    manner: Name
    """Manner of the user's speech (daemon/methods/synthesis/manners.py)."""
    writing: Text
    judging: Text
    rules: tuple[PlanRule, ...] = ()
    """Rules added by revisions."""

    @property
    def summary(self) -> str:
        """Describe it in one line, without its texts."""
        return f"{self.kind or self.domain}, {self.complexity}, {self.tool_mode}, {self.manner}"


class PlansWritten(Decision):
    """A planner has laid out how an agent's tasks are to be written."""

    TYPE: ClassVar[str] = "PlansWritten"

    plans: Id
    """The set: derive_id("plans", ...)."""
    alias: Name
    base: Name
    environment: Name
    cycle: Id | None = None
    """None for a person's set."""
    patterns: tuple[Name, ...] = ()
    """Failure patterns of the plans; empty: all."""
    entries: Annotated[tuple[Plan, ...], Field(min_length=1, max_length=MOST_PLANS)]
    """Plans in the order of writing."""
    overlap: Annotated[float, Field(ge=0, le=1)]
    """Largest likeness of two of them: the share of common trigrams of words."""
    uncovered: tuple[Name, ...] = ()
    writer: Name | None = None
    """Model that wrote them; None for rules."""
    refused: tuple[Reason, ...] = ()
    """Why the model's plans were refused, in its order."""
    trouble: Reason = ""
    """Why rules wrote the plans in place of a configured model."""

    @model_validator(mode="after")
    def _names_once(self) -> Self:
        names = [plan.plan for plan in self.entries]
        if len(names) != len(set(names)):
            raise ValueError("two plans of a set have one name")
        return self


class PlanRevision(StrictModel):
    """A tried change of a plan."""

    before: PlanName
    plan: Plan
    reason: Reason
    """Reason in words, with the counts of the failures."""
    failures: Annotated[tuple[Id, ...], Field(min_length=1)]
    """Failed events: `TaskRejected`, or refused rollouts."""
    tries_before: Count
    accepted_before: Count
    tries: Count
    """Tries of the plan as revised that the plan before had not; so is the next."""
    accepted: Count
    kept: bool
    """Whether the revision stays: its own acceptance holds."""


class PlansRevised(Decision):
    """A round of reflection over the failures of a set of plans."""

    TYPE: ClassVar[str] = "PlansRevised"

    plans: Id
    alias: Name
    base: Name
    cycle: Id | None = None
    round: Annotated[int, Field(ge=1, le=MOST_ROUNDS)]
    revisions: tuple[PlanRevision, ...] = ()
    writer: Name | None = None
    """Model that revised them; None for rules."""
    trouble: Reason = ""
    stopped: Reason = ""
    """Why no further round follows; empty where one may."""


EVENTS: Final = (PlansWritten, PlansRevised)
"""The event types of this module; events/registry.py knows each."""
