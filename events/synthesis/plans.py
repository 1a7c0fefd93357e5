"""Plans of how tasks are written and judged: events of the stream `learning`.

    PlansWritten    a planner made plans
    PlansRevised    failures of a plan's tasks changed it, or did not

A plan follows AReaL-SEA (arXiv 2601.22607, section 3.1). A writer of ours or a model follows it;
the checks of daemon/proposer/verification.py decide. `TaskProposed` and `TaskRejected` name the
plan of a try (learning.py, PlanName).
"""

from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from events.learning import Decision, PlanName, Text
from events.messages import StrictModel
from events.rollouts import Count, Id, Name, Reason

MOST_PLANS: Final = 64
"""Most plans of one set (AReaL-SEA has 64)."""
MOST_ROUNDS: Final = 3
"""Most rounds of revisions of one set; the paper does not state its number."""

Complexity = Literal["simple", "compound", "long"]
"""By the gold calls of a task: one or two, three to five, more."""

ToolMode = Literal["read", "write", "both_parties", "none"]
"""What gold calls do: look up, change, need the user's calls too; or none, as the policy
answers."""

Aspect = Literal["writing", "rollout", "judging"]
"""Subject of a plan's rule: writing tasks, the user's conduct in a rollout, or judging."""


class PlanRule(StrictModel):
    """Something that a plan's tasks must keep to since some of them failed."""

    aspect: Aspect
    check: Name
    """The check that failed (learning.Check), or the rule by which a trajectory was refused."""
    text: Text
    """What to do otherwise, in a sentence."""


class Plan(StrictModel):
    """How some tasks are written and judged."""

    plan: Name
    """Its name in the set."""
    domain: Name
    """What its tasks are about: a table of the environment, or a kind of thing."""
    kind: Name | None = None
    """Capability from which the environment draws state and calls; None: the writer explores."""
    complexity: Complexity
    tool_mode: ToolMode
    tools: tuple[Name, ...]
    """Tools that the gold calls of its tasks need, each once."""
    manner: Name
    """How the user speaks (daemon/methods/synthesis/manners.py)."""
    writing: Text
    """How to write a task, in words."""
    judging: Text
    """How to judge a task and its rollouts, in words."""
    rules: tuple[PlanRule, ...] = ()
    """What revisions added."""

    @property
    def summary(self) -> str:
        """Describe it in one line, without its texts."""
        return f"{self.kind or self.domain}, {self.complexity}, {self.tool_mode}, {self.manner}"


class PlansWritten(Decision):
    """A planner has laid out how the tasks of an agent are to be written."""

    TYPE: ClassVar[str] = "PlansWritten"

    plans: Id
    """The set: derive_id("plans", ...)."""
    alias: Name
    base: Name
    environment: Name
    cycle: Id | None = None
    """None for a set that a person asked for."""
    patterns: tuple[Name, ...] = ()
    """Failure patterns that they are for; empty: for all."""
    entries: Annotated[tuple[Plan, ...], Field(min_length=1, max_length=MOST_PLANS)]
    """In the order in which they were written, each knowing the earlier ones."""
    overlap: Annotated[float, Field(ge=0, le=1)]
    """Largest likeness of two of them: the share of trigrams of words that both texts have."""
    uncovered: tuple[Name, ...] = ()
    """Tools of the environment that no plan needs."""
    writer: Name | None = None
    """Model that wrote them; None for rules."""
    refused: tuple[Reason, ...] = ()
    """Why plans of the model were not taken, in its order."""
    trouble: Reason = ""
    """Why the model's plans were not used, where one is configured: then rules wrote them."""

    @model_validator(mode="after")
    def _names_once(self) -> Self:
        names = [plan.plan for plan in self.entries]
        if len(names) != len(set(names)):
            raise ValueError("two plans of a set have one name")
        return self


class PlanRevision(StrictModel):
    """A change of a plan that was tried."""

    before: PlanName
    """The plan as it was."""
    plan: Plan
    """The plan as it was tried."""
    reason: Reason
    """In words, with the counts of the failures."""
    failures: Annotated[tuple[Id, ...], Field(min_length=1)]
    """Events that say what failed: `TaskRejected`, or the rollouts that were refused."""
    tries_before: Count
    accepted_before: Count
    tries: Count
    """Of the plan as revised, on tries that the plan before had not; so is the next."""
    accepted: Count
    kept: bool
    """Whether the plan is this one from then on: its own acceptance holds."""


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
