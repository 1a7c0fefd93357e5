"""The bank finds the kinds of task that a cheat wins, and says where it could not look."""

from collections.abc import Sequence
from typing import ClassVar

import pytest

from envs.cheating.trial import (
    Win,
    list_kinds,
    run_bank,
)
from envs.registry import open_environment
from envs.task import TaskDefinition
from envs.users import ScriptUser, User
from events.messages import Message
from tests.envs.cheating.cheap import Cheap
from tests.envs.mini import Mini

WAYS = {
    "number": "recite_numbers",
    "amount": "recite_amounts",
    "title": "recite_texts",
    "one_of_many": "recite_outputs",
    "usual": "recite_outputs",
    "listed": "look_up_and_repeat",
    "closing": "close",
    "hand_over": "hand_over",
    "argument": "fail",
    "loud": "write_and_undo",
    "removed": "copy",
}
"""Kind of `cheap` -> a cheater that wins it always."""


def test_each_kind_is_won_by_the_cheat_that_it_was_made_for() -> None:
    report = run_bank(Cheap(), Cheap.capabilities)
    assert report.failures == {}
    assert set(report.winnable) == set(WAYS), "all but the honest kind"
    for kind, cheater in WAYS.items():
        assert report.trials[kind].wins[cheater].wins == 20, kind
    assert report.trials["usual"].wins["recite_commonest_output"].wins > 10
    assert report.trials["argument"].wins["call_without_arguments"].wins == 20
    assert report.trials["honest"].best.wins <= 1


def test_the_winnable_kinds_are_named_with_the_best_cheater() -> None:
    winnable = run_bank(Mini(), list_kinds(Mini()), 6).winnable
    assert winnable["tell"] == Win("recite_numbers", 6, 6)
    assert winnable["cancel"].wins == 2, "one of three orders"


def test_kinds_of_constant_outcome_are_not_played() -> None:
    class Constant(Mini):
        constant: ClassVar[frozenset[str]] = frozenset({"tell"})

    assert list_kinds(Constant()) == ["cancel"]


def test_what_an_environment_raises_names_its_kind_and_spares_the_others() -> None:
    class Broken(Mini):
        def generate(self, capability: str, seed: int) -> TaskDefinition:
            if capability == "cancel" and seed == 50:
                raise ZeroDivisionError("by zero")
            return super().generate(capability, seed)

    report = run_bank(Broken(), Broken.capabilities, 4)
    assert report.failures == {"cancel": "ZeroDivisionError: by zero"}
    assert report.winnable["tell"].wins == 4


def test_what_a_user_raises_at_a_cheat_is_a_failure() -> None:
    class Deaf(ScriptUser):
        def reply(self, messages: Sequence[Message]) -> Message:
            if messages and "2999" in messages[-1].text:
                raise ValueError("so much")
            return super().reply(messages)

    class Fragile(Mini):
        def user(self, task: TaskDefinition) -> User:
            return Deaf(task)

    assert run_bank(Fragile(), ["tell"], 2).failures == {"tell": "ValueError: so much"}


def test_what_tools_raise_is_a_defect() -> None:
    (defect,) = run_bank(Mini(), ["cancel"], 2).trials["cancel"].defects
    assert "ZeroDivisionError" in defect


@pytest.mark.parametrize(
    ("wins", "tasks", "too_often", "doubtful"),
    [
        (0, 20, False, False),
        (1, 20, False, False),
        (2, 20, True, True),
        (4, 20, True, True),
        (5, 20, True, False),
        (10, 200, False, False),
        (11, 200, True, True),
        (1, 2, False, False),
        (2, 2, True, False),
    ],
)
def test_a_twentieth_may_be_won_and_one_task_in_any_case(
    wins: int, tasks: int, too_often: bool, doubtful: bool
) -> None:
    win = Win("close", wins, tasks)
    assert (win.is_too_often, win.is_doubtful) == (too_often, doubtful)


class Lucky(Mini):
    """Two of the first tasks have an output that many known tasks have, and no later one has."""

    capabilities: ClassVar[dict[str, str]] = {"tell": "says what an order costs"}

    def generate(self, capability: str, seed: int) -> TaskDefinition:
        made = super().generate(capability, seed)
        is_usual = seed in (3, 11) or (20 <= seed < 220 and seed % 2)
        output = "a usual word" if is_usual else f"word {seed}."
        criteria = made.criteria.model_copy(update={"outputs": (output,)})
        return made.model_copy(update={"criteria": criteria})


def test_who_was_lucky_with_a_few_tasks_plays_ten_times_as_many() -> None:
    trial = run_bank(Lucky(), ["tell"]).trials["tell"]
    assert trial.wins["recite_commonest_output"] == Win("recite_commonest_output", 0, 200)
    assert trial.wins["recite_numbers"].tasks == 20
    assert run_bank(Lucky(), ["tell"]).winnable == {}


@pytest.mark.long
@pytest.mark.parametrize("name", ["shop", "airline", "retail", "telecom", "toolsandbox"])
def test_no_cheat_wins_more_than_a_twentieth_of_a_built_in_kind(name: str) -> None:
    environment = open_environment(name)
    report = run_bank(environment, list_kinds(environment), tasks=200)
    assert report.failures == {}
    assert report.winnable == {}
