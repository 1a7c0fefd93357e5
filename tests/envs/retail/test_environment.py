"""Retail's generated tasks: solvable, not solved by accident, and the same every time."""

import json
import re
from collections import Counter

import pytest

from envs.retail.environment import WHO, Retail
from events.messages import Action, Message

RETAIL = Retail()


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
