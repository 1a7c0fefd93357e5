"""A writer of tasks that plants faults of known kinds at known rates, and says which.

    writer = FaultyWriter(environment, FaultRates(rates={"leak": 0.3}), seed=0)
    draft = writer.write(plan, seed)
    writer.faults[draft.task.id]        the kind that was planted; None for a sound task

Kinds:

    wrong_gold      a gold write has another value of the same field than the text says, and still
                    succeeds
    contradiction   the text says another value of the same field than a gold write has
    leak            the user names a tool, or an internal id
    unknowable      a gold write needs a value that nobody says any more and no tool tells
    unsolvable      the user refuses what it asked for when it is asked to confirm
    near_duplicate  a task of the plan that was written before, with a sentence more

Each plan has a rate of its own for each kind, Beta distributed around the kind's. A rule of a plan
against a kind is obeyed in a share of the tries (`compliance`): then that kind is not planted. A
try has one fault at most. What cannot be planted in a task, as where it has no write, is not, and
the task counts as sound.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, Literal, get_args

from daemon.proposer.candidate import FIRST_SEED, LAST_SEED
from daemon.synthesis.protocols import Draft
from daemon.synthesis.template_writer import TemplateWriter
from envs.attribution.names import list_texts
from envs.attribution.observability import Knowledge
from envs.attribution.words import collect_user_text, leaves, words
from envs.environment import Environment
from envs.task import Script, TaskDefinition
from events.messages import Action
from events.synthesis.plans import Plan

FaultKind = Literal[
    "wrong_gold", "contradiction", "leak", "unknowable", "unsolvable", "near_duplicate"
]
KINDS: Final[tuple[FaultKind, ...]] = get_args(FaultKind)

RULES: Final[Mapping[FaultKind, frozenset[str]]] = {
    "wrong_gold": frozenset({"gold", "provenance", "trajectory", "contradiction"}),
    "contradiction": frozenset({"trajectory", "provenance", "contradiction"}),
    "leak": frozenset({"leak"}),
    "unknowable": frozenset({"provenance"}),
    "unsolvable": frozenset({"solvable", "policy"}),
    "near_duplicate": frozenset({"novelty"}),
}
"""Kind -> checks and rules that a rule of a plan may name against it."""

_CONCENTRATION: Final = 8.0
"""Of the Beta distribution of a plan's rate: the lower, the more plans differ."""
_OTHERS: Final = 20
"""Most other values that are tried for one."""
_REPEATED: Final = 2
"""Tasks of a plan that its near duplicates repeat."""


@dataclass(frozen=True, slots=True)
class FaultRates:
    """How often faults are planted."""

    rates: Mapping[FaultKind, float]
    """Kind -> mean rate over the plans, 0 to 1."""
    compliance: float = 0.9
    """Share of the tries in which a rule against a kind is obeyed."""
    concentration: float = _CONCENTRATION


@dataclass(slots=True)
class FaultyWriter:
    """A writer with planted faults (protocols.TaskWriter)."""

    environment: Environment
    settings: FaultRates
    seed: int = 0
    faults: dict[str, FaultKind | None] = field(default_factory=dict)
    """Task -> what was planted in it, of all that were written."""
    _repeated: set[str] = field(default_factory=set)
    """Tasks of which a near duplicate may be written."""

    def write(self, plan: Plan, seed: int) -> Draft:
        """Return a task by the plan, perhaps with a fault. Raises NoTask."""
        templates = TemplateWriter(self.environment)
        chance = Random(f"plant {self.seed} {plan.plan} {seed}")
        kind = self._choose_kind(plan, chance)
        if kind == "near_duplicate":
            return self._repeat(plan, templates, chance, seed)
        draft = templates.write(plan, seed)
        changed = None
        if kind is not None:
            changed = _PLANTS[kind](self.environment, draft.task, chance)
        task = (changed or draft.task).name_by_content()
        self.faults[task.id] = kind if changed is not None else None
        return Draft(task, draft.drawn)

    def rate(self, plan: str, kind: FaultKind) -> float:
        """Return the rate at which a kind is planted in the tasks of a plan without a rule."""
        mean = self.settings.rates.get(kind, 0.0)
        if not 0 < mean < 1:
            return mean
        chance = Random(f"rate {self.seed} {plan} {kind}")
        weight = self.settings.concentration
        return chance.betavariate(mean * weight, (1 - mean) * weight)

    def _choose_kind(self, plan: Plan, chance: Random) -> FaultKind | None:
        checks = {rule.check for rule in plan.rules}
        chosen: FaultKind | None = None
        for kind in KINDS:
            falls = chance.random() < self.rate(plan.plan, kind)
            obeys = chance.random() < self.settings.compliance
            if falls and not (checks & RULES[kind] and obeys) and chosen is None:
                chosen = kind
        return chosen

    def _repeat(self, plan: Plan, templates: TemplateWriter, chance: Random, seed: int) -> Draft:
        """Return a task of a few of the plan, which is a near duplicate from the second time on."""
        number = chance.randrange(_REPEATED)
        own = Random(f"repeat {self.seed} {plan.plan} {number}").randrange(FIRST_SEED, LAST_SEED)
        draft = templates.write(plan, own)
        original = draft.task.id
        task = _say_more(draft.task, f"My reference is {seed}.").name_by_content()
        self.faults[task.id] = "near_duplicate" if original in self._repeated else None
        self._repeated.add(original)
        return Draft(task, draft.drawn)


_Plant = Callable[[Environment, TaskDefinition, Random], TaskDefinition | None]


def _spoil_gold(
    environment: Environment, task: TaskDefinition, chance: Random
) -> TaskDefinition | None:
    """Give a gold write another value than the text says."""
    gold = list(task.criteria.gold_actions or ())
    for place, name, value in _list_text_values(environment, task):
        for other in _list_others(environment, task, value, chance):
            action = gold[place]
            arguments = {**action.arguments, name: _put(action.arguments[name], value, other)}
            gold_then = list(gold)
            gold_then[place] = action.model_copy(update={"arguments": arguments})
            spoilt = _with_gold(task, gold_then)
            if _repeats(environment, spoilt):
                return spoilt
    return None


def _contradict(
    environment: Environment, task: TaskDefinition, chance: Random
) -> TaskDefinition | None:
    """Have the user say another value than a gold write has."""
    for _, _, value in _list_text_values(environment, task):
        for other in _list_others(environment, task, value, chance):
            changed = _reword(task, value, other)
            if value.lower() not in words(collect_user_text(changed)):
                return changed
    return None


def _leak(environment: Environment, task: TaskDefinition, chance: Random) -> TaskDefinition | None:
    """Have the user name an internal id of the gold calls, or else a tool."""
    gold = task.criteria.gold_actions or ()
    internal = [
        str(leaf)
        for action in gold
        for name in sorted(environment.internal & action.arguments.keys())
        for leaf in leaves(action.arguments[name])
    ]
    tools = [action.name for action in gold if "_" in action.name]
    if not internal and not tools:
        return None
    if internal and chance.random() < 0.5:
        return _say_more(task, f"Its internal id is {chance.choice(internal)}.")
    return _say_more(task, f"Call {chance.choice(tools or internal)} for it.")


def _hide_value(
    environment: Environment, task: TaskDefinition, chance: Random
) -> TaskDefinition | None:
    """Leave out of the text a value that a gold write needs and no tool tells."""
    for _, _, value in _list_text_values(environment, task):
        changed = _reword(task, value, "that one")
        if Knowledge(environment, changed).missing:
            return changed
    return None


def _refuse(
    environment: Environment, task: TaskDefinition, chance: Random
) -> TaskDefinition | None:
    """Have the user refuse what it is asked to confirm."""
    gold = task.criteria.gold_actions or ()
    script = task.script
    if script is None or not any(action.name in environment.writes for action in gold):
        return None
    answers = tuple(
        answer.model_copy(update={"says": "No."})
        if answer.says.lower().startswith("yes")
        else answer
        for answer in script.answers
    )
    if answers == script.answers:
        return None
    return task.model_copy(update={"script": script.model_copy(update={"answers": answers})})


_PLANTS: Final[Mapping[FaultKind, _Plant]] = {
    "wrong_gold": _spoil_gold,
    "contradiction": _contradict,
    "leak": _leak,
    "unknowable": _hide_value,
    "unsolvable": _refuse,
}


def _list_text_values(environment: Environment, task: TaskDefinition) -> list[tuple[int, str, str]]:
    """Return place, argument and value of the gold writes' values that the user says, as words."""
    told = words(collect_user_text(task))
    return [
        (place, name, leaf)
        for place, action in enumerate(task.criteria.gold_actions or ())
        if action.name in environment.changes and action.requestor == "assistant"
        for name, argument in action.arguments.items()
        for leaf in leaves(argument)
        if isinstance(leaf, str) and leaf.lower() in told
    ]


def _list_others(
    environment: Environment, task: TaskDefinition, value: str, chance: Random
) -> list[str]:
    """Return other values of the fields under which a value stands in the tables, some of them."""
    database = environment.reset(task)
    texts: dict[str, set[str]] = {}
    for table in database.names:
        for key, record in database[table].items():
            texts.setdefault(f"keys of {table}", set()).add(str(key))
            for name, text in list_texts(record):
                texts.setdefault(name, set()).add(text)
    told = words(collect_user_text(task))
    others = sorted(
        {other for group in texts.values() if value in group for other in group}
        - {value}
        - {other for group in texts.values() for other in group if other.lower() in told}
    )
    return chance.sample(others, min(_OTHERS, len(others)))


def _with_gold(task: TaskDefinition, gold: list[Action]) -> TaskDefinition:
    criteria = task.criteria.model_copy(update={"gold_actions": tuple(gold)})
    return task.model_copy(update={"criteria": criteria})


def _put(argument: Any, value: str, other: str) -> Any:
    """Return an argument with another value in place of one."""
    if isinstance(argument, list | tuple):
        return [_put(item, value, other) for item in argument]
    if isinstance(argument, Mapping):
        return {key: _put(item, value, other) for key, item in argument.items()}
    return other if argument == value else argument


def _repeats(environment: Environment, task: TaskDefinition) -> bool:
    """Whether the gold actions succeed."""
    tools = environment.open_tools(task, environment.reset(task))
    gold = task.criteria.gold_actions or ()
    return not any(tools.call(a.name, a.arguments, a.requestor).error for a in gold)


def _reword(task: TaskDefinition, value: str, other: str) -> TaskDefinition:
    """Return a task whose user says another text wherever it says a value."""
    scenario = {
        name: text.replace(value, other) for name, text in task.scenario.model_dump().items()
    }
    update: dict[str, object] = {"scenario": task.scenario.model_copy(update=scenario)}
    if task.script is not None:
        update["script"] = _reword_script(task.script, value, other)
    return task.model_copy(update=update)


def _reword_script(script: Script, value: str, other: str) -> Script:
    answers = tuple(
        answer.model_copy(update={"says": answer.says.replace(value, other)})
        for answer in script.answers
    )
    return script.model_copy(
        update={
            "opening": script.opening.replace(value, other),
            "otherwise": script.otherwise.replace(value, other),
            "answers": answers,
        }
    )


def _say_more(task: TaskDefinition, sentence: str) -> TaskDefinition:
    """Return a task whose user says a sentence more."""
    reason = f"{task.scenario.reason_for_call} {sentence}"
    update: dict[str, object] = {
        "scenario": task.scenario.model_copy(update={"reason_for_call": reason})
    }
    if task.script is not None:
        opening = f"{task.script.opening} {sentence}"
        update["script"] = task.script.model_copy(update={"opening": opening})
    return task.model_copy(update=update)
