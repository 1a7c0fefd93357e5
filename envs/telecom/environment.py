"""Telecom customer service: a user who holds a phone, and an agent who sees the company's records.

    Telecom().tasks()                         our generated tasks, every kind in turn
    Telecom(benchmarks).tasks("test")         tau2-bench's tasks of a split
    Telecom(benchmarks).tasks("test-solo")    the same for an agent that works alone from a ticket
    Telecom(benchmarks).tasks("test-workflow")  the same with a workflow in place of the manual

An id that ends with `/solo` names a task's solo variant. `/workflow`, at the end or before `/solo`,
names the variant of a real task whose policy has the workflow.

Guarantee: a generated task depends only on capability and seed. Tasks with equal seeds share the
state before their faults are set up. Not promised: that the scripted user understands every wording
of a request; a model does so better.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Final

from envs.agents import Agent
from envs.database import Database, Difference, Tables
from envs.environment import UnknownTask
from envs.grading import replay
from envs.task import GENERATED, Basis, TaskDefinition
from envs.tau2.benchmark import DomainFiles, folder
from envs.tau2.environment import Tau2Environment
from envs.telecom.benchmark import describe_files, read_policy
from envs.telecom.customer import ActingUser
from envs.telecom.database import COMPANY, build_database, canonical, company_digest, user_digest
from envs.telecom.functions import holds, run_setup
from envs.telecom.kinds import KINDS, WHO, write_task
from envs.telecom.oracle import TelecomOracle
from envs.telecom.policy import POLICY, SOLO, violations
from envs.telecom.tools import TelecomTools
from envs.telecom.user_tools import TelecomUserTools
from envs.users import User
from events.messages import Message, executed_calls

SOLO_VARIANT: Final = "solo"
WORKFLOW_VARIANT: Final = "workflow"
_VARIANTS: Final = (
    (WORKFLOW_VARIANT,),
    (SOLO_VARIANT,),
    (WORKFLOW_VARIANT, SOLO_VARIANT),
)
"""Variants of real tasks, each as the parts of its name. The longest is last."""


class Telecom(Tau2Environment):
    """Customers have trouble with lines, bills and phones."""

    name: ClassVar[str] = "telecom"
    toolset = TelecomTools
    user_toolset = TelecomUserTools
    capabilities: ClassVar[Mapping[str, str]] = {name: kind.demands for name, kind in KINDS.items()}

    @staticmethod
    def canonical(tables: Mapping[str, Any]) -> Tables:
        """Return the tables of a company, with a phone in its default state."""
        return canonical(tables, {})

    def synthetic_database(self, seed: int) -> Database:
        """Return the generated state for this seed: twelve customers and a phone."""
        return build_database(seed)

    def synthetic_policy(self) -> str:
        """Return the agent's rules, in our words."""
        return POLICY

    def write_task(self, capability: str, seed: int, phrasing: int | None = None) -> TaskDefinition:
        """Return the task of a kind and seed, in its first words or in those of a phrasing."""
        task_id = self.task_id(capability, seed) + ("" if phrasing is None else f"/{phrasing}")
        return write_task(task_id, capability, seed, phrasing)

    @property
    def benchmark_files(self) -> DomainFiles:
        """The files of the domain in the operator's folder, and their readers."""
        return describe_files(self.name, self.changes)

    def _read_policy(self, solo: bool, workflow: bool) -> str:
        assert self.benchmarks is not None, "a real task comes from the folder"
        if (solo, workflow) not in self._policies:
            place = folder(self.benchmarks, self.name)
            text = read_policy(place, solo=solo, workflow=workflow)
            self._policies[solo, workflow] = text
        return self._policies[solo, workflow]

    @cached_property
    def _policies(self) -> dict[tuple[bool, bool], str]:
        return {}

    def policy(self, task: TaskDefinition) -> str:
        """Return our policy, or for a real task the folder's. In a solo task add the ticket."""
        if task.split != GENERATED:
            workflow = WORKFLOW_VARIANT in task.id.split("/")
            rules = self._read_policy(task.solo, workflow)
        else:
            rules = f"{POLICY}\n{SOLO}" if task.solo else POLICY
        if not task.solo:
            return rules
        return f"<policy>\n{rules}\n</policy>\n<ticket>\n{task.ticket}\n</ticket>"

    def pristine(self, task: TaskDefinition) -> Database:
        """Return the first state of a task, with its faults."""
        database = super().pristine(task).fork()
        for call in task.setup:
            run_setup(database, call)
        return database

    def state_key(self, task: TaskDefinition) -> str:
        """Return a key that is equal for tasks with the same state and setup calls."""
        setup = " ".join(call.model_dump_json() for call in task.setup)
        return f"{super().state_key(task)} {setup}"

    def compare_states(self, expected: Database, actual: Database) -> tuple[Difference, ...]:
        """Return the differences in the company's records; assertions judge the phone. Texts of a
        bill's items are ignored, because "2 GB" may be "2.0 GB"; their sum counts."""
        return tuple(
            item
            for item in expected.difference(actual)
            if item.path[0] in COMPANY and "line_items" not in item.path
        )

    def digests(self, database: Database) -> Mapping[str, str]:
        """Return the original's hashes of the company's records and of the user's side."""
        return {"db_hash": company_digest(database), "user_db_hash": user_digest(database)}

    def schemas(self, task: TaskDefinition) -> list[dict[str, Any]]:
        """Return the agent's tools; in a solo task also the user's."""
        own = super().schemas(task)
        if task.split == GENERATED or not task.solo:
            return own
        return [*own, *map(dict, self.benchmark.user_schemas)]

    def user_schemas(self, task: TaskDefinition) -> list[dict[str, Any]]:
        """Return our schemas of the user's tools, or for a real task the folder's."""
        if task.split == GENERATED or task.solo:
            return super().user_schemas(task)
        return [dict(schema) for schema in self.benchmark.user_schemas]

    def user(self, task: TaskDefinition) -> User:
        """Return a scripted user who carries out requests."""
        return ActingUser(task)

    def oracle(self, task: TaskDefinition) -> Agent:
        """Return the oracle; for a generated task with a user, one that asks who the user is."""
        who = WHO if task.split == GENERATED and not task.solo else ""
        return TelecomOracle(task, self.writes, who)

    def violations(self, task: TaskDefinition, messages: Sequence[Message]) -> tuple[str, ...]:
        """Return broken rules: identification, consent, form of calls, and needless repairs."""
        return violations(task, messages, self.writes)

    def judge(
        self, basis: Basis, task: TaskDefinition, messages: Sequence[Message]
    ) -> tuple[str, ...] | None:
        """Return the assertions that do not hold after the calls of both parties."""
        if basis != "ENV_ASSERTION":
            return None
        database = replay(self, task, executed_calls(messages))
        return tuple(
            f"{assertion.name} {assertion.arguments} is not {assertion.expected}"
            for assertion in task.criteria.assertions
            if not holds(database, assertion)
        )

    @property
    def splits(self) -> Mapping[str, int]:
        """Sizes of the splits, with the variants of each real split."""
        splits = super().splits
        real = {name: size for name, size in splits.items() if name != GENERATED}
        variants = {
            "-".join((name, *variant)): size for variant in _VARIANTS for name, size in real.items()
        }
        return {**splits, **variants}

    def tasks(self, split: str = GENERATED) -> Iterator[TaskDefinition]:
        """Yield the tasks of a split in a fixed order. Raise UnknownTask or NoBenchmark."""
        name, *variant = split.split("-")
        if tuple(variant) not in _VARIANTS or name == GENERATED:
            return super().tasks(split)
        return (self._vary(task, variant) for task in super().tasks(name))

    def task(self, task_id: str) -> TaskDefinition:
        """Return the task in its id's variant. Raise UnknownTask or its subclass NoBenchmark."""
        for variant in reversed(_VARIANTS):
            end = "".join(f"/{part}" for part in variant)
            if task_id.endswith(end):
                return self._vary(super().task(task_id.removesuffix(end)), variant)
        return super().task(task_id)

    def like(self, task: TaskDefinition, seed: int) -> TaskDefinition | None:
        """Return a new task of the same kind. It is solo if `task` is."""
        fresh = super().like(task, seed)
        return self.make_solo(fresh) if fresh is not None and task.solo else fresh

    def rephrase(self, task: TaskDefinition, seed: int) -> TaskDefinition | None:
        """Return the same problem in other phrases, or None for a real task."""
        other = super().rephrase(task, seed)
        return self.make_solo(other) if other is not None and task.solo else other

    def _vary(self, task: TaskDefinition, variant: Sequence[str]) -> TaskDefinition:
        """Return a variant of a task. Raise UnknownTask if the task has no such variant."""
        if WORKFLOW_VARIANT in variant:
            if task.split == GENERATED:
                raise UnknownTask(f"{task.id} is a generated task; their policy has no workflow")
            task = task.model_copy(update={"id": f"{task.id}/{WORKFLOW_VARIANT}"})
        return self.make_solo(task) if SOLO_VARIANT in variant else task

    def solo_split(self, split: str) -> str:
        """Return the variant of a split for agents that work alone."""
        name, *variant = split.split("-")
        return split if SOLO_VARIANT in variant else "-".join((name, *variant, SOLO_VARIANT))

    def make_solo(self, task: TaskDefinition) -> TaskDefinition:
        """Return the task for an agent that works alone. Raise UnknownTask without a ticket."""
        ticket = task.scenario.text()
        if task.split != GENERATED:
            written = self.benchmark.tickets.get("/".join(task.id.split("/")[:2]))
            if written is None:
                raise UnknownTask(f"task {task.id} has no ticket, so nobody can work on it alone")
            ticket = written
        return task.make_solo(f"{task.id}/{SOLO_VARIANT}", ticket)
