"""Faults of users: what the rules name, and whom they do not blame."""

import asyncio
from collections.abc import Sequence
from itertools import islice

import pytest

from envs.attribution.user_faults import find_user_fault
from envs.environment import Environment
from envs.episode import Episode, Termination
from envs.episode import play as play_locally
from envs.evaluation import Attempt, Setup, make_environment_user, play
from envs.players import LocalPlayer
from envs.registry import open_environment
from envs.shop.environment import Shop
from envs.task import TaskDefinition
from envs.users import STOP, User
from events.messages import Message
from ops.bench.attribution.__main__ import measure_exact, measure_fault
from ops.bench.attribution.faulty_user import FAULTS, FaultyUser

SHOP = Shop()
TASK = SHOP.generate("two_writes", 5)
OPENING = TASK.script.opening if TASK.script else ""


class Lines:
    """A user that says these lines, then hangs up."""

    def __init__(self, *lines: str) -> None:
        self.lines = lines

    def reply(self, messages: Sequence[Message]) -> Message:
        """The next one."""
        said = sum(message.role == "user" for message in messages)
        return Message(role="user", content=self.lines[said] if said < len(self.lines) else STOP)


def fault_of(user: User, task: TaskDefinition = TASK) -> str | None:
    """The rule that a user breaks while the oracle serves it."""
    episode = play_locally(Episode(SHOP, task), SHOP.oracle(task), user)
    fault = find_user_fault(SHOP, task, episode.messages)
    return None if fault is None else fault.rule


@pytest.mark.parametrize(("name", "count"), [("shop", 16), ("telecom", 5)])
def test_planted_faults_are_named_and_exact_users_are_not_blamed(name: str, count: int) -> None:
    environment: Environment = open_environment(name)
    tasks = list(islice(environment.tasks(), count))
    assert measure_exact(environment, tasks)["faults"] == 0
    figures = {fault: measure_fault(environment, tasks, fault, 1) for fault in FAULTS}
    assert bool(figures["tool"]["planted"]) is (environment.user_toolset is not None)
    for fault in ("other_value", "refusal", "early_end", "tool"):
        assert figures[fault]["found"] >= 0.85 * figures[fault]["planted"], (fault, figures)
    assert figures["secret"]["found"] >= 0.6 * figures["secret"]["planted"]


def test_a_user_may_say_it_in_other_words_and_bit_by_bit() -> None:
    street = next(a.arguments["street"] for a in TASK.criteria.gold_actions or () if
                  "street" in a.arguments)  # fmt: skip
    assert fault_of(Lines(f"{OPENING} Thanks a lot!", "yep, that is right", "sure, do it")) is None
    assert fault_of(Lines(OPENING, "Yes.", f"Yes - to {street.upper()}, as I wrote.")) is None


def test_a_user_who_corrects_the_agent_is_right() -> None:
    other = SHOP.generate("two_writes", 6)
    asked = Message(role="assistant", content="Confirm: cancel order O999?")
    messages = [
        Message(role="user", content=other.script.opening if other.script else ""),
        asked,
        Message(role="user", content="No, not that one."),
    ]
    assert find_user_fault(SHOP, other, messages) is None
    named = asked.model_copy(update={"content": f"Confirm: pay {_find_order(other)} as you said?"})
    fault = find_user_fault(SHOP, other, [messages[0], named, messages[2]])
    assert fault is not None
    assert (fault.rule, fault.place) == ("instruction", 2)


def _find_order(task: TaskDefinition) -> str:
    return next(
        str(action.arguments["order_id"])
        for action in task.criteria.gold_actions or ()
        if "order_id" in action.arguments
    )


def test_what_the_prefix_of_a_task_says_is_nobodys_fault() -> None:
    wrong = Message(role="user", content="It is order O987654.", sampled=False)
    played = wrong.model_copy(update={"sampled": True})
    assert find_user_fault(SHOP, TASK, [wrong]) is None
    assert find_user_fault(SHOP, TASK, [played]) is not None


def attempt(user: User, *, may_err: bool) -> Attempt:
    """One attempt of the oracle."""
    setup = Setup(
        SHOP,
        agent=lambda task, _: LocalPlayer(SHOP.oracle(task)),
        user=lambda task, _: LocalPlayer(user),
        user_may_err=may_err,
    )
    return asyncio.run(play(setup, TASK, 0))


def test_an_attempt_with_a_fault_of_the_user_is_not_judged_and_says_why() -> None:
    spoilt = attempt(FaultyUser(SHOP, TASK, "other_value", 0), may_err=True)
    assert (spoilt.termination, spoilt.grade, spoilt.reward) == (Termination.USER_ERROR, None, None)
    assert spoilt.reason.startswith("the user's fault (instruction), message 0: it tells ")
    exact = make_environment_user(SHOP)(TASK, 0)
    assert isinstance(exact, LocalPlayer)
    assert attempt(SHOP.user(TASK), may_err=True).success
