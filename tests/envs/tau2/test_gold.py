"""The gold actions of real tasks, through whole episodes."""

from pathlib import Path

import pytest

from envs.agents import Agent, NullAgent
from envs.airline.environment import Airline
from envs.environment import Environment
from envs.grading import get_version
from envs.retail.environment import Retail
from envs.task import GENERATED, TaskDefinition
from envs.tau2.gold import play_gold
from envs.telecom.environment import Telecom
from tests.envs.tau2.files import write_folder


def test_a_part_that_needs_a_judge_is_never_counted_as_one(tmp_path: Path) -> None:
    report = play_gold(Retail(write_folder(tmp_path)))
    assert (report.tasks, report.reward_one) == (3, 2)
    assert (report.unevaluated, report.failed) == ({"NL_ASSERTION": ["retail/1"]}, [])


class Idle(Retail):
    """Whose scripted agent does nothing."""

    def oracle(self, task: TaskDefinition) -> Agent:
        """Somebody who only talks."""
        return NullAgent()


def test_a_task_that_is_not_solved_has_failed_though_it_needs_a_judge(tmp_path: Path) -> None:
    report = play_gold(Idle(write_folder(tmp_path)))
    assert report.failed == ["retail/0", "retail/1", "retail/2"]
    assert (report.tasks, report.reward_one, report.unevaluated) == (3, 0, {})


@pytest.mark.benchmarks
@pytest.mark.parametrize(
    ("split", "tasks", "whole", "judged"),
    [("base", 114, 74, 40), ("train", 74, 45, 29), ("test", 40, 29, 11)],
)
def test_every_real_task_is_worth_one_as_far_as_it_is_evaluated(
    benchmarks: Path, split: str, tasks: int, whole: int, judged: int
) -> None:
    report = play_gold(Retail(benchmarks), split)
    assert (report.tasks, report.reward_one, report.failed) == (tasks, whole, [])
    assert {part: len(ids) for part, ids in report.unevaluated.items()} == {"NL_ASSERTION": judged}


@pytest.mark.benchmarks
@pytest.mark.parametrize("environment", [Retail, Airline, Telecom])
def test_no_real_task_has_rules_beyond_its_benchmark(
    benchmarks: Path, environment: type[Environment]
) -> None:
    real = environment(benchmarks)
    for split in real.splits.keys() - {GENERATED}:
        assert {get_version(task) for task in real.tasks(split)} == {"1"}
