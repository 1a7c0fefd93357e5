"""How a policy does on held-out tasks, and what every figure is read beside: doing nothing.

Every capability has the same number of tasks, tried as often as pass^k asks; all policies of a run
meet the same tasks with the same seeds, so what differs between two of them is the policies.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from daemon.engine.policy import Policy
from daemon.solver.sampling.local import Attempt, InProcess
from envs.environment import Environment
from envs.evaluation import do_nothing, episode_seed
from envs.task import TaskDefinition

Outcomes = Mapping[str, Mapping[str, Sequence[bool]]]
"""Capability -> task -> whether each trial passed."""


def generate_holdout(
    environment: Environment, capabilities: Iterable[str], first: int, count: int
) -> list[TaskDefinition]:
    """`count` tasks of each capability, with seeds from `first` on."""
    return [
        environment.generate(capability, seed)
        for capability in capabilities
        for seed in range(first, first + count)
    ]


def evaluate(
    player: InProcess,
    environment: Environment,
    policy: Policy,
    tasks: Sequence[TaskDefinition],
    trials: int,
    seed: int,
) -> Outcomes:
    """Play every task so many times."""
    outcomes: dict[str, dict[str, list[bool]]] = {}
    for task in tasks:
        outcomes.setdefault(task.capability, {})[task.id] = [False] * trials
    for rollout in player.play(environment, _attempts(tasks, trials, seed), policy):
        task = rollout.attempt.task
        trial = int(rollout.attempt.rollout.rpartition("/")[2])
        outcomes[task.capability][task.id][trial] = bool(rollout.grade.success)
    return outcomes


def _attempts(tasks: Sequence[TaskDefinition], trials: int, seed: int) -> Iterator[Attempt]:
    for task in tasks:
        for trial in range(trials):
            yield Attempt(
                task=task,
                group=task.id,
                seed=episode_seed(seed, task.id, trial),
                rollout=f"{task.id}/{trial}",
            )


def passive(environment: Environment, tasks: Sequence[TaskDefinition], trials: int) -> Outcomes:
    """The same of an agent that only talks; it does the same in every trial."""
    outcomes: dict[str, dict[str, list[bool]]] = {}
    for task in tasks:
        passed = bool(do_nothing(environment, task).success)
        outcomes.setdefault(task.capability, {})[task.id] = [passed] * trials
    return outcomes
