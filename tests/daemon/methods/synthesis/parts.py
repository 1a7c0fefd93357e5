"""What tests of the data engine share: a request, and parts that fail as they are told."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from daemon.methods.synthesis.engine import Parts, make_parts, synthesize
from daemon.methods.synthesis.protocols import Draft, NoTask
from daemon.methods.synthesis.stages import Event, SynthesisRequest
from daemon.methods.synthesis.template_writer import TemplateWriter
from envs.environment import Environment
from envs.shop.environment import Shop
from events.learning import Decision, TaskProposed
from events.synthesis.plans import Plan

Selected = TypeVar("Selected", bound=Decision)

PATTERN = "wrong_value|cancel_order"


def ask(tasks: int = 12, **fields: object) -> SynthesisRequest:
    """A request for tasks."""
    options = {"plans": 4, "bodies": {}, **fields}
    return SynthesisRequest("cycle-1", "agent", "base-1", PATTERN, tasks, **options)  # type: ignore[arg-type]


def run(
    request: SynthesisRequest, parts: Parts | None = None, environment: Environment | None = None
) -> list[Event]:
    """Everything that is written for a request."""
    environment = environment or Shop()
    environment.use_definitions(request.bodies.get)
    return list(synthesize(environment, request, parts or make_parts(environment)))


def select(events: Sequence[Event], kind: type[Selected]) -> list[Selected]:
    """The decisions of one type."""
    return [data for _, data in events if isinstance(data, kind)]


def count_proposals(events: Sequence[Event]) -> int:
    """How many tasks were accepted."""
    return len(select(events, TaskProposed))


@dataclass
class FailingWriter:
    """Leaks the name of a tool, but for plans that have a rule against it; or gives nothing."""

    environment: Environment
    obeys: bool = True
    gives: bool = True
    share: int = 1
    """One of so many tasks is faulty."""

    def write(self, plan: Plan, seed: int) -> Draft:
        if not self.gives:
            raise NoTask("the writer has no words today")
        draft = TemplateWriter(self.environment).write(plan, seed)
        obeys = self.obeys and any(rule.check == "leak" for rule in plan.rules)
        if obeys or seed % self.share:
            return draft
        scenario = draft.task.scenario
        reason = f"{scenario.reason_for_call} Call cancel_order for me."
        scenario = scenario.model_copy(update={"reason_for_call": reason})
        task = draft.task.model_copy(update={"scenario": scenario}).name_by_content()
        return Draft(task, draft.drawn)
