"""Generated tasks of every built-in environment: solvable, lawful, and not solved by accident."""

from collections import Counter
from itertools import islice

import pytest

from envs.agents import Agent, NullAgent, RandomAgent
from envs.comparison.evidence import count_unseen_values, has_lookup
from envs.environment import Environment
from envs.episode import Episode, play
from envs.grading import Grade, get_version, grade
from envs.registry import open_environment
from envs.task import TaskDefinition

ENVIRONMENTS: dict[str, Environment] = {
    name: open_environment(name) for name in ("airline", "retail", "telecom", "toolsandbox")
}
KINDS = [(name, kind) for name, one in ENVIRONMENTS.items() for kind in one.capabilities]
TOLD_OUTPUTS = ("airline", "retail")
"""Environments in which values that nothing showed count against an agent."""


def played(environment: Environment, task: TaskDefinition, agent: Agent) -> tuple[Episode, Grade]:
    episode = play(Episode(environment, task), agent, environment.user(task))
    return episode, grade(environment, task, episode.messages, episode.termination)


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_the_oracle_solves_every_kind_and_keeps_the_policy(name: str, kind: str) -> None:
    environment = ENVIRONMENTS[name]
    for seed in range(12):
        task = environment.generate(kind, seed)
        episode, verdict = played(environment, task, environment.oracle(task))
        assert verdict.reward == 1, (task.id, verdict)
        assert episode.termination == "user_stop"
        assert (episode.errors, episode.user_errors, episode.defects) == (0, 0, [])
        assert environment.violations(task, episode.messages) == ()


@pytest.mark.parametrize(("name", "kind"), [one for one in KINDS if one[0] in TOLD_OUTPUTS])
def test_the_oracle_says_no_unseen_value_beside_the_outputs(name: str, kind: str) -> None:
    environment = ENVIRONMENTS[name]
    for seed in range(4):
        task = environment.generate(kind, seed)
        episode, _ = played(environment, task, environment.oracle(task))
        unseen = count_unseen_values(environment.policy(task), episode.messages)
        assert not task.criteria.outputs or unseen <= len(task.criteria.outputs)
        assert has_lookup(episode.messages, environment.lookups)
        assert get_version(task) == "2"


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_a_task_is_a_function_of_kind_and_seed(name: str, kind: str) -> None:
    environment = ENVIRONMENTS[name]
    tasks = [environment.generate(kind, seed) for seed in range(8)]
    assert tasks == [type(environment)().generate(kind, seed) for seed in range(8)]
    assert len({task.model_dump_json() for task in tasks}) == 8
    assert [environment.task(task.id) for task in tasks] == tasks


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_neither_doing_nothing_nor_chance_solves_tasks(name: str) -> None:
    environment, rewards = ENVIRONMENTS[name], Counter[str]()
    for task in islice(environment.tasks(), 80):
        agents: dict[str, Agent] = {
            "null": NullAgent(),
            "idle": environment.idle_agent(task),
            "random": RandomAgent(environment.schemas(task), task.seed),
        }
        for who, agent in agents.items():
            rewards[who] += played(environment, task, agent)[1].success is True
    assert (rewards["null"], rewards["idle"]) == (0, 0)
    assert rewards["random"] <= 4
