"""Measure how often the cheaters of the bank win a kind of task.

    report = run_bank(environment, list_kinds(environment))
    report.winnable     kind -> the cheater that wins it most often, where one wins it
    report.failures     the kinds that could not be measured

A kind is winnable if some cheater wins more than a twentieth of its tasks, and more than one task.
If it wins 2 to 4 of 20, its result on 200 other tasks decides. Kinds of constant outcome
(`Environment.constant`) are not measured. Guarantee: the report depends only on environment, kinds,
number of tasks and seed.
"""

from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from envs.cheating.bank import CHEATERS, Cheater, CheaterAgent
from envs.cheating.knowledge import OTHER_TASKS, Knowledge, learn
from envs.environment import Environment
from envs.episode import Episode, play
from envs.footprint import format_error
from envs.grading import Grader
from envs.task import TaskDefinition

TASKS_PER_KIND: Final = 20
SHARE_AT_MOST: Final = 0.05
"""Share of a kind's tasks that a cheater may win. One task is always allowed."""

SECOND_LOOK: Final = 10
"""Factor of the number of further tasks that a cheater plays if its wins may be due to luck."""
_CERTAIN: Final = 0.25
"""Share of won tasks from which on luck is no explanation for twenty tasks."""


@dataclass(frozen=True, slots=True)
class Win:
    """How often a cheater won tasks of one kind."""

    cheater: str
    wins: int
    tasks: int

    @property
    def most(self) -> int:
        """Number of the tasks that a cheater may win."""
        return max(1, int(SHARE_AT_MOST * self.tasks))

    @property
    def is_too_often(self) -> bool:
        """Whether this cheater wins the kind too often."""
        return self.wins > self.most

    @property
    def is_doubtful(self) -> bool:
        """Whether it wins too often, but so rarely that luck may explain it."""
        return self.is_too_often and self.wins < _CERTAIN * self.tasks


@dataclass(frozen=True, slots=True)
class KindTrial:
    """The bank's results on one kind."""

    wins: Mapping[str, Win]
    """Cheater -> its wins, for the cheaters that can be applied to the kind."""
    defects: tuple[str, ...]

    @property
    def best(self) -> Win:
        """The result of the cheater that won the largest share."""
        return max(self.wins.values(), key=lambda win: (win.is_too_often, win.wins / win.tasks))

    @property
    def inapplicable(self) -> tuple[str, ...]:
        """Names of cheaters that cannot be applied to the kind."""
        return tuple(name for name in CHEATERS if name not in self.wins)


@dataclass(frozen=True, slots=True)
class BankReport:
    """The bank's results on an environment."""

    trials: Mapping[str, KindTrial]
    failures: Mapping[str, str]
    """Kind that could not be measured -> the text of the exception."""

    @property
    def winnable(self) -> Mapping[str, Win]:
        """The kinds that a cheater wins too often, each with the result of its best cheater."""
        wins = {capability: trial.best for capability, trial in self.trials.items()}
        return {capability: win for capability, win in wins.items() if win.is_too_often}


def list_kinds(environment: Environment) -> list[str]:
    """Return the kinds that the cheaters play: all except those with a constant outcome."""
    return [name for name in environment.capabilities if name not in environment.constant]


def run_bank(
    environment: Environment,
    capabilities: Iterable[str],
    tasks: int = TASKS_PER_KIND,
    seed: int = 0,
) -> BankReport:
    """Let all applicable cheaters play `tasks` tasks of each kind, with seeds from `seed` on. An
    exception of the environment becomes a failure of the kind in the report."""
    running = {name: _measure(environment, name, tasks, seed) for name in capabilities}
    trials: dict[str, KindTrial] = {}
    failures: dict[str, str] = {}
    # Seed by seed, because tasks of one seed often share a state that is costly to make.
    while running:
        for name, steps in tuple(running.items()):
            try:
                next(steps)
                continue
            except StopIteration as end:
                trials[name] = end.value
            # An environment's code may raise anything; the report names the kind.
            except Exception as error:
                failures[name] = format_error(error)
            del running[name]
    return BankReport(trials, failures)


def _measure(
    environment: Environment, capability: str, tasks: int, seed: int
) -> Generator[None, None, KindTrial]:
    knowledge = yield from learn(environment, capability, first_seed=seed + tasks)
    applying = [name for name, cheater in CHEATERS.items() if cheater.applies(knowledge)]
    seeds = range(seed, seed + tasks)
    wins, defects = yield from _play(knowledge, capability, applying, seeds)
    doubtful = [name for name, win in wins.items() if win.is_doubtful]
    # These are tasks that the cheaters do not know.
    first = seed + tasks + OTHER_TASKS
    seeds = range(first, first + SECOND_LOOK * tasks if doubtful else first)
    again, more = yield from _play(knowledge, capability, doubtful, seeds)
    return KindTrial(wins | again, tuple(defects | more))


def _play(
    knowledge: Knowledge, capability: str, cheaters: Sequence[str], seeds: Sequence[int]
) -> Generator[None, None, tuple[dict[str, Win], dict[str, None]]]:
    """Let the cheaters play the tasks of these seeds, and yield after each seed. Return their wins
    and the exceptions that tools should not have raised."""
    environment, won, defects = knowledge.environment, Counter[str](), dict[str, None]()
    for seed in seeds:
        task = environment.generate(capability, seed)
        grader = Grader(environment, task)
        for name in cheaters:
            episode = _cheat(knowledge, task, name)
            defects |= dict.fromkeys(episode.defects)
            won[name] += _wins_task(episode, grader, CHEATERS[name])
        yield
    return {name: Win(name, won[name], len(seeds)) for name in cheaters}, defects


def _cheat(knowledge: Knowledge, task: TaskDefinition, name: str) -> Episode:
    environment = knowledge.environment
    agent = CheaterAgent(CHEATERS[name], knowledge, task)
    return play(Episode(environment, task), agent, environment.user(task))


def _wins_task(episode: Episode, grader: Grader, cheater: Cheater) -> bool:
    if not grader.grade(episode.messages, episode.termination).success:
        return False
    at_first = grader.environment.reset(episode.task)
    return not cheater.restores or episode.database.digest() == at_first.digest()
