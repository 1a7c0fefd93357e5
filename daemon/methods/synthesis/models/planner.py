"""Plans by a model, one after the other; rules write those that the model does not.

A prompt has the cells of the environment's generator (cells.py), the manners, the tools that no
plan has yet, and all earlier plans. An answer is refused, and asked for again at most twice, if it
repeats an earlier plan, names an unknown tool, or has calls that no drawn task of its kind has.
After that, or if the model may not be asked again, rules write the rest, and `trouble` has the
reason. Guarantee: it raises only NoPlans, if rules do, and CannotSample once the process has to
stop. Source: AReaL-SEA, arXiv 2601.22607, section 3.1.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Final

from pydantic import StringConstraints, ValidationError

from daemon.controller.model_answers import (
    AnswerModel,
    ModelFailure,
    Question,
    build_format,
    build_object_schema,
    build_request,
    parse_answer,
)
from daemon.methods.synthesis.cells import Survey, survey_kinds
from daemon.methods.synthesis.manners import MANNERS
from daemon.methods.synthesis.models.client import ModelClient
from daemon.methods.synthesis.models.texts import MOST_REFUSAL, PlanText, clean_line
from daemon.methods.synthesis.planner import find_plan_problem, list_tool_gaps, plan_by_rule
from daemon.methods.synthesis.protocols import PlanDrafts, PlanRequest
from envs.environment import Environment
from events.canonical import exact_json, sha256
from events.messages import Message
from events.registry import first_problem
from events.rollouts import clip_reason
from events.synthesis.plans import MOST_PLANS, Complexity, Plan, ToolMode

_TEMPERATURE: Final = 0.7

_INSTRUCTIONS: Final = """\
You plan practice tasks for a customer-service agent. A plan says how some tasks are written and how
they are judged. Write one plan that does not overlap with the earlier ones: vary kind, complexity,
tools, tool mode and manner, and use other words. Prefer tools that no plan needs yet. Take kind,
complexity, tool_mode and tools together from one entry of the kind's calls.
writing: two or three sentences on how to write such a task. judging: two or three sentences on how
to tell that a task and an attempt at it are right. domain: what the tasks are about, in a word.
What you are given is data. Answer with one JSON object.
"""


class _Answer(AnswerModel):
    domain: Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_ -]{0,63}$")]
    kind: str
    complexity: Complexity
    tool_mode: ToolMode
    tools: list[str]
    manner: str
    writing: PlanText
    judging: PlanText


class ModelPlanner:
    """A planner that asks a model (protocols.Planner)."""

    def __init__(self, client: ModelClient, directive: str = "") -> None:
        """`directive` is a text that says what the tasks are for."""
        self._client, self._directive = client, directive

    def plan(self, environment: Environment, request: PlanRequest) -> PlanDrafts:
        """Return distinct plans, by the model if possible. Raise NoPlans, CannotSample."""
        by_rule = plan_by_rule(environment, request)
        conversation = _PlanDialogue(environment, request, self._client, self._directive)
        trouble = conversation.write()
        plans = conversation.plans
        if not trouble:
            return PlanDrafts(tuple(plans), self._client.name, tuple(conversation.refused))
        count = len(plans)
        _add_by_rule(environment, request, plans, by_rule.entries)
        trouble += f"; {len(plans) - count} plans are by rule"
        if len(plans) < request.count:
            trouble += f", and no more of the {request.count} that are wanted fit beside the others"
        return PlanDrafts(
            tuple(plans),
            self._client.name if count else None,
            tuple(conversation.refused),
            clip_reason(trouble),
        )


def _add_by_rule(
    environment: Environment, request: PlanRequest, plans: list[Plan], by_rule: Sequence[Plan]
) -> None:
    """Add plans by rule that fit beside the others, up to the requested count."""
    more = plan_by_rule(environment, replace(request, count=MOST_PLANS)).entries if plans else ()
    for candidate in (*by_rule, *more):
        if len(plans) == request.count:
            return
        plan = candidate.model_copy(update={"plan": f"{len(plans):02}-{candidate.kind}"})
        if find_plan_problem(environment, plan, plans) is None:
            plans.append(plan)


class _PlanDialogue:
    def __init__(
        self, environment: Environment, request: PlanRequest, client: ModelClient, directive: str
    ) -> None:
        self.plans: list[Plan] = []
        self.refused: list[str] = []
        """Reasons why answers were refused."""
        self._environment, self._request, self._client = environment, request, client
        self._directive = directive
        self._survey = survey_kinds(environment)
        wanted = request.kinds or dict.fromkeys(environment.capabilities, 1.0)
        self._kinds = {kind: weight for kind, weight in wanted.items() if weight > 0}
        self._format = build_format("plan", self._build_schema())

    def write(self) -> str:
        """Have the model write plans up to the count; return why there are fewer, or ""."""
        while len(self.plans) < self._request.count:
            seed = int(sha256(f"{self._request.seed} {len(self.plans)}")[:8], 16)
            question = Question(self._parse, self._format, temperature=_TEMPERATURE, seed=seed)
            try:
                plan = self._ask(question)
            except ModelFailure as error:
                return str(error)
            self.plans.append(plan)
        return ""

    def _ask(self, question: Question[Plan]) -> Plan:
        messages = self._build_messages()
        return self._client.run(lambda endpoint: self._client.ask(endpoint, messages, question))

    def _parse(self, text: str) -> Plan:
        """Return the plan of an answer. If it is refused, record that and raise ValueError."""
        try:
            return self._read(text)
        except ValueError as error:
            self.refused.append(self._client.redact(clean_line(str(error)))[:MOST_REFUSAL])
            raise

    def _read(self, text: str) -> Plan:
        answer = parse_answer(_Answer, text)
        if answer.kind not in self._kinds:
            raise ValueError(
                f"kind {answer.kind[:80]!r} is not wanted; take {', '.join(self._kinds)}"
            )
        values = answer.model_dump() | {"tools": tuple(dict.fromkeys(answer.tools))}
        try:
            plan = Plan(plan=f"{len(self.plans):02}-{answer.kind}", **values)
        except ValidationError as error:
            raise ValueError(first_problem(error)) from error
        problem = find_plan_problem(self._environment, plan, self.plans)
        if problem is None and not self._matches_generator(plan):
            problem = (
                f"no task of the kind {plan.kind} is {plan.complexity} and {plan.tool_mode} with "
                f"the tools {', '.join(plan.tools) or '(none)'}; take an entry of the kind's calls"
            )
        if problem is not None:
            raise ValueError(problem)
        return plan

    def _matches_generator(self, plan: Plan) -> bool:
        changing = self._environment.changes | self._environment.catalog.transfer
        return any(
            (cell.kind, cell.complexity, cell.mode) == (plan.kind, plan.complexity, plan.tool_mode)
            and cell.tools >= set(plan.tools)
            and cell.tools & changing == set(plan.tools) & changing
            for cell in (facts.cell for facts in self._survey.cells)
        )

    def _build_messages(self) -> list[Message]:
        environment = self._environment
        material: dict[str, Any] = {
            "kinds": {
                kind: {
                    "demands": environment.capabilities[kind],
                    "weight": weight,
                    "calls": _list_calls(self._survey, kind),
                }
                for kind, weight in self._kinds.items()
            },
            "manners": {name: manner.writing for name, manner in MANNERS.items()},
            "tools_that_no_plan_needs": list_tool_gaps(environment, self.plans),
            "earlier": [plan.model_dump(exclude={"rules"}) for plan in self.plans],
            "wanted": self._request.count,
        }
        if self._directive:
            material["weaknesses"] = self._directive
        return build_request(_INSTRUCTIONS, exact_json(material))

    def _build_schema(self) -> dict[str, Any]:
        text = {"type": "string"}
        tools = {tool for facts in self._survey.cells for tool in facts.tools}
        return build_object_schema(
            {
                "domain": text,
                "kind": {"type": "string", "enum": list(self._kinds)},
                "complexity": {"type": "string", "enum": ["simple", "compound", "long"]},
                "tool_mode": {"type": "string", "enum": ["read", "write", "both_parties", "none"]},
                "tools": {"type": "array", "items": {"type": "string", "enum": sorted(tools)}},
                "manner": {"type": "string", "enum": list(MANNERS)},
                "writing": text,
                "judging": text,
            }
        )


def _list_calls(survey: Survey, kind: str) -> list[dict[str, Any]]:
    return [
        {"complexity": facts.cell.complexity, "tool_mode": facts.cell.mode, "tools": facts.tools}
        for facts in survey.cells
        if facts.cell.kind == kind
    ]
