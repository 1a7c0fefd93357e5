"""The event that attributes a rollout's failure. Source: AReaL-SEA (arXiv 2601.22607, section 3.1)
for faults of the task and the trajectory; faults of the user are our addition. Rules decide
(envs/attribution); a model's opinion is recorded and decides nothing."""

from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from events.learning import Decision, PlanName
from events.messages import StrictModel
from events.rollouts import Id, Name, Reason

Fault = Literal["task", "user", "trajectory"]
"""`task`: its gold actions fail, or its text contradicts them. `user`: the user broke instructions,
misused a tool, hung up early or told unknown facts. `trajectory`: the agent failed."""


class FaultOpinion(StrictModel):
    """A model's opinion about who is at fault in a rollout."""

    model: Name
    fault: Fault | None
    """The fault; None: the model would accept the rollout."""
    reason: Reason = ""


class TrajectoryVerified(Decision):
    """A rollout on a written task was examined for faults."""

    TYPE: ClassVar[str] = "TrajectoryVerified"

    alias: Name
    base: Name
    cycle: Id | None = None
    task: Id
    rollout: Id
    plan: PlanName | None = None
    """Plan of the task; None without a plan."""
    fault: Fault | None = None
    rule: Annotated[str, Field(max_length=128)] = ""
    """Rule that found the fault; empty if the rollout is accepted."""
    reason: Reason = ""
    opinion: FaultOpinion | None = None
    """The model's opinion; None: no model was asked, or it gave no answer."""
    trouble: Reason = ""
    siblings: Annotated[tuple[Id, ...], Field(max_length=1000)] = ()
    """For a task's fault: reviewed tasks of the same plan or source. Other events retire them."""

    @property
    def agrees(self) -> bool | None:
        """Return whether the model names the same fault as the rules; None without an opinion."""
        return None if self.opinion is None else self.opinion.fault == self.fault

    @model_validator(mode="after")
    def _has_reason(self) -> Self:
        if (self.fault is None) != (self.rule == ""):
            raise ValueError("a fault and the rule that found it come together")
        if self.siblings and self.fault != "task":
            raise ValueError("siblings are reviewed where the task is at fault")
        return self


EVENTS: Final = (TrajectoryVerified,)
"""The event types of this module; events/registry.py knows each."""
