"""Events of plans, which say how tasks are written and judged (stream `learning`). Source of plans:
AReaL-SEA (arXiv 2601.22607, section 3.1). Code or a model writes tasks by a plan; the checks of
daemon/proposer/verification.py accept or reject them."""

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
"""Number of gold calls: `simple` one or two, `compound` three to five, `long` more."""

ToolMode = Literal["read", "write", "both_parties", "none"]
"""Kind of gold calls: look-ups, changes, calls of agent and user, or none (the policy answers)."""

Aspect = Literal["writing", "rollout", "judging"]
"""Subject of a plan's rule: writing tasks, the user's conduct in a rollout, or judging."""


class PlanRule(StrictModel):
    """A rule for a plan's tasks, added after failures."""

    aspect: Aspect
    check: Name
    """Failed check (learning.Check) or trajectory rule because of which this rule was added."""
    text: Text


class Plan(StrictModel):
    """Instructions for writing and judging a group of tasks."""

    plan: Name
    domain: Name
    """Subject of its tasks: a table of the environment, or a kind of thing."""
    kind: Name | None = None
    """Capability whose generator gives state and calls; None: the writer explores by itself."""
    complexity: Complexity
    tool_mode: ToolMode
    tools: tuple[Name, ...]
    """Tools that the gold calls of its tasks need."""
    manner: Name
    """The user's style of speech (daemon/methods/synthesis/manners.py)."""
    writing: Text
    judging: Text
    rules: tuple[PlanRule, ...] = ()
    """Rules that revisions added."""

    @property
    def summary(self) -> str:
        """Describe it in one line, without its texts."""
        return f"{self.kind or self.domain}, {self.complexity}, {self.tool_mode}, {self.manner}"


class PlansWritten(Decision):
    """A planner wrote a set of plans for an agent's tasks."""

    TYPE: ClassVar[str] = "PlansWritten"

    plans: Id
    """Id of the set of plans: derive_id("plans", ...)."""
    alias: Name
    base: Name
    environment: Name
    cycle: Id | None = None
    """Cycle that requested the set; None for a person's request."""
    patterns: tuple[Name, ...] = ()
    """Failure patterns that the plans are for; empty: all patterns."""
    entries: Annotated[tuple[Plan, ...], Field(min_length=1, max_length=MOST_PLANS)]
    """Plans in the order of writing."""
    overlap: Annotated[float, Field(ge=0, le=1)]
    """Largest similarity of two plans: their share of common word trigrams."""
    uncovered: tuple[Name, ...] = ()
    writer: Name | None = None
    """Model that wrote them; None for rules."""
    refused: tuple[Reason, ...] = ()
    """Why plans of the model were refused, in the model's order."""
    trouble: Reason = ""
    """Why rules wrote the plans in place of a configured model."""

    @model_validator(mode="after")
    def _names_once(self) -> Self:
        names = [plan.plan for plan in self.entries]
        if len(names) != len(set(names)):
            raise ValueError("two plans of a set have one name")
        return self


class PlanRevision(StrictModel):
    """A change of a plan that was tried out."""

    before: PlanName
    plan: Plan
    reason: Reason
    """Reason in words, with the counts of the failures."""
    failures: Annotated[tuple[Id, ...], Field(min_length=1)]
    """Ids of the failures: `TaskRejected` events, or refused rollouts."""
    tries_before: Count
    accepted_before: Count
    tries: Count
    """Number of new tries with the revised plan; `accepted` counts these tries only."""
    accepted: Count
    kept: bool
    """Whether the revision stays, because enough of its own tries were accepted."""


class PlansRevised(Decision):
    """Plans of a set were revised after their failures, in one round."""

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
