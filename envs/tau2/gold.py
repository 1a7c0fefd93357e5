"""Play the gold actions of real tasks through whole episodes, and grade them.

A scripted agent makes the calls, asks before each write and says the outputs; a scripted user
agrees. A reward below 1 shows a mistake in tools, turn protocol, evaluation or database. Guarantee:
a part that needs a judge is named as unevaluated and never counted as 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from envs.episode import Episode, play
from envs.grading import Grade, grade
from envs.task import TaskDefinition
from envs.tau2.benchmark import BASE
from envs.tau2.environment import Tau2Environment


@dataclass(slots=True)
class GoldReport:
    """Counts of the results of a split's tasks."""

    tasks: int = 0
    reward_one: int = 0
    unevaluated: dict[str, list[str]] = field(default_factory=dict)
    """Part of the reward that needs a judge -> tasks whose other parts are all 1."""
    failed: list[str] = field(default_factory=list)


def play_gold(environment: Tau2Environment, split: str = BASE, *, solo: bool = False) -> GoldReport:
    """Play and grade a split; `solo`: without a user. Raise UnknownTask, InvalidBenchmark."""
    report = GoldReport()
    for task in environment.tasks(environment.solo_split(split) if solo else split):
        _count(report, task, _play_task(environment, task))
    return report


def _play_task(environment: Tau2Environment, task: TaskDefinition) -> Grade:
    episode = Episode(environment, task)
    play(episode, environment.oracle(task), environment.user(task))
    return grade(environment, task, episode.messages, episode.termination)


def _count(report: GoldReport, task: TaskDefinition, verdict: Grade) -> None:
    report.tasks += 1
    if verdict.reward == 1:
        report.reward_one += 1
    elif verdict.reward is None:
        _note_open_parts(report, task, verdict.open_parts)
    else:
        report.failed.append(task.id)


def _note_open_parts(report: GoldReport, task: TaskDefinition, parts: Sequence[str]) -> None:
    for part in parts:
        report.unevaluated.setdefault(part, []).append(task.id)
