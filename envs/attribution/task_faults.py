"""Find the fault of a task from the task alone (pure). If a task cannot be won, the failure of a
rollout is not the fault of the agent or the user. The rules:

    gold            the gold actions fail, end in another state the second time, or change nothing
    contradiction   the user names another value than a gold write has, of the same kind, and never
                    gold's: one that no gold write has, where nothing that a perfect agent hears
                    before tells gold's; or one that no gold call has or is answered. What a user
                    knows beside its request (its own number) is no such value of the second kind
    provenance      a gold write needs a value that nobody says and no tool tells
    outputs         the agent must say what no tool answers and no policy dictates

The first, third and fourth are the checks V2, V3 and V5 of written tasks (task_facts.py). Gold
actions of loaded tasks leave out what is looked up, and a number may be any sum. So there a call
may be refused if something is changed, a value is unknown only where no table, text or answer has
it, and outputs are held against the words in them. A task without gold actions has no fault.

Guarantee: no task that an environment of ours generates has a fault. Not covered: a contradiction
in numbers or in words that are no value of the tables, and a request that makes no sense to a
person. Source: ALGORITHMS 4.1 (after AReaL-SEA, arXiv 2601.22607).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from envs.environment import Environment
from envs.evidence.names import is_in_tables, list_common_words, list_names_like
from envs.evidence.observability import Missing
from envs.evidence.spelling import has_value
from envs.evidence.task_facts import (
    TaskFacts,
    find_gold_failure,
    find_gold_gap,
    find_unknown_output,
    find_unknown_value,
    find_wrong_end,
)
from envs.evidence.words import collect_user_text, leaves, squeeze, words
from envs.task import GENERATED, TaskDefinition
from events.canonical import exact_json

TaskFaultRule = Literal["gold", "contradiction", "provenance", "outputs"]

_SHORTEST: Final = 2
"""Length in characters below which a value is too common to be reported as missing."""


@dataclass(frozen=True, slots=True)
class TaskFault:
    """A fault of a task: the rule that shows it, and the reason."""

    rule: TaskFaultRule
    reason: str
    """Description of the fault, with the wrong value."""

    @property
    def summary(self) -> str:
        """The fault in one line."""
        return f"the task's fault ({self.rule}): {self.reason}"


def find_task_fault(environment: Environment, task: TaskDefinition) -> TaskFault | None:
    """Return the first fault of a task, or None."""
    if task.criteria.gold_actions is None:
        return None
    facts = TaskFacts(environment, task)
    source = _SparseGold(facts) if task.split != GENERATED else _WholeGold(facts)
    if reason := find_gold_gap(facts) or source.find_gold_failure():
        return TaskFault("gold", reason)
    if reason := _find_contradiction(facts, source):
        return TaskFault("contradiction", reason)
    if reason := source.find_unknown_value():
        return TaskFault("provenance", reason)
    if reason := source.find_unknown_output():
        return TaskFault("outputs", reason)
    return None


class _WholeGold:
    """Checks for a generated task, whose gold actions include every look-up of a perfect agent."""

    def __init__(self, facts: TaskFacts) -> None:
        self.facts = facts

    def find_gold_failure(self) -> str | None:
        return find_gold_failure(self.facts)

    def list_unknown(self) -> list[Missing]:
        """Return values of gold writes that neither the user nor an earlier gold call provides."""
        return self.facts.knowledge.silent

    def list_other_values(self) -> Iterator[Missing]:
        """Yield the further values of gold writes that a user may contradict."""
        yield from _list_write_values(self.facts)

    def find_unknown_value(self) -> str | None:
        return find_unknown_value(self.facts)

    def find_unknown_output(self) -> str | None:
        return find_unknown_output(self.facts)


class _SparseGold(_WholeGold):
    """Checks for a loaded task, whose gold actions may leave out look-ups."""

    def find_gold_failure(self) -> str | None:
        return find_wrong_end(self.facts)

    def list_unknown(self) -> list[Missing]:
        return [
            (tool, argument, value)
            for tool, argument, value in self.facts.knowledge.silent
            if not self._is_anywhere([value])
        ]

    def list_other_values(self) -> Iterator[Missing]:
        yield from ()

    def find_unknown_value(self) -> str | None:
        for tool, argument, value in self.list_unknown():
            return f"{argument} of {tool} is {value!r}, which no text, table or tool has"
        return None

    def find_unknown_output(self) -> str | None:
        for output in self.facts.task.criteria.outputs:
            named = [word for word in words(output) if any(map(str.isalpha, word))]
            if not self._is_anywhere(named):
                return f"nothing has the words of the output {output!r}"
        return None

    def _is_anywhere(self, values: Iterable[str]) -> bool:
        environment, task = self.facts.environment, self.facts.task
        texts = (
            collect_user_text(task),
            task.ticket or "",
            environment.policy(task),
            exact_json(environment.schemas(task)),
            *self.facts.replay.outputs,
        )
        text = squeeze("\n".join(texts))
        return all(
            len(value) < _SHORTEST
            or has_value(text, value)
            or is_in_tables(environment, task, value)
            for value in values
        )


def _find_contradiction(facts: TaskFacts, source: _WholeGold) -> str | None:
    """Describe a value that the user names instead of a gold write's value, or return None."""
    text = "\n".join((collect_user_text(facts.task), facts.task.ticket or "")).lower()
    wanted = _collect_wants(facts.task)
    written = {squeeze(str(value)) for _, _, value in _list_write_values(facts)}
    actions = facts.task.criteria.gold_actions or ()
    calls = exact_json([action.arguments for action in actions])
    played = squeeze("\n".join((calls, *facts.replay.outputs)))
    common = list_common_words(facts.environment, facts.task)
    groups = ((source.list_unknown(), False), (source.list_other_values(), True))
    for (tool, argument, value), is_other in (
        (item, is_other) for items, is_other in groups for item in items
    ):
        if not isinstance(value, str) or has_value(squeeze(text), value):
            continue
        names = list_names_like(facts.environment, facts.task, argument, value, common)
        for other in names.find(wanted if is_other else text):
            if not (has_value(played, other) if is_other else squeeze(other) in written):
                return f"the user names {other!r}, and {argument} of {tool} is {value!r}"
    return None


def _collect_wants(task: TaskDefinition) -> str:
    """Return the user's words in lower case, without the scenario's `known_info` and
    `unknown_info`."""
    scenario = task.scenario.model_copy(update={"known_info": "", "unknown_info": ""})
    text = collect_user_text(task.model_copy(update={"scenario": scenario}))
    return "\n".join((text, task.ticket or "")).lower()


def _list_write_values(facts: TaskFacts) -> Iterator[Missing]:
    for action in facts.task.criteria.gold_actions or ():
        if action.name in facts.environment.changes:
            for name, argument in action.arguments.items():
                yield from ((action.name, name, leaf) for leaf in leaves(argument))
