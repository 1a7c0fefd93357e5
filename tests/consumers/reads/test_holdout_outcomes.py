"""Which sessions the lift counts: those of a draw, by their draw, each agent's for itself."""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine

from consumers import database
from consumers.reads import rollouts
from consumers.reads.outcomes.holdout import (
    DrawnSession,
    find_first_promotion,
    find_last_draw,
    read_drawn_sessions,
)
from consumers.rebuild import rebuild
from consumers.runner import Runner
from daemon.serving.lift import Lift, read_lifts
from events.envelope import timestamp
from events.log import Entry, EventLog
from events.memory import MemoryLog
from events.rollouts import CallStarted, FeedbackReceived, HoldoutDraw, RolloutEnded, Task
from events.streams import LEARNING, ROLLOUTS
from tests.consumers.deciding import decision, passed, routed
from tests.consumers.folding import at, entry, fold, fresh, hash_of, log_of

SHARE = 0.1
SINCE = timestamp(at(100))


UNKNOWN = Task(id="t")


def drawn(
    session: str, second: int, held_out: bool | None = False, share: float = SHARE, **fields: Any
) -> Entry:
    """A call; `held_out` None: of a session that had a policy already."""
    draw = None if held_out is None else HoldoutDraw(share=share, held_out=held_out)
    data = CallStarted.model_validate({
        "call": f"{session}-{second}", "session": session, "alias": "agent", "base": "base",
        "policy": "base" if held_out else "a", "routed": "kept" if draw is None else "drawn",
        "holdout": draw, **fields,
    })  # fmt: skip
    return entry(data, data.call, at(second))


def over(
    session: str, success: bool | None, second: int, task: Task = UNKNOWN,
    grader: str | None = None,
) -> Entry:  # fmt: skip
    data = RolloutEnded(
        rollout=f"rollout-{session}-{second}", alias="agent", base="base", policy="any",
        source="live", session=session, success=success, task=task, grader=grader,
    )  # fmt: skip
    return entry(data, data.rollout, at(second))


def told(session: str, success: bool | None, second: int, verified: bool = True) -> Entry:
    data = FeedbackReceived(session=session, success=success, verified=verified)
    return entry(data, f"feedback-{session}-{second}", at(second))


def read(engine: Engine, alias: str = "agent", base: str = "base") -> list[DrawnSession]:
    with database.read_transaction(engine) as connection:
        return read_drawn_sessions(connection, alias, base, SINCE)


def briefly(engine: Engine, **of: str) -> list[tuple[str, bool, bool, bool | None, float | None]]:
    return [(s.session, s.held_out, s.ended, s.success, s.age) for s in read(engine, **of)]


def test_a_session_has_its_draw_its_end_and_its_first_verdict(engine: Engine) -> None:
    entries = [
        drawn("s2", 111, held_out=True), over("s2", False, 140),
        drawn("s1", 110), drawn("s1", 120, held_out=None), over("s1", True, 150),
        drawn("s3", 112), told("s3", False, 145), told("s3", True, 146), over("s3", None, 150),
        drawn("s4", 113), over("s4", None, 150), told("s4", True, 160, verified=False),
        drawn("s5", 114, held_out=True),
    ]  # fmt: skip
    fold(log_of(entries), engine)
    assert briefly(engine) == [
        ("s1", False, True, True, 40),
        ("s2", True, True, False, 29),
        ("s3", False, True, False, 33),
        ("s4", False, True, None, None),
        ("s5", True, False, None, None),
    ]


def test_a_session_that_older_rules_judged_is_left_out(engine: Engine) -> None:
    task = Task(id="library/lend/1", environment="library")
    entries = [
        drawn("s1", 110), over("s1", True, 150, task=task, grader="library/1"),
        drawn("s2", 111), over("s2", False, 151, task=task, grader="library/2"),
        drawn("s3", 112), over("s3", True, 152),
    ]  # fmt: skip
    fold(log_of(entries), engine)
    assert [(one.session, one.success) for one in read(engine)] == [("s2", False), ("s3", True)]


@pytest.mark.parametrize(
    "fields",
    [
        {"held_out": None, "routed": "named"},
        {"held_out": None, "routed": "drawn"},
        {"purpose": "probe"},
        {"alias": "other"},
        {"base": "other"},
    ],
    ids=["named", "before the holdout", "no traffic", "another agent", "another base"],
)
def test_what_no_draw_assigned_is_left_out(engine: Engine, fields: dict[str, Any]) -> None:
    fold(log_of([drawn("s1", 110, **fields), drawn("s2", 111)]), engine)
    assert [session.session for session in read(engine)] == ["s2"]


def test_a_session_counts_by_its_draw_whoever_answered_it(engine: Engine) -> None:
    entries = [drawn("s1", 110, policy="base", routed="fallback"), over("s1", False, 120)]
    fold(log_of(entries), engine)
    assert briefly(engine) == [("s1", False, True, False, 10)]


def test_a_session_that_began_before_is_left_out_and_so_is_a_draw_by_two_shares(
    engine: Engine,
) -> None:
    entries = [
        drawn("s1", 99), drawn("s2", 110), drawn("s2", 120, share=0.2), drawn("s3", 110),
        drawn("s3", 120),
    ]  # fmt: skip
    fold(log_of(entries), engine)
    assert [session.session for session in read(engine)] == ["s3"]


# The lift, of what is in the tables


def decided(*of: Any, second: int) -> list[Entry]:
    return [decision(data, f"{second} {number}", second=second) for number, data in enumerate(of)]


def a_home() -> EventLog:
    """Two agents that have promoted, with sessions of both arms."""
    log = MemoryLog()
    log.append(decided(*passed("a"), routed("promoted", {"a": 1.0}, holdout=SHARE), second=100))
    log.append([
        *(drawn(f"h{n}", 110 + n, held_out=True) for n in range(8)),
        *(drawn(f"l{n}", 110 + n) for n in range(72)),
        *(over(f"h{n}", n % 2 == 0, 300 + n) for n in range(8)),
        *(over(f"l{n}", n % 8 != 0, 300 + n) for n in range(72)),
    ])  # fmt: skip
    return log


def lifts(engine: Engine) -> list[Lift]:
    with database.read_transaction(engine) as connection:
        assert rollouts.dead_letters(connection) == []
        return read_lifts(connection)


def test_the_lift_is_the_loops_success_less_the_holdouts_since_the_promotion(
    engine: Engine,
) -> None:
    fold(a_home(), engine)
    (lift,) = lifts(engine)
    assert (lift.alias, lift.base, lift.since, lift.share) == ("agent", "base", SINCE, SHARE)
    assert (lift.holdout.sessions, lift.holdout.judged, lift.holdout.success) == (8, 8, 0.5)
    assert (lift.loop.sessions, lift.loop.judged, lift.loop.success) == (72, 72, 0.875)
    assert lift.difference == 0.375
    assert lift.low < 0.375 < lift.high
    assert lift.shares_ok
    assert lift.judged_ok


def test_two_agents_and_two_bases_never_share_numbers(engine: Engine) -> None:
    log = a_home()
    fold(log, engine)
    (alone,) = lifts(engine)
    others = [
        *(drawn(f"o{n}", 110 + n, held_out=True, alias="other") for n in range(30)),
        *(drawn(f"n{n}", 110 + n, held_out=True, base="new") for n in range(30)),
        *(over(f"{kind}{n}", False, 300 + n) for kind in "on" for n in range(30)),
    ]
    log.append(others)
    fold(log, engine)
    assert lifts(engine) == [alone]


@pytest.mark.parametrize(
    "decisions",
    [[], [*passed("a"), routed("canary", {"a": 0.5, None: 0.5}, holdout=SHARE)]],
    ids=["nothing was decided", "a canary answers"],
)
def test_before_a_promotion_there_is_no_lift(engine: Engine, decisions: list[Any]) -> None:
    log = MemoryLog()
    log.append([*decided(*decisions, second=100), drawn("s", 110, held_out=True)])
    fold(log, engine)
    assert lifts(engine) == []
    with database.read_transaction(engine) as connection:
        assert find_first_promotion(connection, "agent", "base") is None


def test_after_a_rollback_to_the_base_the_lift_is_still_told(engine: Engine) -> None:
    log = a_home()
    fold(log, engine)
    before = lifts(engine)
    log.append(decided(routed("rollback", {None: 1.0}), second=900))
    fold(log, engine)
    assert lifts(engine) == before
    with database.read_transaction(engine) as connection:
        assert find_last_draw(connection, "agent", "base") == SHARE


def test_a_new_base_begins_without_a_lift(engine: Engine) -> None:
    log = a_home()
    log.append(decided(routed("rebased", {None: 1.0}, base="new"), second=900))
    fold(log, engine)
    assert lifts(engine) == []


def test_with_another_share_the_comparison_begins_anew(engine: Engine) -> None:
    log = a_home()
    log.append(decided(routed("holdout", {"a": 1.0}, holdout=0.2), second=900))
    log.append([drawn("x", 910, held_out=True, share=0.2), over("x", True, 920)])
    fold(log, engine)
    (lift,) = lifts(engine)
    assert (lift.share, lift.holdout.sessions, lift.loop.sessions) == (0.2, 1, 0)
    assert lift.difference is None
    assert lift.low == -1, "nothing is known of the loop's sessions"


def test_folds_that_are_killed_and_a_rebuild_give_the_same_lift(
    engine: Engine, tmp_path: Path
) -> None:
    log = a_home()
    fold(log, engine)
    before, tables = lifts(engine), hash_of(engine)
    assert rebuild(log, engine).equal
    assert (lifts(engine), hash_of(engine)) == (before, tables)
    other = fresh(tmp_path, "other")
    for turn in range(12):
        # Each runner is dropped after some events, as a process that is killed.
        runner = Runner(log, other)
        for stream, partitions in ((LEARNING.name, 1), (ROLLOUTS.name, ROLLOUTS.partitions)):
            for partition in range(partitions):
                runner.step(stream, partition, limit=1 + turn % 3)
    fold(log, other)
    assert (lifts(other), hash_of(other)) == (before, tables)
    other.dispose()
