"""The exported scenarios of the benchmarks folder: gold, doing nothing, and the schemas."""

import json
from collections import defaultdict
from pathlib import Path
from statistics import mean

import pytest

from envs.episode import Episode, play
from envs.grading import grade
from envs.milestones.graph import INSUFFICIENT
from envs.toolsandbox.device.tools import ToolSandboxTools
from envs.toolsandbox.environment import ToolSandbox

pytestmark = pytest.mark.benchmarks

OUT_OF_REACH = {
    "find_temperature_f_with_location_and_time_diff_low_battery_mode_multiple_user_turn": 0.6
}
"""Its milestones ask for a call of unit_conversion, which its tool_allow_list does not have."""


def test_the_gold_of_every_scenario_that_can_be_fulfilled_is_worth_1(benchmarks: Path) -> None:
    environment = ToolSandbox(benchmarks)
    rewards = {}
    for task in environment.tasks("scenarios"):
        episode = play(Episode(environment, task), environment.oracle(task), environment.user(task))
        assert episode.defects == []
        name = task.id.rpartition("/")[2]
        rewards[name] = grade(environment, task, episode.messages, episode.termination).reward
    assert len(rewards) == 81
    assert {name: reward for name, reward in rewards.items() if reward != 1} == pytest.approx(
        OUT_OF_REACH
    )
    off = [name for name in rewards if "cellular_off" in name or "wifi_off" in name]
    assert len(off) > 10


def test_doing_nothing_is_nearly_right_where_nothing_can_be_done_and_worth_0_elsewhere(
    benchmarks: Path,
) -> None:
    environment = ToolSandbox(benchmarks)
    rewards = defaultdict(list)
    for task in environment.tasks("scenarios"):
        agent = environment.idle_agent(task)
        episode = play(Episode(environment, task), agent, environment.user(task))
        verdict = grade(environment, task, episode.messages, episode.termination)
        rewards[INSUFFICIENT in environment.categories(task)].append(verdict.reward or 0.0)
    assert (len(rewards[True]), len(rewards[False])) == (21, 60)
    assert mean(rewards[True]) == pytest.approx(0.97, abs=0.02)
    assert mean(rewards[False]) == 0.0
    assert sum(reward == 1 for reward in rewards[True]) == 19


def test_names_types_and_required_arguments_are_the_published_ones(benchmarks: Path) -> None:
    tools = json.loads((benchmarks / "toolsandbox" / "tools.json").read_text())
    published = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    del published["end_conversation"]
    ours = {
        schema["function"]["name"]: schema["function"]["parameters"]
        for schema in ToolSandboxTools.schemas()
    }
    assert ours.keys() == published.keys()
    for name, parameters in ours.items():
        types = {k: v["type"] for k, v in published[name]["properties"].items()}
        assert {k: v["type"] for k, v in parameters["properties"].items()} == types
        assert parameters["required"] == published[name]["required"]
