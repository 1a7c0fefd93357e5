"""Airline's generated tasks: solvable, lawful, not solved by accident, the same every time."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envs.agents import Agent
from envs.airline.environment import WHO, Airline
from envs.airline.kinds import KINDS
from envs.airline.policy import TRANSFER
from envs.episode import Episode, play
from envs.grading import Grade, grade
from envs.task import TaskDefinition
from envs.tau2.gold import play_gold
from envs.tau2.golden import replay
from events.messages import Action, Message
from tests.envs.airline.rules import Rules
from tests.envs.mini import Reciting, called, said

AIRLINE = Airline()


def played(task: TaskDefinition, agent: Agent) -> tuple[Episode, Grade]:
    """A whole episode with the scripted user, and its grade."""
    episode = play(Episode(AIRLINE, task), agent, AIRLINE.user(task))
    return episode, grade(AIRLINE, task, episode.messages, episode.termination)


def gold(capability: str, seed: int) -> tuple[Action, ...]:
    """The gold actions of a task."""
    return AIRLINE.generate(capability, seed).criteria.gold_actions or ()


@pytest.mark.parametrize("capability", KINDS)
def test_gold_actions_begin_with_the_users_record_and_break_no_rule(capability: str) -> None:
    for seed in range(24):
        task = AIRLINE.generate(capability, seed)
        actions = task.criteria.gold_actions or ()
        assert actions[0].name == "get_user_details"
        state = AIRLINE.reset(task)
        rules = Rules(state, actions[0].arguments["user_id"], task.scenario.reason_for_call)
        for action in actions:
            assert rules.broken(action) == [], (task.id, action)
            assert not AIRLINE.toolset(state).call(action.name, action.arguments).error


def test_handing_over_before_the_reservation_was_read_solves_nothing() -> None:
    for seed in range(5):
        task = AIRLINE.generate("hand_over", seed)
        user, *_ = task.criteria.gold_actions or ()
        agent = Reciting(
            called(user.name, **user.arguments),
            called("transfer_to_human_agents", summary="They need a person."),
            said(TRANSFER),
        )
        assert not played(task, agent)[1].success


@pytest.mark.parametrize("capability", KINDS)
def test_to_speak_of_a_transfer_solves_nothing(capability: str) -> None:
    for seed in range(3):
        assert played(AIRLINE.generate(capability, seed), Reciting(said(TRANSFER)))[1].reward == 0


def test_some_airports_never_have_a_direct_flight_between_them() -> None:
    # The routes that are drawn first with this seed join six airports, each with each.
    assert AIRLINE.generate("book_one_stop", 239).capability == "book_one_stop"


@pytest.mark.parametrize(
    ("capability", "place", "tools"),
    [
        (
            "price_condition",
            -1,
            {"update_reservation_flights", "update_reservation_baggages"},
        ),
        ("delayed_flight", -2, {"cancel_reservation", "update_reservation_flights"}),
    ],
)
def test_a_condition_falls_either_way(capability: str, place: int, tools: set[str]) -> None:
    assert {gold(capability, seed)[place].name for seed in range(24)} == tools


def test_a_second_choice_is_taken_only_where_the_first_is_full() -> None:
    first_taken = Counter[bool]()
    for seed in range(24):
        task = AIRLINE.generate("second_choice", seed)
        booked = gold("second_choice", seed)[-1].arguments
        taken = AIRLINE.reset(task)["flights"][booked["flights"][0]["flight_number"]]
        first, second = task.scenario.reason_for_call.split("Only if")
        leaves = taken["scheduled_departure_time_est"][:5]
        assert (leaves in first) != (leaves in second)
        first_taken[leaves in first] += 1
    assert set(first_taken) == {True, False}


def test_the_customer_tells_their_id_when_they_are_asked() -> None:
    openings = Counter[bool]()
    for seed in range(24):
        task = AIRLINE.generate("cancel", seed)
        user_id = gold("cancel", seed)[0].arguments["user_id"]
        user = AIRLINE.user(task)
        talk = [user.reply([])]
        openings[user_id in talk[0].text] += 1
        talk.append(Message(role="assistant", content=WHO))
        assert user_id in user.reply(talk).text
    assert set(openings) == {True, False}


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        ("Shall I book this flight, without insurance?", "I do not want travel insurance."),
        ("Would you like to add travel insurance?", "I do not want travel insurance."),
        ("How many checked bags do you have?", r"We have \w+ checked bags? in all."),
        ("Insurance: no. Bags: 0. Do you confirm (yes/no)?", "Yes, please."),
        ("Shall I book it?", "Yes, please."),
        ("Could you provide your user ID?", r"My user id is \w+\."),
        ("It is booked. Can I help you with anything else?", "###STOP###"),
        ("Is there anything else before I book?", "No, that is all.$"),
        ("YOU ARE BEING TRANSFERRED TO A HUMAN AGENT. PLEASE HOLD ON.", "###STOP###"),
    ],
)
def test_the_scripted_customer_understands_what_agents_say(asked: str, answered: str) -> None:
    tasks = (AIRLINE.generate("book", seed) for seed in range(24))
    task = next(one for one in tasks if "without travel insurance" in one.scenario.reason_for_call)
    talk = [Message(role="user", content="Hello."), Message(role="assistant", content=asked)]
    assert re.search(answered, AIRLINE.user(task).reply(talk).text)


@pytest.mark.benchmarks
def test_every_real_task_is_worth_one(benchmarks: Path) -> None:
    report = play_gold(Airline(benchmarks))
    assert (report.tasks, report.reward_one, report.failed) == (50, 50, [])


@pytest.mark.benchmarks
def test_what_real_agents_saw_is_what_the_tools_answer(benchmarks: Path) -> None:
    lines = []
    for path in sorted((benchmarks / "tau2_simulations").glob("*airline*.json")):
        for simulation in json.loads(path.read_text())["simulations"]:
            lines.append(json.dumps({"calls": list(_recorded(simulation["messages"]))}))
    found = replay(Airline(benchmarks), lines)
    assert found.mismatches == []
    assert found.calls > 1_000


def _recorded(messages: list[Any]) -> Iterator[dict[str, Any]]:
    """The calls of a simulation with their answers, paired by position."""
    waiting: list[Any] = []
    for message in messages:
        if message["role"] == "assistant":
            waiting = list(message.get("tool_calls") or ())
        elif message["role"] == "tool":
            call = waiting.pop(0)
            yield {
                "name": call["name"],
                "arguments": call["arguments"],
                "output": message["content"],
                # One of the files has no flags.
                "error": message["content"].startswith("Error: "),
            }
