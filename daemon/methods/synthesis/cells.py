"""Survey the cells of an environment's generator: kind, complexity, tool mode and tools (pure).

Tasks of a kind are drawn until the last ones bring no new cell, so that rare tools are seen. A
survey is kept for each environment class, whose generator is a function of kind and seed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

from daemon.methods.synthesis.manners import MANNERS, give_manner
from daemon.proposer.candidate import FIRST_SEED
from envs.environment import Environment
from envs.evidence.words import leaves
from envs.task import TaskDefinition
from events.synthesis.plans import Complexity, ToolMode

_LEAST_DRAWS: Final = 8
"""Fewest tasks that are drawn of a kind."""
_MOST_DRAWS: Final = 96
_QUIET: Final = 12
"""A kind with several cells counts as known after so many draws without a new cell."""
_STEP: Final = 7919
"""Step between the seeds of two draws; all are in the range of written tasks."""

_SIMPLE: Final = 2
"""Most gold calls of a simple task."""
_COMPOUND: Final = 5
_COMMON: Final = 0.5
"""Least share of a cell's tasks that a manner must fit."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A form of tasks: kind, number of calls, read or write, and the tools called."""

    kind: str
    complexity: Complexity
    mode: ToolMode
    tools: frozenset[str]


@dataclass(frozen=True, slots=True)
class CellFacts:
    """A cell and what the survey found out about it."""

    cell: Cell
    share: float
    """The cell's share among the tasks of its kind."""
    tools: tuple[str, ...]
    """The tools in the order of their first calls."""
    domain: str
    """Table that the last call is about; the kind if its arguments name no record."""
    manners: tuple[str, ...]
    """Manners of speaking that the cell's tasks can have."""


@dataclass(frozen=True, slots=True)
class Survey:
    """The cells (forms of tasks) that an environment's generator draws."""

    cells: tuple[CellFacts, ...]
    """Cells by kind, the most frequent first."""
    troubles: Mapping[str, str]
    """Kind whose generator raised an error -> that error; the kind has no cell."""

    @property
    def tools(self) -> frozenset[str]:
        """Return the tools that some generated task needs."""
        return frozenset(tool for facts in self.cells for tool in facts.tools)


_SURVEYS: Final[WeakKeyDictionary[type[Environment], Survey]] = WeakKeyDictionary()


def list_tools(environment: Environment) -> tuple[str, ...]:
    """Return the sorted names of the tools of both parties, agent and user."""
    user = environment.user_toolset
    return tuple(sorted({*environment.toolset.tools(), *(user.tools() if user else ())}))


def measure_complexity(calls: int) -> Complexity:
    """Return how complex a task with this number of gold calls is."""
    if calls <= _SIMPLE:
        return "simple"
    return "compound" if calls <= _COMPOUND else "long"


def describe_calls(environment: Environment, task: TaskDefinition) -> Cell:
    """Return the cell (form of tasks) to which a task belongs, from its gold calls."""
    gold = task.criteria.gold_actions or ()
    mode: ToolMode = "none"
    if any(action.requestor == "user" for action in gold):
        mode = "both_parties"
    elif any(action.name in environment.changes for action in gold):
        mode = "write"
    elif gold:
        mode = "read"
    tools = frozenset(action.name for action in gold)
    return Cell(task.capability, measure_complexity(len(gold)), mode, tools)


def survey_kinds(environment: Environment) -> Survey:
    """Return the survey of an environment. Errors of its code become the kinds' troubles."""
    environment_class = type(environment)
    if environment_class not in _SURVEYS:
        _SURVEYS[environment_class] = _survey(environment)
    return _SURVEYS[environment_class]


def _survey(environment: Environment) -> Survey:
    cells: list[CellFacts] = []
    troubles: dict[str, str] = {}
    for kind in environment.capabilities:
        try:
            cells += _survey_kind(environment, kind)
        except Exception as error:  # an environment's own code may raise anything
            troubles[kind] = f"the generator of {kind} raised {type(error).__name__}: {error}"[:300]
    return Survey(tuple(cells), troubles)


def _survey_kind(environment: Environment, kind: str) -> list[CellFacts]:
    groups: dict[Cell, list[TaskDefinition]] = {}
    quiet = drawn = 0
    while drawn < _MOST_DRAWS and (drawn < _LEAST_DRAWS or (quiet < _QUIET and len(groups) > 1)):
        task = environment.generate(kind, FIRST_SEED + drawn * _STEP)
        cell = describe_calls(environment, task)
        quiet = quiet + 1 if cell in groups else 0
        groups.setdefault(cell, []).append(task)
        drawn += 1
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), sorted(item[0].tools)))
    return [
        CellFacts(
            cell,
            len(tasks) / drawn,
            tuple(dict.fromkeys(action.name for action in tasks[0].criteria.gold_actions or ())),
            _find_domain(environment, tasks[0]),
            _list_manners(tasks),
        )
        for cell, tasks in ordered
    ]


def _list_manners(tasks: Sequence[TaskDefinition]) -> tuple[str, ...]:
    return tuple(
        name
        for name in MANNERS
        if sum(give_manner(task, name) is not None for task in tasks) >= _COMMON * len(tasks)
    )


def _find_domain(environment: Environment, task: TaskDefinition) -> str:
    """Return the table whose record the last gold call names; the kind if no call names one."""
    database = environment.reset(task)
    for action in reversed(task.criteria.gold_actions or ()):
        values = {str(leaf) for leaf in leaves(action.arguments)}
        for table in database.names:
            if values & {str(key) for key in database[table]}:
                return table
    return task.capability
