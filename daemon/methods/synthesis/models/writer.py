"""Write a task by a plan with a model: it explores and makes calls, then puts them into words.

    draw       a generated task of the plan's kind gives the first state and the customer; the model
               does not see its calls and words
    explore    the model calls tools on a copy of that state (exploration.py)
    compare    the model's changes must use the plan's tools, and all of them
    request    the model writes five fields for its calls (request.py)
    gold       writes, and the look-ups that they and the outputs need (gold.py); criteria by replay
    determine  the request must tell which calls are meant (ambiguity.py)

Words that the environment's policy prescribes come from the drawn task. The checks of
daemon/proposer/verification.py decide on the result, which is named by content. Guarantee: `write`
raises only NoTask, whatever model, endpoint or environment do, and CannotSample once the process
has to stop. The seed draws the state and is sent to the endpoint, whose answers may still differ.
"""

from collections.abc import Sequence
from random import Random
from typing import Any, Final

from daemon.controller.model_answers import ModelFailure
from daemon.methods.synthesis.cells import describe_calls, measure_complexity
from daemon.methods.synthesis.manners import MANNERS
from daemon.methods.synthesis.models.ambiguity import find_ambiguity
from daemon.methods.synthesis.models.client import ModelClient
from daemon.methods.synthesis.models.exploration import Exploration, SandboxCall, explore
from daemon.methods.synthesis.models.gold import choose_gold, has_effect, replay_gold
from daemon.methods.synthesis.models.request import (
    RequestFields,
    build_messages,
    build_question,
    build_script,
)
from daemon.methods.synthesis.planner import find_plan_problem
from daemon.methods.synthesis.protocols import Draft, NoTask, TaskWriter
from daemon.proposer.candidate import FIRST_SEED, LAST_SEED, CannotSample
from envs.endpoint import Endpoint
from envs.environment import Environment
from envs.task import Basis, Criteria, Rules, TaskDefinition
from events.synthesis.plans import Plan

RESULT_CHARACTERS: Final = 2_000
"""Most characters of each tool's answer in the question for the fields."""
MOST_DRAWS: Final = 64
"""Most tasks that are drawn until one has the plan's tool mode."""
_BASES: Final[tuple[Basis, ...]] = ("DB", "COMMUNICATE", "POLICY")
"""Parts of a reward that follow from calls and outputs; others need the drawn task's author."""


class ModelWriter:
    """A writer of tasks that asks a model."""

    def __init__(
        self,
        environment: Environment,
        client: ModelClient,
        directive: str = "",
        templates: TaskWriter | None = None,
    ) -> None:
        """`directive` says what the tasks are for. `templates` write once the model may not be
        asked again (`client.trouble`); if None, nothing is written then."""
        self._environment, self._client = environment, client
        self._directive, self._templates = directive, templates

    @property
    def trouble(self) -> str:
        """Return why the model is not asked again; "" while it may be asked."""
        return self._client.trouble

    def write(self, plan: Plan, seed: int) -> Draft:
        """Return a task written by the plan. Raise NoTask, CannotSample."""
        if self._client.trouble and self._templates is not None:
            return self._templates.write(plan, seed)
        problem = find_plan_problem(self._environment, plan)
        if problem is not None:
            raise NoTask(problem)
        drawn = _draw(self._environment, plan, seed)
        try:
            task = self._client.run(lambda endpoint: self._write(endpoint, plan, drawn, seed))
        except ModelFailure as error:
            raise NoTask(str(error)) from error
        except (CannotSample, NoTask):
            raise
        except Exception as error:  # an environment's own code may raise anything
            reason = f"environment {self._environment.name} raised {type(error).__name__}: {error}"
            raise NoTask(f"{reason[:500]}; mend it") from error
        return Draft(task, drawn.id, self._client.name)

    async def _write(
        self, endpoint: Endpoint, plan: Plan, drawn: TaskDefinition, seed: int
    ) -> TaskDefinition:
        material = self._describe(plan, drawn)
        exploration = await explore(
            self._client, endpoint, self._environment, drawn, material, seed
        )
        self._compare(plan, exploration.calls)
        material["calls"] = [_describe_call(call) for call in exploration.calls]
        messages = build_messages(self._environment.policy(drawn), material)
        fields = await self._client.ask(endpoint, messages, build_question(seed))
        return self._build_task(plan, drawn, exploration, fields)

    def _describe(self, plan: Plan, drawn: TaskDefinition) -> dict[str, Any]:
        rules = [rule.text for rule in plan.rules]
        material: dict[str, Any] = {
            "plan": {
                "domain": plan.domain,
                "complexity": plan.complexity,
                "tool_mode": plan.tool_mode,
                "tools": list(plan.tools),
                "writing": plan.writing,
                "judging": plan.judging,
                "rules": rules,
            },
            "customer": drawn.scenario.known_info,
        }
        if plan.manner in MANNERS:
            material["plan"]["manner"] = MANNERS[plan.manner].writing
        if self._directive:
            material["weaknesses"] = self._directive
        return material

    def _compare(self, plan: Plan, calls: Sequence[SandboxCall]) -> None:
        """Raise NoTask unless the model's changes use exactly the plan's changing tools."""
        effects = {call.action.name for call in calls if has_effect(self._environment, call.action)}
        foreign = sorted(effects - set(plan.tools))
        if foreign:
            raise NoTask(
                f"{self._client.label} called {foreign[0]}, and plan {plan.plan} has the tools "
                f"{', '.join(plan.tools) or '(none)'}"
            )
        changing = self._environment.changes | self._environment.catalog.transfer
        missing = [name for name in plan.tools if name in changing and name not in effects]
        if missing:
            raise NoTask(f"{self._client.label} never called {missing[0]} of plan {plan.plan}")

    def _build_task(
        self, plan: Plan, drawn: TaskDefinition, exploration: Exploration, fields: RequestFields
    ) -> TaskDefinition:
        environment = self._environment
        basis = tuple(name for name in _BASES if name in ("DB", *drawn.criteria.reward_basis))
        outputs = (*fields.communicate_info, *_find_closings(environment, drawn))
        gold = choose_gold(
            environment, exploration.calls, plan.tools, fields.text, fields.communicate_info
        )
        manner = MANNERS.get(plan.manner)
        task = drawn.model_copy(
            update={
                "scenario": fields.make_scenario("" if manner is None else manner.persona),
                "script": build_script(environment, drawn, fields),
                "criteria": Criteria(
                    gold_actions=gold,
                    outputs=tuple(dict.fromkeys(outputs)),
                    reward_basis=basis,
                    # It is unknown which records the model's outputs were read from.
                    rules=None if drawn.criteria.rules is None else Rules(),
                ),
            }
        )
        self._check_cell(plan, task, exploration)
        if replay_gold(environment, task) != exploration.final_state:
            raise NoTask(
                "the gold actions leave another state than all of the calls that were made"
            )
        problem = find_ambiguity(environment, task, exploration.calls, drawn.scenario.known_info)
        if problem is not None:
            raise NoTask(
                f"{self._client.label} wrote a request that does not fit its calls: {problem}"
            )
        return task.name_by_content()

    def _check_cell(self, plan: Plan, task: TaskDefinition, exploration: Exploration) -> None:
        """Raise NoTask if the calls do not fit the plan. Complexity may count the detours too."""
        mode = describe_calls(self._environment, task).mode
        counts = (len(task.criteria.gold_actions or ()), len(exploration.calls))
        if mode == plan.tool_mode and plan.complexity in map(measure_complexity, counts):
            return
        raise NoTask(
            f"plan {plan.plan} asks for {plan.complexity} and {plan.tool_mode}, and the "
            f"{counts[0]} gold actions of {self._client.label} are "
            f"{measure_complexity(counts[0])} and {mode}"
        )


def _draw(environment: Environment, plan: Plan, seed: int) -> TaskDefinition:
    """Return a generated task that fits the plan; no gate or report uses its seed. Raise NoTask."""
    kinds = list(environment.capabilities) if plan.kind is None else [plan.kind]
    chance = Random(f"explore {plan.kind} {seed}")
    for number in range(MOST_DRAWS if kinds else 0):
        own = seed if number == 0 else chance.randrange(FIRST_SEED, LAST_SEED + 1)
        try:
            drawn = environment.generate(chance.choice(kinds), own)
            fits = _fits(environment, drawn, plan)
        except Exception as error:  # an environment's own code may raise anything
            reason = f"the generator raised {type(error).__name__}: {error}"
            raise NoTask(f"{reason[:500]}; mend environment {environment.name}") from error
        if fits:
            return drawn
    raise NoTask(
        f"none of {MOST_DRAWS} drawn tasks of {plan.kind or environment.name} has the calls of "
        f"plan {plan.plan} ({plan.tool_mode}, {', '.join(plan.tools)}); plan anew"
    )


def _fits(environment: Environment, drawn: TaskDefinition, plan: Plan) -> bool:
    """Return whether a plan can start from a drawn task's state. If the plan has a kind, the task
    must change things by the same tools, since a fault in a state may belong to the kind."""
    cell = describe_calls(environment, drawn)
    if cell.mode != plan.tool_mode or drawn.solo:
        return False
    changing = environment.changes | environment.catalog.transfer
    return plan.kind is None or cell.tools & changing == set(plan.tools) & changing


def _describe_call(call: SandboxCall) -> dict[str, Any]:
    return {
        "tool": call.action.name,
        "by": call.action.requestor,
        "arguments": call.action.arguments,
        "result": call.result[:RESULT_CHARACTERS],
    }


def _find_closings(environment: Environment, drawn: TaskDefinition) -> tuple[str, ...]:
    """Return the drawn task's outputs that the policy has word for word: agents must say them."""
    rules = _normalize(environment.policy(drawn))
    return tuple(output for output in drawn.criteria.outputs if _normalize(output) in rules)


def _normalize(text: str) -> str:
    return " ".join(text.lower().replace(",", "").split())
