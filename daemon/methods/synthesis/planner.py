"""Plans by rule, without a model (pure).

A plan joins a cell of the generator (cells.py) with a manner (manners.py). Plans are chosen one
after the other: first cells with a tool that no plan has yet, then the kind, manner, complexity and
tool mode that were used least. A plan too similar to an earlier one is left out. If that leaves a
tool without a plan, plans describe their tools instead of the manner. A model's plans must pass
`find_plan_problem` too. Guarantee: every tool of a drawn task is in a plan, if the count and the
kinds allow it. Source: AReaL-SEA, arXiv 2601.22607, section 3.1: 64 plans that do not overlap in
domain, complexity, tool mode and user's style; the limits are from ALGORITHMS 4.1.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from random import Random
from typing import Final

from daemon.methods.synthesis.cells import CellFacts, Survey, list_tools, survey_kinds
from daemon.methods.synthesis.manners import MANNERS
from daemon.methods.synthesis.protocols import NoPlans, PlanDrafts, PlanRequest
from daemon.proposer.verification import likeness
from envs.environment import Environment
from events.rollouts import clip_reason
from events.synthesis.plans import MOST_PLANS, Plan

MOST_ALIKE: Final = 0.5
"""Largest likeness of two plans: the share of word trigrams that both texts have."""
_RARE: Final = 0.03
"""A cell with a smaller share of its kind's tasks is planned only if a tool needs it."""
_MOST_DESCRIPTION: Final = 200
"""Most characters of a tool's description in a plan."""
_MOST_PURPOSE: Final = 2_000
"""Most characters of all tools' descriptions in a plan."""

_MODES: Final[Mapping[str, str]] = {
    "read": "looks up by",
    "write": "changes records by",
    "both_parties": "agent and caller act by",
    "none": "calls nothing",
}
_LENGTHS: Final[Mapping[str, str]] = {
    "simple": "Shortly",
    "compound": "Stepwise",
    "long": "At length",
}


def plan_by_rule(environment: Environment, request: PlanRequest) -> PlanDrafts:
    """Return plans by rule; `trouble` says why there are fewer. Raise NoPlans without any."""
    weights = _check_request(environment, request)
    survey = survey_kinds(environment)
    cells = [facts for facts in survey.cells if weights.get(facts.cell.kind, 0) > 0]
    if not cells:
        raise NoPlans(
            f"no task of environment {environment.name} can be drawn: "
            f"{'; '.join(survey.troubles.values())}; mend its generator"
        )
    choice = _Choice(environment, cells, weights, request)
    plans = choice.select()
    return PlanDrafts(tuple(plans), trouble=clip_reason(_explain(request, plans, survey)))


def find_plan_problem(
    environment: Environment, plan: Plan, earlier: Sequence[Plan] = ()
) -> str | None:
    """Return why a plan does not fit the environment or earlier plans, and the remedy; or None."""
    return _find_unknown(environment, plan) or _find_repetition(plan, earlier)


def describe_plan(plan: Plan) -> str:
    """Return the text of a plan that is compared with other plans' texts."""
    return f"{plan.writing} {plan.judging}"


def measure_overlap(plans: Sequence[Plan]) -> float:
    """Return the largest likeness of two plans, from 0 to 1."""
    texts = [describe_plan(plan) for plan in plans]
    return max((likeness(*pair) for pair in combinations(texts, 2)), default=0.0)


def list_tool_gaps(environment: Environment, plans: Sequence[Plan]) -> tuple[str, ...]:
    """Return the tools of the environment, of both parties, that no plan needs."""
    covered = {tool for plan in plans for tool in plan.tools}
    return tuple(tool for tool in list_tools(environment) if tool not in covered)


def _check_request(environment: Environment, request: PlanRequest) -> Mapping[str, float]:
    """Return kind -> weight of its plans. Raise NoPlans if the request is invalid."""
    if not 1 <= request.count <= MOST_PLANS:
        raise NoPlans(f"{request.count} plans are asked for; ask for 1 to {MOST_PLANS}")
    if not environment.capabilities:
        raise NoPlans(
            f"environment {environment.name} generates no tasks, so there is no kind to plan; "
            "declare capabilities"
        )
    unknown = sorted(set(request.kinds) - set(environment.capabilities))
    if unknown:
        raise NoPlans(
            f"environment {environment.name} has no kind {unknown[0]!r}; it has "
            f"{', '.join(environment.capabilities)}"
        )
    weights = request.kinds or dict.fromkeys(environment.capabilities, 1.0)
    if not any(weight > 0 for weight in weights.values()):
        raise NoPlans(f"weights of kinds {dict(weights)} have none above 0; give one")
    return weights


def _find_unknown(environment: Environment, plan: Plan) -> str | None:
    if plan.kind is not None and plan.kind not in environment.capabilities:
        return (
            f"plan {plan.plan} is of the kind {plan.kind!r}, which environment {environment.name} "
            f"has not; it has {', '.join(environment.capabilities)}"
        )
    gone = [tool for tool in plan.tools if tool not in list_tools(environment)]
    if gone:
        return (
            f"plan {plan.plan} needs the tool {gone[0]!r}, which environment {environment.name} "
            "has not; plan anew"
        )
    if plan.manner not in MANNERS:
        return f"plan {plan.plan} has the manner {plan.manner!r}; there is {', '.join(MANNERS)}"
    if plan.tool_mode == "both_parties" and environment.user_toolset is None:
        return f"plan {plan.plan} has the user act, and users of {environment.name} have no tools"
    if plan.tool_mode != "none" and not plan.tools:
        return f"plan {plan.plan} has the tool mode {plan.tool_mode} and names no tool; name some"
    return None


def _find_repetition(plan: Plan, earlier: Sequence[Plan]) -> str | None:
    text = describe_plan(plan)
    for other in earlier:
        if other.plan == plan.plan:
            return f"plan {plan.plan} has the name of an earlier one; name it otherwise"
        if _key(other) == _key(plan):
            return (
                f"plan {plan.plan} repeats plan {other.plan}: {plan.summary}, with the same tools; "
                "vary kind, complexity, tools or manner"
            )
        alike = likeness(text, describe_plan(other))
        if alike > MOST_ALIKE:
            return (
                f"plan {plan.plan} is {alike:.0%} like plan {other.plan}, and {MOST_ALIKE:.0%} may "
                "be; write it in other words or about something else"
            )
    return None


def _key(plan: Plan) -> tuple[object, ...]:
    where = plan.kind or plan.domain
    return where, plan.complexity, plan.tool_mode, plan.manner, frozenset(plan.tools)


class _Choice:
    def __init__(
        self,
        environment: Environment,
        cells: Sequence[CellFacts],
        weights: Mapping[str, float],
        request: PlanRequest,
    ) -> None:
        self._environment, self._weights, self._count = environment, weights, request.count
        self._left = [(facts, manner) for facts in cells for manner in facts.manners]
        Random(f"plans {request.seed}").shuffle(self._left)
        self._plans: list[Plan] = []
        self._needed = {tool for facts in cells for tool in facts.tools}
        self._uses: Counter[str] = Counter()
        self._unfit: set[tuple[CellFacts, str]] = set()
        """Candidates that are too similar to a chosen plan."""

    def select(self) -> list[Plan]:
        explains = False
        while len(self._plans) < self._count:
            chosen = next(self._list_fit(explains=explains), None)
            if chosen is None:
                if explains or not self._needed:
                    break
                explains = True
                self._unfit.clear()
                continue
            facts, manner, plan = chosen
            self._plans.append(plan)
            self._left.remove((facts, manner))
            self._needed -= set(facts.tools)
            self._uses.update(
                [
                    f"kind {facts.cell.kind}",
                    f"manner {manner}",
                    f"complexity {facts.cell.complexity}",
                    f"mode {facts.cell.mode}",
                    f"cell {facts.cell}",
                ]
            )
        return self._plans

    def _list_fit(self, *, explains: bool) -> Iterator[tuple[CellFacts, str, Plan]]:
        """Yield fitting candidates, best first; with `explains`, only for tools of no plan."""
        # The sort is stable, so equal candidates keep their shuffled order.
        for facts, manner in sorted(self._left, key=lambda pair: self._rank(*pair)):
            if (facts, manner) in self._unfit:
                continue
            is_needed = bool(self._needed & set(facts.tools))
            if not is_needed and (explains or facts.share < _RARE):
                continue
            plan = _write_plan(
                self._environment, facts, manner, len(self._plans), explains=explains
            )
            if find_plan_problem(self._environment, plan, self._plans) is None:
                yield facts, manner, plan
            else:
                self._unfit.add((facts, manner))

    def _rank(self, facts: CellFacts, manner: str) -> tuple[float, ...]:
        uses, cell = self._uses, facts.cell
        return (
            -len(self._needed & set(facts.tools)),
            uses[f"kind {cell.kind}"] / self._weights[cell.kind],
            uses[f"cell {cell}"],
            uses[f"manner {manner}"],
            uses[f"complexity {cell.complexity}"],
            uses[f"mode {cell.mode}"],
            -facts.share,
        )


def _write_plan(
    environment: Environment, facts: CellFacts, manner: str, number: int, *, explains: bool
) -> Plan:
    cell, speech = facts.cell, MANNERS[manner]
    demands = environment.capabilities[cell.kind].rstrip(".")
    calls = f"{_LENGTHS[cell.complexity]} {_MODES[cell.mode]} {' '.join(facts.tools)}".strip()
    details = _describe_tools(environment, facts.tools) if explains else f"{speech.writing}."
    return Plan(
        plan=f"{number:02}-{cell.kind}",
        domain=facts.domain,
        kind=cell.kind,
        complexity=cell.complexity,
        tool_mode=cell.mode,
        tools=facts.tools,
        manner=manner,
        writing=f"{demands[:1].upper()}{demands[1:]} in {facts.domain}: {details}",
        judging=f"{calls}; {speech.judging}.",
    )


def _describe_tools(environment: Environment, tools: Sequence[str]) -> str:
    user = environment.user_toolset
    declared = {**(user.tools() if user else {}), **environment.toolset.tools()}
    lines = [declared[tool].schema["function"]["description"].partition("\n")[0] for tool in tools]
    return " ".join(
        f"{tool}: {line[:_MOST_DESCRIPTION]}" for tool, line in zip(tools, lines, strict=True)
    )[:_MOST_PURPOSE]


def _explain(request: PlanRequest, plans: Sequence[Plan], survey: Survey) -> str:
    parts = []
    if len(plans) < request.count:
        parts.append(
            f"{len(plans)} plans of the {request.count} that are wanted: every other cell and "
            f"manner would be more than {MOST_ALIKE:.0%} like one of them"
        )
    parts += survey.troubles.values()
    return "; ".join(parts)
