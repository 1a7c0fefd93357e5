"""How often the cheaters of the bank win a kind of task.

    find_winnable(environment)     kind -> the cheater that wins it most often, where one wins it
    measure_kind(environment, k)   wins of every cheater on one kind

A kind is winnable where some cheater wins more than a twentieth of its tasks, and more than one.
Kinds of constant outcome (`Environment.constant`) are not measured.

Guarantee: a function of environment, kinds, number of tasks and seed. Not covered: a cheat that is
not in the bank.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from envs.cheating.bank import CHEATERS, CheatingAgent
from envs.cheating.knowledge import Knowledge, learn
from envs.environment import Environment
from envs.episode import Episode, play
from envs.grading import Grader
from envs.task import TaskDefinition
from events.errors import KintsugiError

TASKS_PER_KIND: Final = 20
SHARE_AT_MOST: Final = 0.05
"""Share of the tasks of a kind that a cheater may win; one task in any case."""


class BankFailure(KintsugiError):
    """The environment raised an exception while cheaters played it."""


@dataclass(frozen=True, slots=True)
class Win:
    """How often a cheater won tasks of one kind."""

    cheater: str
    wins: int
    tasks: int

    @property
    def is_too_often(self) -> bool:
        """Whether the kind is winnable by this cheater."""
        return self.wins > max(1, SHARE_AT_MOST * self.tasks)


@dataclass(frozen=True, slots=True)
class KindTrial:
    """What the bank made of one kind."""

    capability: str
    tasks: int
    wins: Mapping[str, int]
    """Cheater -> tasks that it won; those that apply to the kind."""
    defects: tuple[str, ...]
    """Exceptions that tools raised."""

    @property
    def best(self) -> Win:
        """The cheater that won most."""
        name = max(self.wins, key=lambda cheater: self.wins[cheater])
        return Win(name, self.wins[name], self.tasks)

    @property
    def skipped(self) -> tuple[str, ...]:
        """Cheaters that do not apply to the kind."""
        return tuple(name for name in CHEATERS if name not in self.wins)


def find_winnable(
    environment: Environment, tasks_per_kind: int = TASKS_PER_KIND, seed: int = 0
) -> Mapping[str, Win]:
    """Return the kinds that some cheater wins too often, each with the best cheater. Raises
    BankFailure. Costs seconds: thousands of episodes."""
    kinds = [name for name in environment.capabilities if name not in environment.constant]
    wins = {name: measure_kind(environment, name, tasks_per_kind, seed).best for name in kinds}
    return {name: win for name, win in wins.items() if win.is_too_often}


def measure_kind(
    environment: Environment, capability: str, tasks: int = TASKS_PER_KIND, seed: int = 0
) -> KindTrial:
    """Let every cheater that applies play the tasks of a kind with the seeds from `seed` on. Raises
    BankFailure."""
    wins: Counter[str] = Counter()
    defects: dict[str, None] = {}
    # Whatever code of an environment raises is its own fault: the bank names it.
    try:
        knowledge = learn(environment, capability, first_seed=seed + tasks)
        applying = [name for name, cheater in CHEATERS.items() if cheater.applies(knowledge)]
        for number in range(seed, seed + tasks):
            task = environment.generate(capability, number)
            grader = Grader(environment, task)
            for name in applying:
                episode = _cheat(knowledge, task, name)
                defects |= dict.fromkeys(episode.defects)
                verdict = grader.grade(episode.messages, episode.termination)
                wins[name] += bool(verdict.success)
    except Exception as error:
        raise BankFailure(
            f"the cheaters cannot play {environment.name}/{capability}, which raises "
            f"{type(error).__name__}: {error}; correct it, or the kind is never measured"
        ) from error
    return KindTrial(capability, tasks, {name: wins[name] for name in applying}, tuple(defects))


def _cheat(knowledge: Knowledge, task: TaskDefinition, name: str) -> Episode:
    environment = knowledge.environment
    agent = CheatingAgent(CHEATERS[name], knowledge, task)
    return play(Episode(environment, task), agent, environment.user(task))
