"""The interface of an environment: tools over a state, a policy, a user and an evaluator.

Subclass `Environment`, give it a name, tools, a policy and capabilities, and write `generate` and
`pristine`; `kintsugi env new` writes such a file. Everything else has a default that works:

    user       scripted (users.py); a model may take its place. It may have tools of its own
    oracle     plays the gold actions, asks before each write, says the outputs (agents.py)
    evaluator  replays the agent's calls and the gold ones and compares the states (grading.py)

Guarantee: an episode depends only on task, seed and the agent's outputs. So `generate` and
`pristine` may use no clock, no global randomness and nothing outside their arguments. `kintsugi env
check` tests this from outside.

A task may also be data with an id by content (task.py). Every environment finds such a task by its
id once it has a place for bodies (`use_definitions`), whatever its `task` does. `pristine` makes
its first state from its body, so a `pristine` that reads the id does not know such a task.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Final

from envs.agents import Agent, GoldAgent, NullAgent
from envs.catalog import ToolCatalog, catalog, infer_catalog
from envs.database import Database, Difference
from envs.task import (
    GENERATED,
    BadDefinition,
    Basis,
    TaskDefinition,
    is_content_id,
    is_seed,
    read_body,
)
from envs.tools import Kind, ToolAccess, Toolset
from envs.users import ScriptUser, User
from events.errors import KintsugiError
from events.messages import Message
from events.rollouts import ToolRoles

_PRISTINE_STATES: Final = 64
"""Number of first states kept in memory. Rollouts of a task share one, which may take 10 MB."""
_DEFINITIONS: Final = 4096
"""Number of tasks with an id by content (a hash of the task) whose definitions stay in memory."""

FindBody = Callable[[str], str | None]
"""Function that returns the stored body of a task (task.py) by its id by content (its hash), or
None."""


class UnknownTask(KintsugiError):
    """The environment has no such task, split or capability."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds at which an episode is cut off. The defaults are tau2-bench's."""

    max_steps: int = 200
    """Messages and batches of tool results: a message with calls and its results are two steps."""
    max_errors: int = 10
    """Calls of one party that failed, in the whole episode."""
    max_calls: int = 64
    """Calls in one message. tau2-bench has no such bound; its agents make only a few."""
    max_rounds: int | None = None
    """Messages with calls between two messages of the user. None: only `max_steps` limits them."""


_MakeTask = Callable[["Environment", str], TaskDefinition]
_Rephrase = Callable[["Environment", TaskDefinition, int], TaskDefinition | None]


def _find_by_content(make: _MakeTask) -> _MakeTask:
    """Wrap a subclass's `task` so that ids by content (hashes of tasks) do not reach it."""

    @wraps(make)
    def task(self: "Environment", task_id: str) -> TaskDefinition:
        return self._find_definition(task_id) if is_content_id(task_id) else make(self, task_id)

    return task


def _keep_words(rephrase: _Rephrase) -> _Rephrase:
    """Wrap a subclass's `rephrase` so that tasks with an id by content do not reach it."""

    @wraps(rephrase)
    def find_other(self: "Environment", task: TaskDefinition, seed: int) -> TaskDefinition | None:
        return None if is_content_id(task.id) else rephrase(self, task, seed)

    return find_other


class Environment(ABC):
    """One domain: its tools, policy and tasks, and the rules by which tasks are judged."""

    name: ClassVar[str]
    toolset: ClassVar[type[Toolset]]
    user_toolset: ClassVar[type[Toolset] | None] = None
    """Tools of the user over the same state (dual control). None: the user only talks."""
    capabilities: ClassVar[Mapping[str, str]]
    """Kind of task that can be generated -> its demand on the agent, in one line."""
    constant: ClassVar[frozenset[str]] = frozenset()
    """Kinds with the same right outcome in every state. They are never used for training."""
    internal: ClassVar[frozenset[str]] = frozenset()
    """Arguments of tools whose values no user knows, such as the shop's internal ids."""
    greeting: ClassVar[str | None] = None
    """The agent's first message, before the user speaks; no model samples it."""
    limits: ClassVar[Limits] = Limits()
    graded_endings: ClassVar[frozenset[str]] = frozenset()
    """Terminations, beside the regular ones, after which the transcript is still graded."""
    users_err: ClassVar[bool] = False
    """Whether `make_user` may return a user that makes mistakes. Then each rollout is searched for
    the user's faults, and a rollout with one is not judged (envs/attribution)."""
    tasks_per_capability: ClassVar[int] = 16
    """Number of tasks of each capability in the split `generated`."""

    def __init__(self, benchmarks: Path | None = None) -> None:
        """`benchmarks` is the operator's folder of real tasks, or None."""
        self.benchmarks = benchmarks
        self._states: dict[str, Database] = {}
        self._definitions: dict[str, TaskDefinition] = {}
        self._find_body: FindBody | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        """Wrap a subclass's `task` and `rephrase` so that no id by content reaches them."""
        super().__init_subclass__(**options)
        own = vars(cls)
        if "task" in own:
            setattr(cls, "task", _find_by_content(own["task"]))  # noqa: B010
        if "rephrase" in own:
            setattr(cls, "rephrase", _keep_words(own["rephrase"]))  # noqa: B010

    def use_definitions(self, find: FindBody) -> None:
        """Use `find` from now on to look up the bodies of tasks with an id by content. A body
        counts only if its hash is the id."""
        self._find_body = find

    def _find_definition(self, task_id: str) -> TaskDefinition:
        if task_id in self._definitions:
            return self._definitions[task_id]
        if task_id.partition("/")[0] != self.name:
            raise UnknownTask(f"task {task_id} is no task of environment {self.name}")
        text = None if self._find_body is None else self._find_body(task_id)
        if text is None:
            raise UnknownTask(
                f"the body of task {task_id} is not kept here; add it (kintsugi tasks add FILE), "
                "or name the home that has it"
            )
        try:
            task = read_body(task_id, text)
        except BadDefinition as error:
            raise UnknownTask(f"{error}; add it anew: kintsugi tasks add FILE") from error
        while len(self._definitions) >= _DEFINITIONS:
            del self._definitions[next(iter(self._definitions))]
        self._definitions[task_id] = task
        return task

    @abstractmethod
    def generate(self, capability: str, seed: int) -> TaskDefinition:
        """Return the task of this kind with this seed; its id is `task_id(capability, seed)`."""

    @abstractmethod
    def pristine(self, task: TaskDefinition) -> Database:
        """Return a new state in which the task begins; `reset` caches it and forks it."""

    @abstractmethod
    def policy(self, task: TaskDefinition) -> str:
        """Return the system prompt, which holds the agent's rules. It may be empty."""

    def schemas(self, task: TaskDefinition) -> list[dict[str, Any]]:
        """Return the agent's tools in OpenAI's format; in a solo task also the user's."""
        own = self.toolset.schemas()
        return [*own, *self.user_toolset.schemas()] if task.solo and self.user_toolset else own

    def user_schemas(self, task: TaskDefinition) -> list[dict[str, Any]]:
        """Return the schemas of the user's tools, for a model that plays the user."""
        return [] if task.solo or self.user_toolset is None else self.user_toolset.schemas()

    def open_tools(self, task: TaskDefinition, database: Database) -> ToolAccess:
        """Return the tools of both parties, which act on `database`, a state of the task."""
        user = self.user_toolset
        return ToolAccess(
            self.toolset(database), None if user is None else user(database), solo=task.solo
        )

    def select_schemas(
        self, task: TaskDefinition, messages: Sequence[Message]
    ) -> list[dict[str, Any]]:
        """Return the schemas that the agent sees after these messages."""
        return self.schemas(task)

    def user(self, task: TaskDefinition) -> User:
        """Return the exact user, which makes no mistake and with which others are compared."""
        return ScriptUser(task)

    def make_user(self, task: TaskDefinition, seed: int) -> User:
        """Return the user for one episode. It depends only on task, seed and what it hears. By
        default it is the exact user; an environment may return one that errs as people do."""
        return self.user(task)

    def oracle(self, task: TaskDefinition) -> Agent:
        """Return an agent that knows the gold actions and keeps the policy."""
        return GoldAgent(task, self.writes)

    def idle_agent(self, task: TaskDefinition) -> Agent:
        """Return an agent that does nothing, as the baseline for all figures."""
        return NullAgent()

    def violations(self, task: TaskDefinition, messages: Sequence[Message]) -> tuple[str, ...]:
        """Return one sentence for each breach of the policy in a transcript."""
        return ()

    def judge(
        self, basis: Basis, task: TaskDefinition, messages: Sequence[Message]
    ) -> tuple[str, ...] | None:
        """Return the faults of a transcript by a part of the reward unknown to grading.py. Return
        None if it is unknown here too; then the part stays open."""
        return None

    def measure(
        self, task: TaskDefinition, messages: Sequence[Message]
    ) -> tuple[float, tuple[str, ...]] | None:
        """Return a transcript's score for MILESTONES, from 0 to 1, and a sentence for each miss.
        Return None if this environment has no milestones; then the part stays open."""
        return None

    def categories(self, task: TaskDefinition) -> tuple[str, ...]:
        """Return further labels by which a report groups a task, beside its capability."""
        return ()

    @property
    def catalog(self) -> ToolCatalog:
        """The catalog of the tools that diagnosis uses."""
        return self._default_catalog

    @property
    def _default_catalog(self) -> ToolCatalog:
        return catalog(self.name) or infer_catalog(self.toolset.tools(), self.writes)

    @property
    def recorded_tool_roles(self) -> ToolRoles | None:
        roles = self.catalog.roles
        return None if roles == self._default_catalog.roles else roles

    @cached_property
    def writes(self) -> frozenset[str]:
        """The agent's tools that change the state."""
        return _find_tools(self.toolset, "write")

    @cached_property
    def user_writes(self) -> frozenset[str]:
        """The user's tools that change the state. In a solo task the agent has them."""
        return frozenset() if self.user_toolset is None else _find_tools(self.user_toolset, "write")

    @cached_property
    def changes(self) -> frozenset[str]:
        """The tools of either party that change the state."""
        return self.writes | self.user_writes

    @cached_property
    def lookups(self) -> frozenset[str]:
        """The tools of either party that only read the state."""
        user = self.user_toolset
        own = _find_tools(self.toolset, "read")
        return own if user is None else own | _find_tools(user, "read")

    def reset(self, task: TaskDefinition) -> Database:
        """Return a fresh state for one episode of the task."""
        key = self.state_key(task)
        if key not in self._states:
            while len(self._states) >= _PRISTINE_STATES:
                del self._states[next(iter(self._states))]
            self._states[key] = self.pristine(task).as_pristine()
        return self._states[key].fork()

    def digests(self, database: Database) -> Mapping[str, str]:
        """Return the hashes of a state, keyed by their names in recordings."""
        return {"db_hash": database.digest()}

    def compare_states(self, expected: Database, actual: Database) -> tuple[Difference, ...]:
        """Return the differences that the reward part DB counts; by default, every difference."""
        return expected.difference(actual)

    def state_key(self, task: TaskDefinition) -> str:
        """Return a key that is equal for tasks with the same first state."""
        return task.id

    @property
    def splits(self) -> Mapping[str, int]:
        """Name of each split -> its number of tasks."""
        return {GENERATED: len(self.capabilities) * self.tasks_per_capability}

    def tasks(self, split: str = GENERATED) -> Iterator[TaskDefinition]:
        """Yield the tasks of a split, in a fixed order. Raise UnknownTask."""
        if split != GENERATED:
            raise UnknownTask(
                f"environment {self.name} has no split {split!r}; it has {', '.join(self.splits)}"
            )
        for seed in range(self.tasks_per_capability):
            for capability in self.capabilities:
                yield self.generate(capability, seed)

    def task(self, task_id: str) -> TaskDefinition:
        """Return the task with this id. An id by content is looked up with the function of
        `use_definitions` and does not reach an override. Raise UnknownTask."""
        if is_content_id(task_id):
            return self._find_definition(task_id)
        if task_id.startswith(f"{self.name}/="):
            raise UnknownTask(
                f"{task_id[:100]!r} is no whole id by content, which is {self.name}/= and 64 "
                "digits; kintsugi tasks show prints it"
            )
        seed = task_id.rpartition("/")[2]
        if is_seed(seed):
            for capability in self.capabilities:
                if task_id == self.task_id(capability, int(seed)):
                    return self.generate(capability, int(seed))
        raise UnknownTask(
            f"environment {self.name} has no task {task_id!r}; ids are "
            f"{self.name}/CAPABILITY/SEED with a capability of {', '.join(self.capabilities)}"
        )

    def task_id(self, capability: str, seed: int) -> str:
        """Return the id of a generated task."""
        return f"{self.name}/{capability}/{seed}"

    def read_phrasing(self, task_id: str) -> tuple[str, int, int] | None:
        """Return capability, seed and phrasing of an id ENVIRONMENT/CAPABILITY/SEED/PHRASING.
        Return None for another form of id. Raise UnknownTask if there is no such task."""
        original, _, phrasing = task_id.rpartition("/")
        if original.count("/") < 2 or not is_seed(phrasing) or phrasing != str(int(phrasing)):
            return None
        capability = Environment.task(self, original).capability
        return capability, int(original.rpartition("/")[2]), int(phrasing)

    def like(self, task: TaskDefinition, seed: int) -> TaskDefinition | None:
        """Return a new task of the same kind, generated from `seed`. Return None if `task` was
        loaded or its kind is no capability. `task` must find the new one by its id."""
        if task.split != GENERATED or task.capability not in self.capabilities:
            return None
        return self.generate(task.capability, seed)

    def rephrase(self, task: TaskDefinition, seed: int) -> TaskDefinition | None:
        """Return the task in other words, with the same first state, gold actions and criteria, or
        None. `task` must find it by its id. An override gets no task with an id by content."""
        return None

    def mixture(
        self, shares: Mapping[str, float], seed: int = 0, first_task: int = 0
    ) -> Iterator[TaskDefinition]:
        """Yield generated tasks without end, with capabilities drawn by the weights `shares`. Seeds
        count up from `first_task`, so streams of disjoint seeds share no task. Raise UnknownTask
        for an unknown capability, ValueError for bad shares."""
        for capability in sorted(shares):
            self.check_capability(capability)
        if not shares or min(shares.values()) < 0 or not sum(shares.values()) > 0:
            raise ValueError(f"shares {dict(shares)} must be non-negative with a positive sum")
        names, weights = list(shares), list(shares.values())
        return self._mixture(names, weights, Random(f"{self.name} mixture {seed}"), first_task)

    def check_capability(self, capability: str) -> None:
        """Raise UnknownTask for a capability that the environment lacks."""
        if capability not in self.capabilities:
            raise UnknownTask(
                f"environment {self.name} has no capability {capability!r}; it has "
                f"{', '.join(self.capabilities)}"
            )

    def _mixture(
        self, names: list[str], weights: list[float], chance: Random, first_task: int
    ) -> Iterator[TaskDefinition]:
        number = first_task
        while True:
            yield self.generate(chance.choices(names, weights)[0], number)
            number += 1


def _find_tools(toolset: type[Toolset], kind: Kind) -> frozenset[str]:
    return frozenset(tool.name for tool in toolset.tools().values() if tool.kind == kind)
