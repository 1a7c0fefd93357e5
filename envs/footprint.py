"""An environment's behaviour as hashes, which a check (checking.py) compares between processes. An
exception of an environment becomes a failure with the name of its stage. Not covered: an
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
"""The id that a task should have, and a function that makes the task."""

SCENARIOS: Final = 200
"""Number of seeds over which the distinct scenarios of a capability are counted."""

_HASH_SEEDS: Final = ("1", "2")


class Sample(StrictModel):
    """A sample of an environment's tasks."""

    environment: str
    """Name or path of the environment."""
    benchmarks: Path | None = None
    paths: tuple[Path, ...] = ()
    split: str = GENERATED
    tasks: int | None = None
    """Number of tasks. None: all tasks of the split."""
    seed: int = 0
    """Seed of the first generated task and of the random agent."""

    def open(self) -> Environment:
        """Return a new environment. Raise UnknownEnvironment or EnvironmentBroken."""
        return open_place(self.environment, benchmarks=self.benchmarks, paths=self.paths)

    def slots(self, environment: Environment) -> list[Slot]:
        """Return the sample's tasks as slots. Raise UnknownTask if the split does not exist."""
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
    """The result of a finished episode."""

    policy: str
    messages: tuple[Message, ...]
    termination: Termination | None
    state: str
    """Digest of the last state."""
    defects: tuple[str, ...]
    grade: Grade

    @property
    def trace(self) -> str:
        """SHA-256 of everything in the episode that a repetition must reproduce."""
        messages = [message.model_dump(mode="json") for message in self.messages]
        parts = [self.policy, messages, self.termination, self.state, self.grade.reward]
        return sha256(exact_json(parts))


@dataclass(slots=True)
class Trial:
    """One task of the sample, and the results of its stages."""

    subject: str
    """The id that the task should have."""
    make: Callable[[], TaskDefinition]
    made: TaskDefinition | None = None
    begins: str = ""
    """Key of the task's first state."""
    state: str = ""
    """Digest of the task's first state."""
    plays: dict[str, EpisodeResult] = field(default_factory=dict)
    """Agent -> its episode."""
    failures: dict[str, str] = field(default_factory=dict)
    """Stage -> the text of its exception."""

    @property
    def task(self) -> TaskDefinition:
        """The task. It may be read only after it was made."""
        assert self.made is not None
        return self.made

    @property
    def ready(self) -> bool:
        """Whether the task and its first state were made without an exception."""
        return self.made is not None and "reset" not in self.failures

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Run the environment's code inside the block, and record its exception as a failure."""
        try:
            yield
        except Exception as error:
            self.failures[name] = format_error(error)

    def play(self, environment: Environment, agents: Iterable[str], seed: int) -> None:
        """Let each of the agents play the task once."""
        for name in agents:
            with self.stage(name):
                agent = AGENTS[name](environment, self.task, seed)
                self.plays[name] = play_task(environment, self.task, agent)

    @property
    def footprint(self) -> dict[str, str]:
        """The hashes that a second process must reproduce."""
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
"""Agents whose episodes are repeated, also in a second process. The third agent calls no tool."""


def format_error(error: Exception) -> str:
    """Return an exception's type and text."""
    return f"{type(error).__name__}: {error}"


def prepare_trials(environment: Environment, sample: Sample) -> list[Trial]:
    """Make a sample's tasks and their first states. Raise UnknownTask for an unknown split."""
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
    """Play one episode, and return its graded result."""
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
    """An agent that repeats its messages of an earlier episode, word for word."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.said = iter([m for m in messages if m.role == "assistant" and m.sampled is not False])

    def reply(self, messages: Sequence[Message]) -> Message:
        """Return the next message, or a stop token after the last one."""
        return next(self.said, Message(role="assistant", content=STOP))


def hash_state(database: Database) -> str:
    """Return the SHA-256 of a state, changes made without `edit` included."""
    tables = {name: database[name] for name in database.names}
    return sha256(json.dumps(tables, sort_keys=True, default=str))


def distinct_scenarios(environment: Environment) -> tuple[dict[str, int], dict[str, str]]:
    """Return each capability's number of distinct scenarios, and task id -> error."""
    scenarios: dict[str, set[Scenario]] = {name: set() for name in environment.capabilities}
    failures: dict[str, str] = {}
    # Seed by seed, because tasks of one seed often share a database that is costly to make.
    for seed, capability in product(range(SCENARIOS), environment.capabilities):
        try:
            scenarios[capability].add(environment.generate(capability, seed).scenario)
        except Exception as error:
            failures[environment.task_id(capability, seed)] = format_error(error)
    distinct = {capability: len(values) for capability, values in scenarios.items()}
    return distinct, failures


@dataclass(frozen=True, slots=True)
class Report:
    """The hashes and failures from the second process."""

    footprints: dict[str, dict[str, str]] = field(default_factory=dict)
    """Task id -> its footprint."""
    distinct: dict[str, int] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    crashed: str = ""
    """Last line of output of a process that failed before it could report."""


class SecondProcess:
    """A second process that makes and plays the sample's tasks at the same time as this one."""

    def __init__(self, sample: Sample) -> None:
        own = os.environ.get("PYTHONHASHSEED")
        search = os.pathsep.join(folder for folder in sys.path if folder)
        self.process = subprocess.Popen(
            # -P leaves out the working directory, whose files might have our packages' names.
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
        """Wait for the second process, and return its report."""
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
    """Make and play a sample's tasks in this process, and return the results as JSON."""
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
    """Print the observations of the sample that the first command line argument describes."""
    # Output of an environment must not mix with the JSON document.
    with redirect_stdout(sys.stderr):
        observations = observe_sample(Sample.model_validate_json(sys.argv[1]))
    print(json.dumps(observations))


if __name__ == "__main__":
    main()
