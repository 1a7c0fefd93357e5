"""The rollouts that a comparison of failures and successes reads, and of which rounds."""

from sqlalchemy import Engine

from consumers import database
from consumers.diagnosis.round_counts import Pair
from consumers.methods.skills.reads import (
    ContrastRollout,
    list_judged_rounds,
    read_contrast_rollouts,
)
from events.messages import Message, ToolCall
from events.rollouts import RolloutContent, Task
from tests.consumers.diagnosis.test_rounds import MISSING, failure, said
from tests.consumers.folding import at, close_round, ended, log_of

AGENT = Pair("agent", "base")


def read(engine: Engine, since: int = 0, until: int = 9) -> list[ContrastRollout]:
    with database.read_transaction(engine) as connection:
        return read_contrast_rollouts(connection, AGENT, since, until)


def names(rollouts: list[ContrastRollout]) -> list[str]:
    return [item.rollout for item in rollouts]


def test_of_equal_traces_the_earliest_is_read_and_one_without_a_time_is_the_earliest(
    engine: Engine,
) -> None:
    same = said("same")
    log = log_of(
        [
            failure("third", second=30, content=same),
            failure("untimed", content=same),
            failure("second", second=20),
            failure("first", second=10),
            failure("also untimed"),
        ]
    )
    close_round(log, engine)
    assert names(read(engine)) == ["also untimed", "untimed", "first", "second"]


def test_what_is_read_of_a_rollout(engine: Engine) -> None:
    call = ToolCall(name="get_order", arguments={})
    refused, answered = (
        (
            Message(role="assistant", tool_calls=(call,)),
            Message(role="tool", content="{}", error=error),
        )
        for error in (True, False)
    )
    with_refusal, looped = (RolloutContent(messages=said) for said in (refused, 3 * answered))
    passed = {"success": True, "reward": 1.0, "termination": "user_stop"}
    log = log_of(
        [
            failure("a", task="t1", second=1),
            ended("b", at(2), **passed, task=Task(id="t2"), content=with_refusal),
            ended("c", at(3), **passed, task=Task(id="t3"), content=looped),
            ended("d", at(4), success=None, reward=None),
            ended("e", at(5), **passed, alias="other"),
            ended("f", at(6), **passed, base="other"),
            ended("g", at(7), **passed, purpose="train", task=Task(id="t1")),
            ended("h", at(8), **passed, purpose="import", task=Task(id="t4")),
        ]
    )
    close_round(log, engine)
    by_name = {item.rollout: item for item in read(engine)}
    assert sorted(by_name) == ["a", "b", "c", "h"]
    failed = by_name["a"]
    assert (failed.failed, failed.pattern, failed.has_loop) == (True, MISSING, False)
    assert failed.tools == {"cancel_order", "get_order"}
    assert (by_name["b"].failed, by_name["b"].pattern) == (False, None)
    assert not by_name["b"].has_loop, "a refused call is none"
    assert by_name["c"].has_loop


def test_rounds_of_other_agents_are_not_counted(engine: Engine) -> None:
    log = log_of([failure("a")])
    close_round(log, engine, "one")
    for number in range(3):
        log.append([failure(f"other {number}", alias="other")])
        close_round(log, engine, f"other {number}")
    log.append([failure("b")])
    close_round(log, engine, "last")
    with database.read_transaction(engine) as connection:
        assert list_judged_rounds(connection, AGENT, 9, 5) == [4, 0]
        assert list_judged_rounds(connection, AGENT, 9, 1) == [4]
        assert list_judged_rounds(connection, AGENT, 3, 5) == [0]
        assert list_judged_rounds(connection, Pair("other", "base"), 9, 2) == [3, 2]
    assert names(read(engine, 1)) == ["b"]
    assert names(read(engine, 0, 3)) == ["a"]
