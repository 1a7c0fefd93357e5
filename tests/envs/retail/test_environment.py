"""Retail's generated tasks: solvable, not solved by accident, and the same every time."""

import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from envs.agents import Agent, NullAgent, RandomAgent
from envs.episode import Episode, play
from envs.grading import Grade, grade
from envs.retail.environment import WHO, Retail
from envs.retail.kinds import KINDS
from envs.task import TaskDefinition
from events.messages import Action, Message

RETAIL = Retail()


def played(task: TaskDefinition, agent: Agent) -> tuple[Episode, Grade]:
    """A whole episode with the scripted user, and its grade."""
    episode = play(Episode(RETAIL, task), agent, RETAIL.user(task))
    return episode, grade(RETAIL, task, episode.messages, episode.termination)


@pytest.mark.parametrize("capability", KINDS)
def test_the_oracle_solves_every_kind_and_keeps_the_policy(capability: str) -> None:
    for seed in range(24):
        task = RETAIL.generate(capability, seed)
        episode, verdict = played(task, RETAIL.oracle(task))
        assert verdict.reward == 1, (task.id, verdict)
        assert episode.termination == "user_stop"
        assert (episode.errors, episode.defects) == (0, [])
        assert RETAIL.violations(task, episode.messages) == ()


def test_neither_doing_nothing_nor_chance_solves_tasks() -> None:
    verdicts = Counter[str]()
    for task in RETAIL.tasks():
        for name, agent in (
            ("null", NullAgent()),
            ("random", RandomAgent(RETAIL.schemas(task), task.seed)),
        ):
            verdicts[name] += int(played(task, agent)[1].reward or 0)
    assert (verdicts["null"], verdicts["random"]) == (0, 0)


@pytest.mark.parametrize("capability", KINDS)
def test_a_task_is_a_function_of_kind_and_seed(capability: str) -> None:
    tasks = [RETAIL.generate(capability, seed) for seed in range(12)]
    assert tasks == [Retail().generate(capability, seed) for seed in range(12)]
    assert len({task.criteria.model_dump_json() for task in tasks}) == 12
    assert [RETAIL.task(task.id) for task in tasks] == tasks


def test_every_seed_has_a_customer_for_every_kind() -> None:
    for seed in range(1_000, 1_100):
        for capability in KINDS:
            RETAIL.generate(capability, seed)


@pytest.mark.parametrize(
    ("capability", "tools"),
    [
        ("status_condition", {"cancel_pending_order", "return_delivered_order_items"}),
        ("balance_condition", {"cancel_pending_order", "modify_pending_order_payment"}),
    ],
)
def test_a_condition_falls_either_way(capability: str, tools: set[str]) -> None:
    tasks = [RETAIL.generate(capability, seed) for seed in range(24)]
    assert {(task.criteria.gold_actions or ())[-1].name for task in tasks} == tools


def test_a_second_choice_is_taken_only_where_the_first_is_gone() -> None:
    available: Counter[bool] = Counter()
    for seed in range(24):
        task = RETAIL.generate("fallback_item", seed)
        exchange = (task.criteria.gold_actions or ())[-1]
        found = RETAIL.toolset(RETAIL.reset(task)).call(
            "get_item_details", {"item_id": exchange.arguments["new_item_ids"][0]}
        )
        options = json.loads(found.content)["options"]
        wanted = ", ".join(f"{name} {value}" for name, value in options.items())
        first, second = task.scenario.reason_for_call.split("Only if that is out of stock")
        assert wanted in first or wanted in second
        available[wanted in first] += 1
    assert set(available) == {True, False}


def test_the_customer_says_who_they_are_when_they_are_asked() -> None:
    openings = Counter[bool]()
    for seed in range(24):
        task = RETAIL.generate("cancel", seed)
        user, first = RETAIL.user(task), (task.criteria.gold_actions or ())[0]
        talk = [user.reply([])]
        openings[_names(talk[0], first)] += 1
        talk.append(Message(role="assistant", content=WHO))
        assert _names(user.reply(talk), first)
    assert set(openings) == {True, False}


def _names(message: Message, authentication: Action) -> bool:
    """Whether the user says what the agent must look them up by."""
    return all(value in message.text for value in authentication.arguments.values())


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        ("Shall I cancel order #W1?", "Yes, please."),
        ("Please confirm the details above (yes/no).", "Yes, please."),
        ("Could you confirm your email address?", "zip|@"),
        ("Before we proceed, may I have your e-mail address?", "zip|@"),
        ("You will get an e-mail. Do you want to go ahead?", "Yes, please."),
        ("May I ask for the reason?", "I no longer need it|I ordered it by mistake"),
        ("What is the reason for the cancellation?", "I no longer need it|I ordered it by mistake"),
        ("It is cancelled. Can I help you with anything else?", "###STOP###"),
        ("Is there anything else in this order?", "No, that is all.$"),
        ("YOU ARE BEING TRANSFERRED TO A HUMAN AGENT. PLEASE HOLD ON.", "###STOP###"),
    ],
)
def test_the_scripted_customer_understands_what_agents_say(asked: str, answered: str) -> None:
    task = RETAIL.generate("cancel", 1)
    talk = [Message(role="user", content="Hello."), Message(role="assistant", content=asked)]
    assert re.search(answered, RETAIL.user(task).reply(talk).text)


def bare(parameters: Any) -> Any:
    """A schema without words: names, types and what is required."""
    if isinstance(parameters, Mapping):
        return {
            key: {name: bare(item) for name, item in value.items()}
            if key == "properties"
            else bare(value)
            for key, value in parameters.items()
            if key not in ("description", "title")
        }
    return parameters


@pytest.mark.benchmarks
def test_the_tools_have_the_names_and_parameters_of_the_original(benchmarks: Path) -> None:
    original = Retail(benchmarks).benchmark.schemas
    theirs = {one["function"]["name"]: one["function"] for one in original}
    ours = {one["function"]["name"]: one["function"] for one in Retail.toolset.schemas()}
    assert set(ours) == set(theirs)
    for name, function in ours.items():
        mine, other = bare(function["parameters"]), bare(theirs[name]["parameters"])
        assert mine.get("required", []) == other.get("required", []), name
        assert mine["properties"] == other["properties"], name
        assert list(mine["properties"]) == list(other["properties"]), name
        assert function["description"] != theirs[name]["description"], name


@pytest.mark.benchmarks
def test_the_kinds_of_the_tools_are_the_originals(benchmarks: Path) -> None:
    raw = json.loads((benchmarks / "tau2" / "retail" / "tools.json").read_text())
    assert {name: tool.kind for name, tool in Retail.toolset.tools().items()} == raw["tool_types"]
