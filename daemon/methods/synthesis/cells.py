"""What an environment's generator draws: cells of kind, complexity, tool mode and tools (pure).

    survey = survey_kinds(environment)      drawn tasks of each kind, by cell
    describe_calls(environment, task)       the cell of one task

A kind is drawn until its last tasks brought no new cell, so that rare tools are seen; what is seen
is kept for the class of the environment, whose generator is a function of kind and seed.
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
"""Tasks of a kind that are drawn at least."""
_MOST_DRAWS: Final = 96
_QUIET: Final = 12
"""Draws without a new cell after which a kind that has several is known."""
_STEP: Final = 7919
"""Between the seeds of two draws: all are in the range of written tasks."""

_SIMPLE: Final = 2
"""Most gold calls of a simple task; of a compound one five."""
_COMPOUND: Final = 5
_COMMON: Final = 0.5
"""Share of a cell's tasks that a manner has to work for."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What the gold calls of a task are like."""

    kind: str
    complexity: Complexity
    mode: ToolMode
    tools: frozenset[str]


@dataclass(frozen=True, slots=True)
class CellFacts:
    """A cell as it was seen."""

    cell: Cell
    share: float
    """Of the tasks of its kind."""
    tools: tuple[str, ...]
    """In the order of their first calls."""
    domain: str
    """Table that the last call is about; the kind where its arguments name no record."""
    manners: tuple[str, ...]
    """That its tasks can have."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What an environment's generator draws."""

    cells: tuple[CellFacts, ...]
    """By kind, the most frequent first."""
    troubles: Mapping[str, str]
    """Kind whose generator raised -> what it raised; it has no cell."""

    @property
    def tools(self) -> frozenset[str]:
        """Tools that a generated task was seen to need."""
        return frozenset(tool for facts in self.cells for tool in facts.tools)


_SURVEYS: Final[WeakKeyDictionary[type[Environment], Survey]] = WeakKeyDictionary()


def list_tools(environment: Environment) -> tuple[str, ...]:
    """Return the names of the tools of both parties, sorted."""
    user = environment.user_toolset
    return tuple(sorted({*environment.toolset.tools(), *(user.tools() if user else ())}))


def measure_complexity(calls: int) -> Complexity:
    """Return the complexity of a task with this number of gold calls."""
    if calls <= _SIMPLE:
        return "simple"
    return "compound" if calls <= _COMPOUND else "long"


def describe_calls(environment: Environment, task: TaskDefinition) -> Cell:
    """Return the cell of a task."""
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
    """Return what the kinds of an environment draw. What its code raises is a trouble of a kind."""
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
        except Exception as error:  # an environment's own code, which may raise anything
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
    """Return the table that has a record named by the last gold call that names one."""
    database = environment.reset(task)
    for action in reversed(task.criteria.gold_actions or ()):
        values = {str(leaf) for leaf in leaves(action.arguments)}
        for table in database.names:
            if values & {str(key) for key in database[table]}:
                return table
    return task.capability
