"""Parts that repeat their earlier answers, so that a model is asked once.

A cycle that has to wait is tried again from its first plan, which would cost a model's tokens again
and give other tasks. Guarantee: the same request to the same parts has the same outcome, including
`NoTask` and `trouble`. CannotSample is not remembered. Not for several threads.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field, replace

from daemon.methods.synthesis.engine import Parts
from daemon.methods.synthesis.protocols import (
    Draft,
    NoTask,
    PlanDrafts,
    PlanHistory,
    Planner,
    PlanRequest,
    Reviser,
    RevisionDraft,
    TaskWriter,
)
from envs.environment import Environment
from events.synthesis.plans import Plan


def remember_answers(parts: Parts) -> Parts:
    """Return parts whose planner, writer and reviser repeat their answers."""
    return replace(
        parts,
        planner=PlannerMemory(parts.planner),
        writer=WriterMemory(parts.writer),
        reviser=ReviserMemory(parts.reviser),
    )


@dataclass(slots=True)
class PlannerMemory:
    """A planner that repeats its plans (protocols.Planner)."""

    planner: Planner
    _drafts: dict[Hashable, PlanDrafts] = field(default_factory=dict)

    def plan(self, environment: Environment, request: PlanRequest) -> PlanDrafts:
        """Return the plans of a request. Raise NoPlans."""
        key = (request.seed, request.count, tuple(sorted(request.kinds.items())))
        if key not in self._drafts:
            self._drafts[key] = self.planner.plan(environment, request)
        return self._drafts[key]


@dataclass(slots=True)
class WriterMemory:
    """A writer that repeats its tasks and refusals (protocols.TaskWriter)."""

    writer: TaskWriter
    _outcomes: dict[Hashable, Draft | str] = field(default_factory=dict)

    def write(self, plan: Plan, seed: int) -> Draft:
        """Return the task of a plan and a seed. Raise NoTask."""
        key = (plan, seed)
        if key not in self._outcomes:
            try:
                self._outcomes[key] = self.writer.write(plan, seed)
            except NoTask as error:
                self._outcomes[key] = str(error)
        outcome = self._outcomes[key]
        if isinstance(outcome, str):
            raise NoTask(outcome)
        return outcome


@dataclass(slots=True)
class ReviserMemory:
    """A reviser that repeats its changes (protocols.Reviser)."""

    reviser: Reviser
    trouble: str = ""
    _outcomes: dict[Hashable, tuple[RevisionDraft | None, str]] = field(default_factory=dict)

    def revise(self, environment: Environment, history: PlanHistory) -> RevisionDraft | None:
        """Return the change of a plan, or None."""
        key = (
            history.name, history.plan, history.tries, history.accepted,
            tuple(history.failures), tuple(history.refused), tuple(history.common),
        )  # fmt: skip
        if key not in self._outcomes:
            draft = self.reviser.revise(environment, history)
            self._outcomes[key] = draft, self.reviser.trouble
        draft, self.trouble = self._outcomes[key]
        return draft
