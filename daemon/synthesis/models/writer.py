"""A task by a plan, written by a model: explored, executed, then put into words.

    writer = ModelWriter(environment, client, directive, templates)
    draft = writer.write(plan, seed)

    draw       a task of the plan's kind gives the first state and the customer; its own calls and
               words are not shown
    explore    the model calls tools on a copy of that state (exploration.py)
    compare    what it changed must be by the plan's tools
    request    the model writes five fields for the calls that it made (request.py)
    gold       writes, and the look-ups that they and the outputs need (gold.py); criteria by replay

What the environment's rules dictate at the end is taken from the drawn task. The result is a task
by content; the checks of daemon/proposer/verification.py decide on it.

Guarantee: `write` raises NoTask alone, with a reason, whatever the model or its endpoint does. The
seed draws the state and is sent to the endpoint; whether its answers repeat is the endpoint's
affair.
"""

from collections.abc import Sequence
from typing import Any, Final

from daemon.controller.model_answers import ModelFailure
from daemon.proposer.candidate import FIRST_SEED, LAST_SEED
from daemon.synthesis.cells import describe_calls, measure_complexity
from daemon.synthesis.manners import MANNERS
from daemon.synthesis.models.client import ModelClient
from daemon.synthesis.models.exploration import Exploration, SandboxCall, explore
from daemon.synthesis.models.gold import choose_gold, replay_gold
from daemon.synthesis.models.request import (
    RequestFields,
    build_messages,
    build_question,
    build_script,
)
from daemon.synthesis.protocols import Draft, NoTask, TaskWriter
from envs.endpoint import Endpoint
from envs.environment import Environment
from envs.task import Basis, Criteria, TaskDefinition
from events.synthesis.plans import Plan

RESULT_CHARACTERS: Final = 2_000
"""Most characters of each tool's answer in the request for the fields."""
_DRAWS: Final = 24
"""Tasks that are drawn until one has the plan's tool mode."""
_STEP: Final = 7919
_BASES: Final[tuple[Basis, ...]] = ("DB", "COMMUNICATE", "POLICY")
"""Parts of a reward that follow from calls and outputs; others ask what only the drawn task's own
author knew."""


class ModelWriter:
    """Has a model write tasks."""

    def __init__(
        self,
        environment: Environment,
        client: ModelClient,
        directive: str = "",
        templates: TaskWriter | None = None,
    ) -> None:
        """`directive`: in words, what the tasks are for. `templates` write in the model's place
        once it is asked no more (`client.trouble`); None: then nothing is written."""
        self._environment, self._client = environment, client
        self._directive, self._templates = directive, templates

    @property
    def trouble(self) -> str:
        """Why the model is asked no more; empty while it may be asked."""
        return self._client.trouble

    def write(self, plan: Plan, seed: int) -> Draft:
        """Return a task by the plan. Raises NoTask."""
        if self._client.trouble and self._templates is not None:
            return self._templates.write(plan, seed)
        drawn = _draw(self._environment, plan, seed)
        try:
            task = self._client.run(lambda endpoint: self._write(endpoint, plan, drawn, seed))
        except ModelFailure as error:
            raise NoTask(str(error)) from error
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
        """Return what the model is told of the task."""
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
        """Raise NoTask where the model did something that the plan does not include."""
        catalog = self._environment.catalog
        for call in calls:
            name = call.action.name
            if name in self._environment.changes | catalog.transfer and name not in plan.tools:
                raise NoTask(
                    f"{self._client.label} called {name}, and plan {plan.plan} has the tools "
                    f"{', '.join(plan.tools) or '(none)'}"
                )

    def _build_task(
        self, plan: Plan, drawn: TaskDefinition, exploration: Exploration, fields: RequestFields
    ) -> TaskDefinition:
        environment = self._environment
        basis = tuple(name for name in _BASES if name in ("DB", *drawn.criteria.reward_basis))
        outputs = (*fields.communicate_info, *_find_closings(environment, drawn))
        gold = choose_gold(environment, exploration.calls, fields.text, fields.communicate_info)
        manner = MANNERS.get(plan.manner)
        task = drawn.model_copy(
            update={
                "scenario": fields.make_scenario("" if manner is None else manner.persona),
                "script": build_script(environment, drawn, fields),
                "criteria": Criteria(
                    gold_actions=gold, outputs=tuple(dict.fromkeys(outputs)), reward_basis=basis
                ),
            }
        )
        self._check_cell(plan, task)
        if replay_gold(environment, task) != exploration.final_state:
            raise NoTask(
                "the gold actions leave another state than all of the calls that were made"
            )
        return task.name_by_content()

    def _check_cell(self, plan: Plan, task: TaskDefinition) -> None:
        """Raise NoTask where the calls are not those of the plan."""
        cell = describe_calls(self._environment, task)
        count = len(task.criteria.gold_actions or ())
        wanted, actual = (plan.complexity, plan.tool_mode), (measure_complexity(count), cell.mode)
        if wanted != actual:
            raise NoTask(
                f"plan {plan.plan} asks for {' and '.join(wanted)}, and the {count} calls of "
                f"{self._client.label} are {' and '.join(actual)}"
            )


def _draw(environment: Environment, plan: Plan, seed: int) -> TaskDefinition:
    """Return a generated task of the plan's kind, or of any, with the plan's tool mode, in a state
    that no gate and no report draws. Raises NoTask."""
    kinds = [plan.kind] if plan.kind is not None else list(environment.capabilities)
    missing = [kind for kind in kinds if kind not in environment.capabilities]
    if missing or not kinds:
        raise NoTask(
            f"plan {plan.plan} is for tasks of {', '.join(missing) or 'any kind'}, and environment "
            f"{environment.name} generates {', '.join(environment.capabilities) or 'none'}"
        )
    span = LAST_SEED - FIRST_SEED + 1
    for number in range(max(_DRAWS, len(kinds))):
        own = FIRST_SEED + (seed - FIRST_SEED + number * _STEP) % span
        try:
            drawn = environment.generate(kinds[(seed + number) % len(kinds)], own)
        except Exception as error:  # an environment's own code, which may raise anything
            raise NoTask(
                f"the environment raised {type(error).__name__}: {error}"[:1000]
            ) from error
        if describe_calls(environment, drawn).mode == plan.tool_mode and not drawn.solo:
            return drawn
    raise NoTask(f"no generated task of plan {plan.plan} has the tool mode {plan.tool_mode}")


def _describe_call(call: SandboxCall) -> dict[str, Any]:
    return {
        "tool": call.action.name,
        "by": call.action.requestor,
        "arguments": call.action.arguments,
        "result": call.result[:RESULT_CHARACTERS],
    }


def _find_closings(environment: Environment, drawn: TaskDefinition) -> tuple[str, ...]:
    """Return the outputs of a drawn task that stand in the policy word for word: what every agent
    has to say at such an end."""
    rules = _normalize(environment.policy(drawn))
    return tuple(output for output in drawn.criteria.outputs if _normalize(output) in rules)


def _normalize(text: str) -> str:
    return " ".join(text.lower().replace(",", "").split())
