"""An environment's behaviour, as hashes that a check (checking.py) compares between processes. An
exception of an environment becomes a failure with the stage it came from. Not covered: an
environment that never returns."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from itertools import count, islice, product
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from envs.agents import Agent, RandomAgent
from envs.database import Database
from envs.environment import Environment
from envs.episode import Episode, Termination, play
from envs.grading import Grade, grade
from envs.registry import open_place
from envs.task import GENERATED, Scenario, TaskDefinition
from envs.users import STOP
from events.canonical import exact_json, sha256
from events.messages import Message, StrictModel

Slot = tuple[str, Callable[[], TaskDefinition]]
"""The id that a task should have, and what makes it."""

SCENARIOS: Final = 200
"""Seeds over which the scenarios of a capability are counted."""

_HASH_SEEDS: Final = ("1", "2")


class Sample(StrictModel):
    """A sample of an environment's tasks."""

    environment: str
    """Name or path."""
    benchmarks: Path | None = None
    paths: tuple[Path, ...] = ()
    split: str = GENERATED
    tasks: int | None = None
    """None: as many as the split has."""
    seed: int = 0
    """Seed of the first generated task and of the random agent."""

    def open(self) -> Environment:
        """Return the environment, new. Raise UnknownEnvironment, EnvironmentBroken."""
        return open_place(self.environment, benchmarks=self.benchmarks, paths=self.paths)

    def slots(self, environment: Environment) -> list[Slot]:
        """Return the tasks. Raise UnknownTask for a split that does not exist."""
        if self.split == GENERATED and environment.capabilities:
            size = len(environment.capabilities) * environment.tasks_per_capability
            return list(islice(self._generate_slots(environment), self.tasks or size))
        tasks = islice(environment.tasks(self.split), self.tasks)
        return [(task.id, partial(_same, task)) for task in tasks]

    def _generate_slots(self, environment: Environment) -> Iterator[Slot]:
        for seed in count(self.seed):
            for capability in environment.capabilities:
                make = partial(environment.generate, capability, seed)
                yield environment.task_id(capability, seed), make


def _same(task: TaskDefinition) -> TaskDefinition:
    return task


@dataclass(frozen=True, slots=True)
class EpisodeResult:
    """An episode that is over."""

    policy: str
    messages: tuple[Message, ...]
    termination: Termination | None
    state: str
    """Digest of the last state."""
    defects: tuple[str, ...]
    grade: Grade

    @property
    def trace(self) -> str:
        """sha256 of everything that another run must repeat."""
        messages = [message.model_dump(mode="json") for message in self.messages]
        parts = [self.policy, messages, self.termination, self.state, self.grade.reward]
        return sha256(exact_json(parts))


@dataclass(slots=True)
class Trial:
    """One task and what became of it."""

    subject: str
    """The id that the task should have."""
    make: Callable[[], TaskDefinition]
    made: TaskDefinition | None = None
    begins: str = ""
    """Key of the state in which it begins."""
    state: str = ""
    """Digest of that state."""
    plays: dict[str, EpisodeResult] = field(default_factory=dict)
    """Agent -> its episode."""
    failures: dict[str, str] = field(default_factory=dict)
    """Stage -> what was raised there."""

    @property
    def task(self) -> TaskDefinition:
        """The task; only of one that is ready."""
        assert self.made is not None
        return self.made

    @property
    def ready(self) -> bool:
        """Whether there is a task, and a state in which it begins."""
        return self.made is not None and "reset" not in self.failures

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Run the environment's code inside; keep what it raises as a failure."""
        try:
            yield
        except Exception as error:
            self.failures[name] = format_error(error)

    def play(self, environment: Environment, agents: Iterable[str], seed: int) -> None:
        """Let each of the agents play it once."""
        for name in agents:
            with self.stage(name):
                agent = AGENTS[name](environment, self.task, seed)
                self.plays[name] = play_task(environment, self.task, agent)

    @property
    def footprint(self) -> dict[str, str]:
        """The hashes that another process must have too."""
        definition = {} if self.made is None else {"definition": self.made.digest()}
        traces: dict[str, str] = {
            name: self.plays[name].trace for name in REPEATED if name in self.plays
        }
        return {**definition, "state": self.state, **traces}


AGENTS: Final[Mapping[str, Callable[[Environment, TaskDefinition, int], Agent]]] = {
    "oracle": lambda environment, task, seed: environment.oracle(task),
    "null": lambda environment, task, seed: environment.idle_agent(task),
    "random": lambda environment, task, seed: RandomAgent(environment.schemas(task), seed),
}

REPEATED: Final = ("oracle", "random")
"""Agents whose episodes are played again, elsewhere too; the other one reaches no tool."""


def format_error(error: Exception) -> str:
    """Return an exception in one line."""
    return f"{type(error).__name__}: {error}"


def prepare_trials(environment: Environment, sample: Sample) -> list[Trial]:
    """Return a sample's tasks with their first states. Raise UnknownTask for an unknown split."""
    trials = [Trial(subject, make) for subject, make in sample.slots(environment)]
    for trial in trials:
        with trial.stage("generate"):
            trial.made = trial.make()
        if trial.made is not None:
            with trial.stage("reset"):
                trial.begins = environment.state_key(trial.made)
                trial.state = environment.reset(trial.made).digest()
    return trials


def play_task(environment: Environment, task: TaskDefinition, agent: Agent) -> EpisodeResult:
    """Return one graded episode."""
    episode = play(Episode(environment, task), agent, environment.user(task))
    return EpisodeResult(
        environment.policy(task),
        tuple(episode.messages),
        episode.termination,
        episode.database.digest(),
        tuple(episode.defects),
        grade(environment, task, episode.messages, episode.termination),
    )


class Repeats:
    """An agent that says again, word for word, what it said in another episode."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.said = iter([m for m in messages if m.role == "assistant" and m.sampled is not False])

    def reply(self, messages: Sequence[Message]) -> Message:
        """Return the next message; a stop where the other episode had ended."""
        return next(self.said, Message(role="assistant", content=STOP))


def hash_state(database: Database) -> str:
    """Return the sha256 of the state. Unlike `Database.digest` it shows changes behind its back."""
    tables = {name: database[name] for name in database.names}
    return sha256(json.dumps(tables, sort_keys=True, default=str))


def distinct_scenarios(environment: Environment) -> tuple[dict[str, int], dict[str, str]]:
    """Return each capability's number of distinct scenarios, and errors by task id."""
    scenarios: dict[str, set[Scenario]] = {name: set() for name in environment.capabilities}
    failures: dict[str, str] = {}
    # Seed by seed, because tasks of one seed often share a database that is dear to make.
    for seed, capability in product(range(SCENARIOS), environment.capabilities):
        try:
            scenarios[capability].add(environment.generate(capability, seed).scenario)
        except Exception as error:
            failures[environment.task_id(capability, seed)] = format_error(error)
    distinct = {capability: len(values) for capability, values in scenarios.items()}
    return distinct, failures


@dataclass(frozen=True, slots=True)
class Report:
    """The hashes of the second process."""

    footprints: dict[str, dict[str, str]] = field(default_factory=dict)
    """Subject -> its footprints."""
    distinct: dict[str, int] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    crashed: str = ""
    """Last words of a process that could not report."""


class SecondProcess:
    """Works on a sample while this process does; `report` waits for it."""

    def __init__(self, sample: Sample) -> None:
        own = os.environ.get("PYTHONHASHSEED")
        search = os.pathsep.join(folder for folder in sys.path if folder)
        self.process = subprocess.Popen(
            # Not the working directory, whose files might have our packages' names.
            [sys.executable, "-P", "-m", "envs.footprint", sample.model_dump_json()],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={
                **os.environ,
                "PYTHONHASHSEED": next(seed for seed in _HASH_SEEDS if seed != own),
                "PYTHONPATH": search,
            },
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def report(self) -> Report:
        """Return what it saw."""
        out, error = self.process.communicate()
        if self.process.returncode:
            words = ["no word", *error.split("\n")]
            last = [line for line in words if line.strip()][-1]
            return Report(crashed=f"exit code {self.process.returncode}: {last.strip()}")
        return Report(**json.loads(out))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


def observe_sample(sample: Sample) -> dict[str, Any]:
    """Return what a process sees of a sample."""
    environment = sample.open()
    trials = prepare_trials(environment, sample)
    for trial in trials:
        if trial.ready:
            trial.play(environment, REPEATED, sample.seed)
    own = sample.split == GENERATED
    distinct, failures = distinct_scenarios(environment) if own else ({}, {})
    footprints = {trial.subject: trial.footprint for trial in trials}
    return {"footprints": footprints, "distinct": distinct, "failures": failures}


def main() -> None:
    """Print what this process sees of the sample that its argument describes."""
    # What an environment prints must not stand in our document.
    with redirect_stdout(sys.stderr):
        observations = observe_sample(Sample.model_validate_json(sys.argv[1]))
    print(json.dumps(observations))


if __name__ == "__main__":
    main()
