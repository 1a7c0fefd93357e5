"""Telecom customer service: a user who holds a phone, and an agent who sees the company's records.

    Telecom().tasks()                         our tasks, every kind in turn
    Telecom(benchmarks).tasks("test")         tau2-bench's of a split
    Telecom(benchmarks).tasks("test-solo")    the same for an agent that works alone from a ticket

An id with `/solo` at its end names the solo variant of any task.

Guarantee: a generated task is a function of capability and seed, and tasks with equal seeds share
the state in which their trouble begins. Not promised: that the scripted user understands every way
in which an agent may ask; a model plays one better.
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

_SOLO_ID: Final = "/solo"
_SOLO_SPLIT: Final = "-solo"


class Telecom(Tau2Environment):
    """Lines, bills and phones that do not work."""

    name: ClassVar[str] = "telecom"
    toolset = TelecomTools
    user_toolset = TelecomUserTools
    capabilities: ClassVar[Mapping[str, str]] = {name: kind.demands for name, kind in KINDS.items()}

    @staticmethod
    def canonical(tables: Mapping[str, Any]) -> Tables:
        """The tables of a company with a phone that was never changed."""
        return canonical(tables, {})

    def synthetic_database(self, seed: int) -> Database:
        """Twelve customers, and a phone."""
        return build_database(seed)

    def synthetic_policy(self) -> str:
        """The rules in our words."""
        return POLICY

    def write_task(self, capability: str, seed: int, phrasing: int | None = None) -> TaskDefinition:
        """The task of this kind with this seed, in its first words or in those of a phrasing."""
        task_id = self.task_id(capability, seed) + ("" if phrasing is None else f"/{phrasing}")
        return write_task(task_id, capability, seed, phrasing)

    @property
    def benchmark_files(self) -> DomainFiles:
        """How the operator's folder is read."""
        return describe_files(self.name, self.changes)

    @cached_property
    def _solo_policy(self) -> str:
        """The operator's rules for an agent that works alone."""
        assert self.benchmarks is not None, "a real task comes from the folder"
        return read_policy(folder(self.benchmarks, self.name), "main_policy_solo.md")

    def policy(self, task: TaskDefinition) -> str:
        """Our words, or the folder's for a real task; for an agent alone, with the ticket."""
        real = task.split != GENERATED
        if not task.solo:
            return self.benchmark.policy if real else POLICY
        rules = self._solo_policy if real else f"{POLICY}\n{SOLO}"
        return f"<policy>\n{rules}\n</policy>\n<ticket>\n{task.ticket}\n</ticket>"

    def pristine(self, task: TaskDefinition) -> Database:
        """The state in which a task begins: with its trouble."""
        database = super().pristine(task).fork()
        for call in task.setup:
            run_setup(database, call)
        return database

    def state_key(self, task: TaskDefinition) -> str:
        """Tasks with one setup on one state begin alike."""
        setup = " ".join(call.model_dump_json() for call in task.setup)
        return f"{super().state_key(task)} {setup}"

    def compare_states(self, expected: Database, actual: Database) -> tuple[Difference, ...]:
        """Return where the company's records are not as expected. The phone is judged by the
        assertions, and of a bill's items their sum: their words tell 2 GB from 2.0 GB."""
        return tuple(
            item
            for item in expected.difference(actual)
            if item.path[0] in COMPANY and "line_items" not in item.path
        )

    def digests(self, database: Database) -> Mapping[str, str]:
        """The original's hashes of the company's and of the user's side."""
        return {"db_hash": company_digest(database), "user_db_hash": user_digest(database)}

    def schemas(self, task: TaskDefinition) -> list[dict[str, Any]]:
        """The agent's tools, or those of both sides for an agent that works alone."""
        own = super().schemas(task)
        if task.split == GENERATED or not task.solo:
            return own
        return [*own, *map(dict, self.benchmark.user_schemas)]

    def user_schemas(self, task: TaskDefinition) -> list[dict[str, Any]]:
        """The user's tools: our descriptions, or the folder's for a real task."""
        if task.split == GENERATED or task.solo:
            return super().user_schemas(task)
        return [dict(schema) for schema in self.benchmark.user_schemas]

    def user(self, task: TaskDefinition) -> User:
        """A user who acts."""
        return ActingUser(task)

    def oracle(self, task: TaskDefinition) -> Agent:
        """Return the oracle of a task; that of a generated task asks who the user is."""
        who = WHO if task.split == GENERATED and not task.solo else ""
        return TelecomOracle(task, self.writes, who)

    def violations(self, task: TaskDefinition, messages: Sequence[Message]) -> tuple[str, ...]:
        """Broken rules about who is helped, who agreed and how calls are made."""
        return violations(task, messages, self.writes)

    def judge(
        self, basis: Basis, task: TaskDefinition, messages: Sequence[Message]
    ) -> tuple[str, ...] | None:
        """Which assertions do not hold in the state that the calls of both parties leave."""
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
        """Those of any domain, and each real one for an agent that works alone."""
        splits = super().splits
        solo = {f"{name}{_SOLO_SPLIT}": size for name, size in splits.items() if name != GENERATED}
        return {**splits, **solo}

    def tasks(self, split: str = GENERATED) -> Iterator[TaskDefinition]:
        """The tasks of a split, in a fixed order. Raises UnknownTask, NoBenchmark."""
        if not split.endswith(_SOLO_SPLIT):
            return super().tasks(split)
        tasks = super().tasks(split.removesuffix(_SOLO_SPLIT))
        return (self.make_solo(task) for task in tasks)

    def task(self, task_id: str) -> TaskDefinition:
        """The task with this id; one that ends in `/solo` is for an agent that works alone.

        Raises UnknownTask, and its subclass NoBenchmark.
        """
        if task_id.endswith(_SOLO_ID):
            return self.make_solo(super().task(task_id.removesuffix(_SOLO_ID)))
        return super().task(task_id)

    def solo_split(self, split: str) -> str:
        """Return the split that has a split's tasks for an agent that works alone."""
        return split if split.endswith(_SOLO_SPLIT) else f"{split}{_SOLO_SPLIT}"

    def make_solo(self, task: TaskDefinition) -> TaskDefinition:
        """Return the task for an agent that works alone. Raises UnknownTask if it has no ticket."""
        ticket = task.scenario.text()
        if task.split != GENERATED:
            written = self.benchmark.tickets.get(task.id)
            if written is None:
                raise UnknownTask(f"task {task.id} has no ticket, so nobody can work on it alone")
            ticket = written
        return task.make_solo(f"{task.id}{_SOLO_ID}", ticket)
