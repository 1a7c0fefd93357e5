"""The environment toolsandbox: a phone whose services depend on each other, with a graded reward.

    ToolSandbox().tasks()                          our generated tasks, every kind in turn
    ToolSandbox(benchmarks).tasks("scenarios")     the scenarios in the operator's folder
    environment.use_scenarios(path)                use the scenarios in another file

ToolSandbox's tools, states and scoring (arXiv 2408.04682) in our own code. The reward is the score,
between 0 and 1; 1 is a success. The reward is not shaped, because a penalty could put a success
below a near miss.

Guarantee: a generated task depends only on capability and seed. It can be won in any words, because
a text only has to contain the right values. Not covered: the variants with scrambled tools, calls
of one message in every order, and a scripted user who understands every question (let a model play
the user to measure an agent on scenarios).
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Final

from envs.agents import Agent
from envs.comparison.evidence import MAX_UNSEEN_VALUES, count_unseen_values, holds_number
from envs.database import Database
from envs.environment import Environment, Limits, UnknownTask
from envs.milestones.graph import EXACT, INSUFFICIENT, MilestoneGraph, Milestones
from envs.task import GENERATED, Answer, Basis, Criteria, Rules, Scenario, Script, TaskDefinition
from envs.toolsandbox.case import Case, Plan, build_graph, build_minefields
from envs.toolsandbox.database import Device, build_device, switch
from envs.toolsandbox.device.state import build_tables
from envs.toolsandbox.device.tools import ToolSandboxTools
from envs.toolsandbox.gold import GoldPlan, PlanAgent, make_database, plan_gold
from envs.toolsandbox.kinds import CONSTANT, KINDS, SWITCHES
from envs.toolsandbox.matching import Match, score
from envs.toolsandbox.policy import POLICY
from envs.toolsandbox.scenarios import SCENARIOS, LoadedScenario, ScenarioFile, find_file, load
from envs.toolsandbox.snapshots import Recording
from envs.users import STOP
from events.messages import Message, executed_calls

BASIS: Final[tuple[Basis, ...]] = ("MILESTONES",)
"""Reward basis of a loaded scenario."""
QUESTION: Final = "What exactly shall I do?"

_ASKS: Final = r"\?"
_REFUSES: Final = r"\b(cannot|can't|unable|not able|sorry)\b"
_TRY_AGAIN: Final = "Please try with the tools that you have."
_DISTRACTIONS: Final = (0, 3, 10, None)
"""Numbers of needless tools that a task may offer; None: all tools."""
_CATEGORIES: Final = {
    0: "no_distraction_tools",
    3: "three_distraction_tools",
    10: "ten_distraction_tools",
    None: "all_tools_available",
}
_UNLIMITED: Final = 1_000_000
_SHOWN: Final = 160


class DecliningAgent:
    """An agent that does nothing: it always says that it cannot help."""

    def reply(self, messages: Sequence[Message]) -> Message:
        """Return the same sentence for every transcript."""
        return Message(role="assistant", content="Sorry, I cannot help with that.")


class ToolSandbox(Environment):
    """A user's phone: contacts, messages, reminders, settings and network services."""

    name: ClassVar[str] = "toolsandbox"
    toolset = ToolSandboxTools
    capabilities: ClassVar[Mapping[str, str]] = {name: kind.demands for name, kind in KINDS.items()}
    constant: ClassVar[frozenset[str]] = CONSTANT | {INSUFFICIENT}
    internal: ClassVar[frozenset[str]] = frozenset({"person_id", "reminder_id", "message_id"})
    limits: ClassVar[Limits] = Limits(max_steps=31, max_errors=_UNLIMITED)
    """At most 30 messages after the opening, as in ToolSandbox."""
    threshold: ClassVar[float] = EXACT
    """Score from which on an episode is a success. A subclass may set another."""
    graded_endings: ClassVar[frozenset[str]] = frozenset({"max_steps"})

    def __init__(self, benchmarks: Path | None = None) -> None:
        super().__init__(benchmarks)
        self._path = None if benchmarks is None else find_file(benchmarks)
        self._gold: dict[str, GoldPlan] = {}

    def use_scenarios(self, path: Path) -> ScenarioFile:
        """Use this file's scenarios, not the folder's. Raise NoBenchmark, InvalidBenchmark."""
        self._path = path
        self._states.clear()
        self._gold.clear()
        self.__dict__.pop("file", None)
        return self.file

    @cached_property
    def file(self) -> ScenarioFile:
        """The loaded scenarios. Raises NoBenchmark or InvalidBenchmark."""
        return load(self._path)

    @property
    def splits(self) -> Mapping[str, int]:
        """Sizes of the splits: generated tasks, and the scenarios if their file exists."""
        if self._path is None or not self._path.is_file():
            return super().splits
        return {**super().splits, SCENARIOS: len(self.file.scenarios)}

    def tasks(self, split: str = GENERATED) -> Iterator[TaskDefinition]:
        """Yield the tasks of a split in a fixed order. Raise UnknownTask or NoBenchmark."""
        if split != SCENARIOS:
            return super().tasks(split)
        return map(self._define, self.file.scenarios.values())

    def task(self, task_id: str) -> TaskDefinition:
        """Return the task with this id, which may be a rephrased one. Raise UnknownTask."""
        if task_id.startswith(f"{self.name}/{SCENARIOS}/"):
            return self._define(self.scenario(task_id))
        phrased = self.read_phrasing(task_id)
        return super().task(task_id) if phrased is None else self._write(*phrased)

    def scenario(self, task_id: str) -> LoadedScenario:
        """Return the scenario of a loaded task. Raise UnknownTask."""
        name = task_id.rpartition("/")[2]
        if name not in self.file.scenarios:
            raise UnknownTask(f"{self.file.path} has no scenario {name!r}; correct the name")
        return self.file.scenarios[name]

    def generate(self, capability: str, seed: int) -> TaskDefinition:
        """Return the task of a kind and seed. Raise UnknownTask for an unknown kind."""
        return self._write(capability, seed)

    def rephrase(self, task: TaskDefinition, seed: int) -> TaskDefinition | None:
        """Return the same wish in other words, or None for a scenario."""
        if task.split != GENERATED:
            return None
        return self.task(f"{'/'.join(task.id.split('/')[:3])}/{seed}")

    def pristine(self, task: TaskDefinition) -> Database:
        if task.split == SCENARIOS:
            return make_database(self.scenario(task.id))
        device, plan, tools = _draw(task.capability, task.seed)
        return Database(
            build_tables(switch(device.rows, dict(plan.switches or {})), device.now, tools)
        )

    def state_key(self, task: TaskDefinition) -> str:
        """Return the key of the first state, which a task and its rephrasings share."""
        return "/".join(task.id.split("/")[:3])

    def policy(self, task: TaskDefinition) -> str:
        """Return our policy, or for a scenario its own."""
        return self.scenario(task.id).policy if task.split == SCENARIOS else POLICY

    def schemas(self, task: TaskDefinition) -> list[dict[str, Any]]:
        """Return the tools that the task allows; for scenarios with the schemas of tools.json."""
        allowed: Sequence[str]
        published: Mapping[str, Mapping[str, Any]] = {}
        if task.split == SCENARIOS:
            scenario = self.scenario(task.id)
            allowed, published = scenario.tools, scenario.schemas
        else:
            allowed = _draw(task.capability, task.seed)[2]
        ours = {schema["function"]["name"]: schema for schema in self.toolset.schemas()}
        return [dict(published.get(name, ours[name])) for name in ours if name in allowed]

    def oracle(self, task: TaskDefinition) -> Agent:
        """Return an agent that follows the gold plan."""
        if task.split == SCENARIOS:
            return PlanAgent(self._plan_gold(self.scenario(task.id)))
        plan = _draw(task.capability, task.seed)[1]
        gold = GoldPlan(plan.actions, (plan.says,), plan.outputs)
        return PlanAgent(gold, QUESTION if plan.details else None)

    def idle_agent(self, task: TaskDefinition) -> Agent:
        """Return an agent that always declines, which is nearly right for impossible wishes."""
        return DecliningAgent()

    def categories(self, task: TaskDefinition) -> tuple[str, ...]:
        """Return ToolSandbox's categories for a task."""
        if task.split == SCENARIOS:
            return self.scenario(task.id).categories
        distractions = _draw_distractions(task.capability, task.seed)
        return (*KINDS[task.capability].categories, _CATEGORIES[distractions])

    def measure(
        self, task: TaskDefinition, messages: Sequence[Message]
    ) -> tuple[float, tuple[str, ...]] | None:
        """Return the score, and a sentence for each missed milestone and each matched minefield."""
        milestones = task.criteria.milestones
        if milestones is None:
            return None
        verdict = score(milestones, Recording(messages, self.reset(task)))
        return verdict.similarity, (
            *_explain_missed(milestones.wanted, verdict.wanted),
            *(
                f"minefield {place} was matched: {_describe(milestones.forbidden, place)}"
                for place, similarity in verdict.forbidden.similarities.items()
                if similarity > 0
            ),
        )

    def violations(self, task: TaskDefinition, messages: Sequence[Message]) -> tuple[str, ...]:
        """Return faults in a generated task that milestones do not see: more changes than the wish
        needs, and too many numbers that nothing had shown."""
        if task.criteria.rules is None:
            return ()
        return tuple(self._find_violations(task, messages))

    def _find_violations(self, task: TaskDefinition, messages: Sequence[Message]) -> Iterator[str]:
        changes = self.writes - SWITCHES
        wanted = sum(action.name in changes for action in task.criteria.gold_actions or ())
        made = sum(
            item.call.name in changes and item.sampled and not item.failed
            for item in executed_calls(messages)
        )
        if made > wanted:
            yield f"made {made} changes, and the wish needs {wanted}"
        if any(map(holds_number, task.criteria.outputs)):
            unseen = count_unseen_values(self.policy(task), messages, self.catalog.generic)
            if unseen > MAX_UNSEEN_VALUES:
                yield f"said {unseen} numbers that nothing had shown; {MAX_UNSEEN_VALUES} may be"

    def _plan_gold(self, scenario: LoadedScenario) -> GoldPlan:
        if scenario.name not in self._gold:
            self._gold[scenario.name] = plan_gold(scenario)
        return self._gold[scenario.name]

    def _define(self, scenario: LoadedScenario) -> TaskDefinition:
        gold = self._plan_gold(scenario)
        return TaskDefinition(
            id=f"{self.name}/{SCENARIOS}/{scenario.name}",
            environment=self.name,
            capability=scenario.capability,
            split=SCENARIOS,
            seed=scenario.seed,
            scenario=Scenario(
                reason_for_call=scenario.opening,
                task_instructions=(
                    f"What you want: {scenario.wish} Answer what you are asked with what you know. "
                    "You agree to every change of a setting that it takes."
                ),
            ),
            script=_script(scenario.opening, scenario.aloud),
            criteria=Criteria(
                gold_actions=gold.actions,
                outputs=gold.outputs,
                reward_basis=BASIS,
                milestones=scenario.milestones.model_copy(update={"threshold": self.threshold}),
            ),
        )

    def _write(self, capability: str, seed: int, phrasing: int | None = None) -> TaskDefinition:
        self.check_capability(capability)
        device, plan, _ = _draw(capability, seed, phrasing)
        owner = device.owner
        return TaskDefinition(
            id=self.task_id(capability, seed) + ("" if phrasing is None else f"/{phrasing}"),
            environment=self.name,
            capability=capability,
            seed=seed,
            scenario=Scenario(
                reason_for_call=plan.request,
                known_info=f"You are {owner['name']}; your number is {owner['phone_number']}.",
                task_instructions=" ".join(
                    part
                    for part in (plan.knows, plan.details and f"When asked, say: {plan.details}")
                    if part
                ),
            ),
            script=_script(plan.request, plan.details or plan.request),
            criteria=Criteria(
                gold_actions=plan.actions,
                outputs=plan.outputs,
                reward_basis=(*BASIS, "POLICY"),
                rules=Rules(),
                milestones=Milestones(
                    wanted=build_graph(plan.milestones),
                    forbidden=build_minefields(plan.forbidden),
                    threshold=self.threshold,
                ),
            ),
        )


def _script(opening: str, aloud: str) -> Script:
    """Return a user that says more if asked, insists once after a refusal, and else hangs up."""
    return Script(
        opening=opening,
        answers=(
            Answer(asks=_ASKS, says=aloud, once=True),
            Answer(asks=_REFUSES, says=_TRY_AGAIN, once=True),
            Answer(asks="", says=STOP),
        ),
    )


@lru_cache(maxsize=1024)
def _draw(
    capability: str, seed: int, phrasing: int | None = None
) -> tuple[Device, Plan, tuple[str, ...]]:
    chance = Random(f"toolsandbox {capability} {seed}")
    words = None if phrasing is None else Random(f"toolsandbox phrasing {phrasing}")
    device = build_device(chance.getrandbits(48))
    plan = KINDS[capability].plan(Case(device, chance, words))
    return device, plan, _select_tools(plan, capability, seed)


def _draw_distractions(capability: str, seed: int) -> int | None:
    return Random(f"toolsandbox distractions {capability} {seed}").choice(_DISTRACTIONS)


def _select_tools(plan: Plan, capability: str, seed: int) -> tuple[str, ...]:
    """Return the needed tools, and a random number of distractions that follows from the seed."""
    others = sorted(set(ToolSandboxTools.tools()) - set(plan.tools) - set(plan.withheld))
    count = _draw_distractions(capability, seed)
    chance = Random(f"toolsandbox tools {capability} {seed}")
    drawn = others if count is None else chance.sample(others, min(count, len(others)))
    return tuple(sorted({*plan.tools, *drawn}))


def _explain_missed(graph: MilestoneGraph, match: Match) -> Iterator[str]:
    for place in range(len(graph.milestones)):
        similarity = match.similarities.get(place, 0.0)
        if similarity < 1:
            yield f"milestone {place} was reached to {similarity:.2f}: {_describe(graph, place)}"


def _describe(graph: MilestoneGraph, place: int) -> str:
    constraints = [c for c in graph.milestones[place].constraints if c.relation != "guardrail"]
    texts = (f"{c.table} {c.relation} {list(c.rows)}" for c in constraints)
    return "; ".join(texts)[:_SHOWN]
