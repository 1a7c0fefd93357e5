"""The environments of a job, and the environment of each task.

Every task id begins with the name of its environment. So the environments of a job have different
names, and a pool has only tasks of its own environment.
"""

import logging
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

from daemon.solver.spec import drop_tasks, list_tasks
from envs.environment import Environment, UnknownTask
from envs.episode import PrefixMismatch, check_prefix
from envs.evaluation import environment_code
from envs.registry import open_place
from envs.task import TaskDefinition, is_content_id
from events.errors import KintsugiError
from events.jobs import JobSpec

log = logging.getLogger(__name__)


class AmbiguousEnvironment(KintsugiError):
    """Two environments of a job have one name."""


class JobEnvironments:
    """Environments of a job by name."""

    def __init__(self, spec: JobSpec, open_environment: Callable[[str], Environment]) -> None:
        """Open the environments of the spec with `open_environment`, which takes a name or path.
        Raise AmbiguousEnvironment, UnknownTask for a task in another environment's pool, and any
        error of `open_environment`."""
        self._by_name: dict[str, Environment] = {}
        by_place: dict[str, Environment] = {}
        for place in spec.environments:
            opened = open_environment(place)
            if opened.name in self._by_name:
                other = next(p for p, e in by_place.items() if e.name == opened.name)
                raise AmbiguousEnvironment(
                    f"job {spec.job} plays in {other} and in {place}, and both are named "
                    f"{opened.name}: a task's id does not tell them apart; rename one of them"
                )
            self._by_name[opened.name] = by_place[place] = opened
        self.own = by_place[spec.environment]
        """The job's main environment, for all pools that name no other."""
        self.task = lru_cache(maxsize=4096)(self._make_task)
        for pool in spec.pools:
            named = by_place[pool.environment or spec.environment]
            for task in pool.all_tasks:
                if self.find(task) is not named:
                    raise UnknownTask(
                        f"pool {pool.name} is of environment {named.name}, and its task {task} is "
                        "not; give each pool the environment that its tasks are of"
                    )

    def __iter__(self) -> Iterator[Environment]:
        """Yield the environments, the job's main environment first."""
        yield from self._by_name.values()

    def find(self, task: str) -> Environment:
        """Return the environment that a task's id begins with, or else the main one."""
        return self._by_name.get(task.partition("/")[0], self.own)

    def name_kind(self, task: str) -> str:
        """Return a task's capability, after a foreign environment's name. Raise UnknownTask."""
        environment, kind = self.find(task), self.task(task).capability
        return kind if environment is self.own else f"{environment.name}/{kind}"

    def _make_task(self, task: str) -> TaskDefinition:
        return self.find(task).task(task)


def open_environments(spec: JobSpec, find_body: Callable[[str], str | None]) -> JobEnvironments:
    """Open a job's environments. `find_body` returns the body of a task by content. Raise
    UnknownEnvironment, EnvironmentBroken, AmbiguousEnvironment, UnknownTask."""
    benchmarks = None if spec.benchmarks is None else Path(spec.benchmarks)

    def open_one(place: str) -> Environment:
        environment = open_place(place, benchmarks=benchmarks)
        environment.use_definitions(find_body)
        return environment

    return JobEnvironments(spec, open_one)


def drop_unplayable(spec: JobSpec, environments: JobEnvironments) -> JobSpec:
    """Return the spec without tasks by content whose body is missing or whose prefix does not
    replay. Log the tasks that are dropped. Raise NothingPlayable, EnvironmentFailure."""
    missing: dict[str, str] = {}
    for task in filter(is_content_id, list_tasks(spec)):
        environment = environments.find(task)
        try:
            definition = environments.task(task)
            with environment_code(environment, f"task {task}", definition):
                check_prefix(environment, definition)
        except (PrefixMismatch, UnknownTask) as error:
            missing[task] = str(error)
    playable = drop_tasks(spec, missing)
    for reason in missing.values():
        log.warning("left out: %s", reason)
    kept = {pool.name for pool in playable.pools}
    for pool in spec.pools:
        if pool.name not in kept:
            log.warning("pool %s is left out: no task of it can be played", pool.name)
    return playable
