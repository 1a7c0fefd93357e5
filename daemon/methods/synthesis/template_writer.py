"""Write tasks by plans from an environment's templates, without a model (pure).

Tasks of the plan's kind are generated until the gold calls and words of one fit the plan and its
manner; the words then get that manner. First state, gold actions and criteria stay the generator's.
Every draw has its own seed, from those for written tasks. Two kinds of rules in the plan have an
effect: `novelty` also rephrases the request with the generator's words, and a rule about words
keeps the generator's words.
"""

from collections.abc import Iterator
from random import Random
from typing import Final

from daemon.methods.synthesis.cells import describe_calls
from daemon.methods.synthesis.manners import AS_IS, give_manner
from daemon.methods.synthesis.planner import find_plan_problem
from daemon.methods.synthesis.protocols import Draft, NoTask
from daemon.proposer.candidate import FIRST_SEED, LAST_SEED
from envs.environment import Environment
from envs.task import TaskDefinition
from events.synthesis.plans import Plan

MOST_DRAWS: Final = 1_024
"""Most generated tasks that are drawn to write one task."""
_PHRASINGS: Final = 1 << 16
"""Number of seeds for rephrasings."""
PLAIN_WORDS: Final = frozenset({"leak", "provenance", "outputs", "policy", "solvable"})
"""Checks that words may fail; a rule against one of them keeps the generator's words."""


class TemplateWriter:
    """A writer that uses templates, without a model (protocols.TaskWriter)."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment

    def write(self, plan: Plan, seed: int) -> Draft:
        """Return a task written by the plan. Raise NoTask."""
        problem = find_plan_problem(self._environment, plan)
        if problem is not None:
            raise NoTask(problem)
        if plan.kind is None:
            raise NoTask(f"plan {plan.plan} names no kind, and templates have nothing else to draw")
        rules = {rule.check for rule in plan.rules if rule.aspect == "writing"}
        manner = AS_IS if rules & PLAIN_WORDS else plan.manner
        drawn = 0
        for task in self._draw(plan, plan.kind, seed):
            drawn += 1
            phrased = self._rephrase(task, seed) if "novelty" in rules else task
            written = give_manner(phrased, manner)
            if written is not None:
                return Draft(written, task.id)
        raise NoTask(
            f"of {MOST_DRAWS} drawn tasks of the kind {plan.kind} {drawn} have the calls of plan "
            f"{plan.plan} ({plan.complexity}, {plan.tool_mode}, {', '.join(plan.tools)}), and none "
            f"can be said in the manner {manner}; plan anew"
        )

    def _draw(self, plan: Plan, kind: str, seed: int) -> Iterator[TaskDefinition]:
        """Yield generated tasks that have a plan's calls. Raise NoTask if the environment fails."""
        chance = Random(f"draw {kind} {seed}")
        for number in range(MOST_DRAWS):
            own = seed if number == 0 else chance.randrange(FIRST_SEED, LAST_SEED + 1)
            try:
                task = self._environment.generate(kind, own)
                fits = _has_calls(self._environment, task, plan)
            except Exception as error:  # an environment's own code may raise anything
                reason = f"the generator of {kind} raised {type(error).__name__}: {error}"
                raise NoTask(
                    f"{reason[:500]}; mend environment {self._environment.name}"
                ) from error
            if fits:
                yield task

    def _rephrase(self, task: TaskDefinition, seed: int) -> TaskDefinition:
        phrasing = Random(f"phrase {task.id} {seed}").randrange(_PHRASINGS)
        return self._environment.rephrase(task, phrasing) or task


def _has_calls(environment: Environment, task: TaskDefinition, plan: Plan) -> bool:
    cell = describe_calls(environment, task)
    same = (cell.complexity, cell.mode) == (plan.complexity, plan.tool_mode)
    return same and cell.tools >= set(plan.tools)
