"""The interface of an environment: tools over a state, a policy, a user and an evaluator.

Subclass `Environment`, give it a name, tools, a policy and capabilities, and write `generate` and
`pristine`; `kintsugi env new` writes such a file. Everything else has a default that works:

    user       scripted (users.py); a model may take its place. It may have tools of its own
    oracle     plays the gold actions, asks before each write, says the outputs (agents.py)
    evaluator  replays the agent's calls and the gold ones and compares the states (grading.py)

Guarantee: an episode is a function of (task, seed, agent outputs). So `generate` and `pristine` may
use no clock, no global randomness and nothing outside their arguments. `kintsugi env check` tests
this from outside.

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
"""Generated states kept at once: a group of rollouts shares its task's, and one may be 10 MB."""
_DEFINITIONS: Final = 4096
"""Tasks by content that are kept at once, read from their bodies."""

FindBody = Callable[[str], str | None]
"""Function that returns the body (task.py) of a task by content; None where it is not kept."""


class UnknownTask(KintsugiError):
    """No such task, split or capability."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When an episode is cut off. Defaults: tau2-bench's."""

    max_steps: int = 200
    """Hops between user, agent and tools: a call and its results are two."""
    max_errors: int = 10
    """Calls that a tool answered with an error, in total."""
    max_calls: int = 64
    """Calls in one message; tau2-bench has no such bound, and its agents make at most a few."""
    max_rounds: int | None = None
    """Messages with calls between two messages of the user; None: as many as there are steps."""


_MakeTask = Callable[["Environment", str], TaskDefinition]
_Rephrase = Callable[["Environment", TaskDefinition, int], TaskDefinition | None]


def _find_by_content(make: _MakeTask) -> _MakeTask:
    """Keep ids by content from a subclass's `task`."""

    @wraps(make)
    def task(self: "Environment", task_id: str) -> TaskDefinition:
        return self._find_definition(task_id) if is_content_id(task_id) else make(self, task_id)

    return task


def _keep_words(rephrase: _Rephrase) -> _Rephrase:
    """Keep tasks by content from a subclass's `rephrase`: its generator did not word them."""

    @wraps(rephrase)
    def find_other(self: "Environment", task: TaskDefinition, seed: int) -> TaskDefinition | None:
        return None if is_content_id(task.id) else rephrase(self, task, seed)

    return find_other


class Environment(ABC):
    """One domain: its tools, its policy, its tasks and how they are judged."""

    name: ClassVar[str]
    toolset: ClassVar[type[Toolset]]
    user_toolset: ClassVar[type[Toolset] | None] = None
    """Tools of the user over the same state (dual control); None: the user only talks."""
    capabilities: ClassVar[Mapping[str, str]]
    """Kind of task that it can generate -> what it demands of the agent, in one line."""
    constant: ClassVar[frozenset[str]] = frozenset()
    """Kinds with one right outcome whatever the state is. They are evaluated, never trained on."""
    internal: ClassVar[frozenset[str]] = frozenset()
    """Arguments of tools whose values no user knows: the shop's own ids of things."""
    greeting: ClassVar[str | None] = None
    """First words of the agent's side, before the user opens; no model samples them."""
    limits: ClassVar[Limits] = Limits()
    graded_endings: ClassVar[frozenset[str]] = frozenset()
    """Endings other than regular ones after which a transcript is graded as it stands."""
    users_err: ClassVar[bool] = False
    """Whether `make_user` may give another user than the exact one: then its faults are looked for,
    and a rollout with one is not judged (envs/attribution)."""
    tasks_per_capability: ClassVar[int] = 16
    """Size of the generated split where the caller names none."""

    def __init__(self, benchmarks: Path | None = None) -> None:
        """`benchmarks` is the operator's folder of real tasks; None where there is none."""
        self.benchmarks = benchmarks
        self._states: dict[str, Database] = {}
        self._definitions: dict[str, TaskDefinition] = {}
        self._find_body: FindBody | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        """See that an override of `task` or `rephrase` keeps tasks by content as they are."""
        super().__init_subclass__(**options)
        own = vars(cls)
        if "task" in own:
            setattr(cls, "task", _find_by_content(own["task"]))  # noqa: B010
        if "rephrase" in own:
            setattr(cls, "rephrase", _keep_words(own["rephrase"]))  # noqa: B010

    def use_definitions(self, find: FindBody) -> None:
        """Look up the bodies of tasks by content with this function from now on. What it returns is
        believed only where it hashes to the id."""
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
        """Return the state in which a task begins. Not shared: `reset` forks and caches it."""

    @abstractmethod
    def policy(self, task: TaskDefinition) -> str:
        """Return the system prompt: the rules the agent must keep; empty for none."""

    def schemas(self, task: TaskDefinition) -> list[dict[str, Any]]:
        """Return the tools as the agent is shown them, in OpenAI's format."""
        own = self.toolset.schemas()
        return [*own, *self.user_toolset.schemas()] if task.solo and self.user_toolset else own

    def user_schemas(self, task: TaskDefinition) -> list[dict[str, Any]]:
        """Return the user's tools as a model that plays the user is shown them."""
        return [] if task.solo or self.user_toolset is None else self.user_toolset.schemas()

    def open_tools(self, task: TaskDefinition, database: Database) -> ToolAccess:
        """Return the tools of both parties of a task, over a state of it."""
        user = self.user_toolset
        return ToolAccess(
            self.toolset(database), None if user is None else user(database), solo=task.solo
        )

    def select_schemas(
        self, task: TaskDefinition, messages: Sequence[Message]
    ) -> list[dict[str, Any]]:
        """Return the schemas that the agent is shown at this point of its view."""
        return self.schemas(task)

    def user(self, task: TaskDefinition) -> User:
        """Return the exact user: what another one that plays is held against."""
        return ScriptUser(task)

    def make_user(self, task: TaskDefinition, seed: int) -> User:
        """Return the user that plays an episode, a function of task, seed and what it hears: the
        exact one, unless an environment's own users are as people are."""
        return self.user(task)

    def oracle(self, task: TaskDefinition) -> Agent:
        """Return an agent that knows the gold actions and keeps the policy."""
        return GoldAgent(task, self.writes)

    def idle_agent(self, task: TaskDefinition) -> Agent:
        """Return an agent that does nothing: every figure is read beside its own."""
        return NullAgent()

    def violations(self, task: TaskDefinition, messages: Sequence[Message]) -> tuple[str, ...]:
        """Return what in a transcript breaks the policy, one sentence each."""
        return ()

    def judge(
        self, basis: Basis, task: TaskDefinition, messages: Sequence[Message]
    ) -> tuple[str, ...] | None:
        """Return the faults by a part that grading.py has no rule for, as sentences; None where
        this environment has none either, and the part stays open."""
        return None

    def measure(
        self, task: TaskDefinition, messages: Sequence[Message]
    ) -> tuple[float, tuple[str, ...]] | None:
        """Return a transcript's MILESTONES, between 0 and 1, and what was missed, one sentence
        each; None where this environment has no milestones, and the part stays open."""
        return None

    def categories(self, task: TaskDefinition) -> tuple[str, ...]:
        """Return what a report groups a task by beside its capability; a task may have several."""
        return ()

    @property
    def catalog(self) -> ToolCatalog:
        """The catalog of the tools, for diagnosis."""
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
        """The user's tools that change the state; in a solo task the agent has them."""
        return frozenset() if self.user_toolset is None else _find_tools(self.user_toolset, "write")

    @cached_property
    def changes(self) -> frozenset[str]:
        """The tools of either party that change the state."""
        return self.writes | self.user_writes

    @cached_property
    def lookups(self) -> frozenset[str]:
        """The tools of either party that look something up."""
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
        """Return the hashes of a state, by the names that recordings have for them."""
        return {"db_hash": database.digest()}

    def compare_states(self, expected: Database, actual: Database) -> tuple[Difference, ...]:
        """Return where a state is not as expected, as DB judges: in any value."""
        return expected.difference(actual)

    def state_key(self, task: TaskDefinition) -> str:
        """Return a key that is equal for tasks that begin in the same state."""
        return task.id

    @property
    def splits(self) -> Mapping[str, int]:
        """Name of each split and its number of tasks."""
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
        """Return the task with this id, also by content (use_definitions). An override is
        asked for no id by content. Raise UnknownTask."""
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
        """Return capability, seed and phrasing of an id ENVIRONMENT/CAPABILITY/SEED/PHRASING; None
        for any other id. Raise UnknownTask where there is no such task."""
        original, _, phrasing = task_id.rpartition("/")
        if original.count("/") < 2 or not is_seed(phrasing) or phrasing != str(int(phrasing)):
            return None
        capability = Environment.task(self, original).capability
        return capability, int(original.rpartition("/")[2]), int(phrasing)

    def like(self, task: TaskDefinition, seed: int) -> TaskDefinition | None:
        """Return a fresh task of the same kind; None without a generator, because it was loaded
        or its kind is none of the capabilities. Its id must give it again (`task`)."""
        if task.split != GENERATED or task.capability not in self.capabilities:
            return None
        return self.generate(task.capability, seed)

    def rephrase(self, task: TaskDefinition, seed: int) -> TaskDefinition | None:
        """Return the task in other words, with its first state, gold actions and criteria; else
        None. Its id must give it again (`task`). An override gets no task by content."""
        return None

    def mixture(
        self, shares: Mapping[str, float], seed: int = 0, first_task: int = 0
    ) -> Iterator[TaskDefinition]:
        """Yield generated tasks without end, capabilities in these shares (weights). Seeds count up
        from `first_task`, so streams that do not overlap share no task. Raise UnknownTask for an
        unknown capability, ValueError for bad shares."""
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
