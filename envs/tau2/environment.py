"""An environment that generates its own tasks and also runs tau2-bench's real ones.

A domain adds its tools, the canonical form of its database, a generator of databases, a policy in
our words and its kinds of task. If the operator's folder has the domain, its real tasks are the
splits `base`, `train` and `test`. They share the folder's state, policy and tool schemas.

Guarantee: training uses only `generate`, which never reads the folder.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, ClassVar

from envs.database import Database, Tables
from envs.environment import Environment, UnknownTask
from envs.task import GENERATED, TaskDefinition
from envs.tau2.benchmark import Benchmark, DomainFiles, folder, load, read_json, read_text
from envs.tau2.toolset import Tau2Conventions

_REAL_STATE = "benchmark"


class Tau2Environment(Environment):
    """A domain of tau2-bench, with generated and real tasks."""

    toolset: ClassVar[type[Tau2Conventions]]
    greeting: ClassVar[str | None] = "Hi! How can I help you today?"

    @staticmethod
    @abstractmethod
    def canonical(tables: Mapping[str, Any]) -> Tables:
        """Return a database file's tables with every field and type of the original's models. For
        another shape raise KeyError, TypeError, ValueError or AttributeError."""

    @abstractmethod
    def synthetic_database(self, seed: int) -> Database:
        """Return the generated database for this seed. Tasks with equal seeds share it."""

    @abstractmethod
    def synthetic_policy(self) -> str:
        """Return the policy of generated tasks, in our words."""

    @abstractmethod
    def write_task(self, capability: str, seed: int, phrasing: int | None = None) -> TaskDefinition:
        """Return the task of a kind and seed, in its first words or in those of a phrasing."""

    def generate(self, capability: str, seed: int) -> TaskDefinition:
        """Return the generated task for this kind and seed."""
        return self.write_task(capability, seed)

    def rephrase(self, task: TaskDefinition, seed: int) -> TaskDefinition | None:
        """Return the same request in other phrases, or None for a real task."""
        if task.split != GENERATED:
            return None
        return self.task("/".join([*task.id.split("/")[:3], str(seed)]))

    @cached_property
    def benchmark(self) -> Benchmark:
        """The real tasks of the domain. Raises NoBenchmark or InvalidBenchmark."""
        return load(self.benchmarks, self.benchmark_files)

    @property
    def benchmark_files(self) -> DomainFiles:
        """The files of the domain in the operator's folder, and their readers."""
        return DomainFiles(
            self.name,
            self.writes,
            read_tables=lambda place: self.canonical(read_json(place / "db.json")),
            read_policy=lambda place: read_text(place / "policy.md"),
        )

    def pristine(self, task: TaskDefinition) -> Database:
        """Return the first state of a task, which callers must not change."""
        if task.split == GENERATED:
            return self.synthetic_database(task.seed)
        return self.benchmark.database

    def state_key(self, task: TaskDefinition) -> str:
        """Return the key of a task's first state: one key for all real tasks, else one per seed."""
        return f"generated {task.seed}" if task.split == GENERATED else _REAL_STATE

    def policy(self, task: TaskDefinition) -> str:
        """Return our policy, or for a real task the folder's."""
        return self.synthetic_policy() if task.split == GENERATED else self.benchmark.policy

    def schemas(self, task: TaskDefinition) -> list[dict[str, Any]]:
        """Return our schemas of the agent's tools, or for a real task the folder's."""
        if task.split == GENERATED:
            return super().schemas(task)
        return [dict(schema) for schema in self.benchmark.schemas]

    def solo_split(self, split: str) -> str:
        """Return a split's variant for agents that work alone. Raise UnknownTask if none."""
        raise UnknownTask(
            f"environment {self.name} has no tasks for an agent that works alone: its user has no "
            "tools; leave out --solo"
        )

    @property
    def splits(self) -> Mapping[str, int]:
        """Sizes of the splits: generated tasks, and real ones if the operator's folder has them."""
        if self.benchmarks is None or not folder(self.benchmarks, self.name).is_dir():
            return super().splits
        real = {split: len(ids) for split, ids in self.benchmark.splits.items()}
        return {**super().splits, **real}

    def tasks(self, split: str = GENERATED) -> Iterator[TaskDefinition]:
        """Yield the tasks of a split in a fixed order. Raise UnknownTask or NoBenchmark."""
        if split == GENERATED:
            return super().tasks(split)
        if split not in self.benchmark.splits:
            raise UnknownTask(
                f"environment {self.name} has no split {split!r}; it has {', '.join(self.splits)}"
            )
        return (self.benchmark.tasks[task_id] for task_id in self.benchmark.splits[split])

    def task(self, task_id: str) -> TaskDefinition:
        """Return the task with this id: generated `name/capability/seed`, rephrased with
        `/phrasing`, or real `name/number`. Raise UnknownTask or its subclass NoBenchmark."""
        phrased = self.read_phrasing(task_id)
        if phrased is not None:
            return self.write_task(*phrased)
        real = task_id.startswith(f"{self.name}/") and task_id.count("/") == 1
        task = self.benchmark.tasks.get(task_id) if real else None
        return task or super().task(task_id)
