"""Whole episodes of bfcl over a small folder, and both verdicts on them."""

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from envs.agents import Agent, NullAgent
from envs.bfcl.environment import Bfcl
from envs.bfcl.tools import BfclTools
from envs.bfcl.verdict import mistakes
from envs.endpoint import Endpoint
from envs.episode import Episode, Party, Termination, play
from envs.grading import Grade, grade
from envs.players import ModelAgent
from events.messages import Message
from tests.envs.mini import Reciting, called, calls, heard, said
from tests.envs.model_server import ModelServer
from tests.envs.model_server import said as answered

pytestmark = pytest.mark.usefixtures("classes")

LS = called("ls")
MOVED = called("mv", source="notes.txt", destination="old")
MEAN = called("mean", numbers=[2, 4])
LOST = called("mv", source="notes.txt", destination="lost.txt")
BROKEN = calls(("ls", "a=False"))
I_SEE = said("I see.")

NO_MOVE = """turn 1: no call gave '{"result": "\\'notes.txt\\' moved to \\'old/notes.txt\\'"}'"""
NO_MEAN = """turn 1: no call gave '{"result": 3.0}'"""

RIGHT = (LS, I_SEE, MOVED, MEAN, I_SEE)


def played(bfcl: Bfcl, split: str, agent: Agent) -> tuple[Episode, Grade]:
    """The agent's episode of the split's one case, and its verdict."""
    task = bfcl.task(f"bfcl/{split}/7")
    episode = play(Episode(bfcl, task), agent, bfcl.user(task))
    return episode, grade(bfcl, task, episode.messages, episode.termination)


def verdict(bfcl: Bfcl, split: str, *messages: Message) -> Grade:
    """That on an agent that says these messages, and its last one again and again."""
    return played(bfcl, split, Reciting(*messages))[1]


@pytest.mark.parametrize("split", ["base", "miss_func", "miss_param", "long_context"])
def test_the_oracle_wins_and_whoever_does_nothing_loses(bfcl: Bfcl, split: str) -> None:
    episode, won = played(bfcl, split, bfcl.oracle(bfcl.task(f"bfcl/{split}/7")))
    assert (episode.termination, episode.errors) == (Termination.USER_STOP, 0)
    assert won.parts == {"TURNS": 1.0, "ABSTENTION": 1.0}
    _, lost = played(bfcl, split, NullAgent())
    assert (lost.success, lost.violations) == (False, ("turn 0 made no call",))


@pytest.mark.parametrize(
    ("messages", "wrong"),
    [
        (RIGHT, ()),
        ((LS, LS, I_SEE, MOVED, MEAN, I_SEE), ()),
        ((LS, MEAN, I_SEE, MOVED, I_SEE), ()),
        ((LS, I_SEE, MEAN, called("paint"), MOVED, I_SEE), ()),
        ((LS, MOVED, MEAN, I_SEE), ("turn 0: GorillaFileSystem.root is not as expected",)),
        ((LS, I_SEE, I_SEE), ("turn 1 made no call",)),
        ((LS, I_SEE, BROKEN, I_SEE), ("turn 1 made no call",)),
        ((LS, I_SEE, MOVED, I_SEE), (NO_MEAN,)),
        (
            (LS, I_SEE, LOST, I_SEE),
            (
                "turn 1: GorillaFileSystem.root is not as expected",
                NO_MOVE,
                NO_MEAN,
            ),
        ),
        ((LS, said("###STOP###")), ("the conversation ended after 1 of 2 turns",)),
    ],
)
def test_each_turn_is_checked_by_calls_state_and_results(
    bfcl: Bfcl, messages: tuple[Message, ...], wrong: tuple[str, ...]
) -> None:
    found = verdict(bfcl, "base", *messages)
    assert found.violations == wrong
    assert found.parts["TURNS"] == float(not wrong)
    assert found.parts["ABSTENTION"] == 1.0


def test_a_result_counts_as_often_as_the_gold_calls_give_it(bfcl: Bfcl) -> None:
    task, case = bfcl.task("bfcl/base/7"), bfcl.case("bfcl/base/7")
    look, move = case.turns
    doubled = replace(case, turns=(replace(look, gold=look.gold * 2), move))

    def found(*messages: Message) -> list[str]:
        episode, _ = played(bfcl, "base", Reciting(*messages))
        return list(mistakes(doubled, episode.messages, lambda: BfclTools(bfcl.reset(task))))

    (lacking,) = found(*RIGHT)
    assert lacking.startswith("turn 0: no call gave")
    assert found(LS, *RIGHT) == []


@pytest.mark.parametrize("split", ["miss_func", "miss_param"])
def test_a_needless_call_fails_the_strict_verdict_alone(bfcl: Bfcl, split: str) -> None:
    found = verdict(bfcl, split, LS, I_SEE, LS, I_SEE, MOVED, MEAN, I_SEE)
    assert found.parts == {"TURNS": 1.0, "ABSTENTION": 0.0}
    assert found.success is False
    assert found.violations == ("turn 1 calls ls, but what it needs was not there",)
    early = verdict(bfcl, split, LS, I_SEE, MOVED, MEAN, I_SEE, LS, I_SEE)
    assert early.parts == {"TURNS": 1.0, "ABSTENTION": 0.0}, "a held-out tool can be called"


def test_what_the_transcript_says_of_results_is_not_believed(bfcl: Bfcl) -> None:
    task = bfcl.task("bfcl/base/7")
    result = Message(role="tool", content='{"result": 3.0}')
    lied = [heard("1"), LS, result, I_SEE, heard("2"), MOVED, result, I_SEE, heard("###STOP###")]
    assert grade(bfcl, task, lied, "user_stop").parts["TURNS"] == 0.0
    cut = [heard("1"), LS, I_SEE, heard("2"), MOVED, MEAN]
    assert grade(bfcl, task, cut, "user_stop").success is True
    assert grade(bfcl, task, cut, "max_steps").success is False


@pytest.mark.parametrize(("rounds", "ending"), [(20, "user_stop"), (21, "max_steps")])
def test_more_than_twenty_rounds_in_a_turn_end_the_case(
    bfcl: Bfcl, rounds: int, ending: str
) -> None:
    agent = Reciting(*[LS] * 20, I_SEE, *[LS] * (rounds - 2), MOVED, MEAN, I_SEE)
    episode, found = played(bfcl, "base", agent)
    assert episode.termination == ending
    assert found.success is (rounds == 20)
    if rounds == 21:
        assert episode.reason == "21 messages with calls in one turn"


def test_a_model_is_sent_the_tools_of_its_turn(bfcl: Bfcl) -> None:
    task = bfcl.task("bfcl/miss_func/7")

    async def talk(url: str) -> None:
        episode = Episode(bfcl, task)
        user = bfcl.user(task)
        async with Endpoint(url, "small") as endpoint:
            agent = ModelAgent(endpoint, partial(bfcl.select_schemas, task), 0)
            while episode.turn is not None:
                view = episode.view(episode.turn)
                is_agent = episode.turn is Party.AGENT
                episode.receive(await agent.reply(view) if is_agent else user.reply(view))

    with ModelServer(lambda _: answered("I cannot.")) as server:
        asyncio.run(talk(server.url))
    shown = [_tools(request) for request in server.requests]
    assert shown == [["ls", "mean"], ["ls", "mean"], ["ls", "mv", "mean"]]


def _tools(request: dict[str, Any]) -> list[str]:
    return [tool["function"]["name"] for tool in request["tools"]]


def test_failed_calls_end_nothing(bfcl: Bfcl) -> None:
    wrong = calls(*[("paint", {})] * 30)
    episode, found = played(bfcl, "base", Reciting(wrong, *RIGHT))
    assert (episode.errors, episode.malformed) == (30, 30)
    assert found.success
