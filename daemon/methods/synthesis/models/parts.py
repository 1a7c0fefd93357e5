"""The data engine with a model in it, if the settings name one.

    parts = make_model_parts(environment, app.settings, directive) or make_parts(environment)

A cycle that has to wait is tried again from its first plan, and asks the model nothing twice.
Guarantee: the same request to the same parts has the same outcome, `NoTask` and `trouble` included.
CannotSample is not remembered. Not for several threads.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from daemon.methods.synthesis.engine import Parts, make_parts
from daemon.methods.synthesis.models.client import open_client
from daemon.methods.synthesis.models.planner import ModelPlanner
from daemon.methods.synthesis.models.reviser import ModelReviser
from daemon.methods.synthesis.models.writer import ModelWriter
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

if TYPE_CHECKING:
    from daemon.config.settings import Settings


def make_model_parts(
    environment: Environment,
    settings: "Settings",
    directive: str = "",
    stopping: Callable[[], bool] = lambda: False,
) -> Parts | None:
    """Return parts in which the model of `models.proposer` plans, writes and revises; None without
    a model. Rules replace it if it gives nothing. The parts raise CannotSample once `stopping`
    returns true. Use them for one cycle: they hold its budget and answers."""
    client = open_client(settings, "proposer", stopping)
    if client is None:
        return None
    by_rule = make_parts(environment)
    writer = ModelWriter(environment, client, directive, by_rule.writer)
    return Parts(
        _remember_plans(ModelPlanner(client, directive).plan),
        _WriterMemory(writer),
        _ReviserMemory(ModelReviser(client, by_rule.reviser)),
    )


def _remember_plans(planner: Planner) -> Planner:
    """Return a planner that remembers its plans and repeats them."""
    known: dict[Hashable, PlanDrafts] = {}

    def plan(environment: Environment, request: PlanRequest) -> PlanDrafts:
        key = (request.seed, request.count, tuple(sorted(request.kinds.items())))
        if key not in known:
            known[key] = planner(environment, request)
        return known[key]

    return plan


@dataclass(slots=True)
class _WriterMemory:
    """Remembers a writer's tasks, and the reasons why there is none (protocols.TaskWriter)."""

    writer: TaskWriter
    _outcomes: dict[Hashable, Draft | str] = field(default_factory=dict)

    def write(self, plan: Plan, seed: int) -> Draft:
        """Return the task for a plan and a seed. Raise NoTask."""
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
class _ReviserMemory:
    """Remembers a reviser's changes of plans (protocols.Reviser)."""

    reviser: Reviser
    trouble: str = ""
    _outcomes: dict[Hashable, tuple[RevisionDraft | None, str]] = field(default_factory=dict)

    def revise(self, environment: Environment, history: PlanHistory) -> RevisionDraft | None:
        """Return the change of a plan; None if it is not changed."""
        key = (
            history.name, history.plan, history.tries, history.accepted,
            tuple(history.failures), tuple(history.refused), tuple(history.common),
        )  # fmt: skip
        if key not in self._outcomes:
            draft = self.reviser.revise(environment, history)
            self._outcomes[key] = draft, self.reviser.trouble
        draft, self.trouble = self._outcomes[key]
        return draft
