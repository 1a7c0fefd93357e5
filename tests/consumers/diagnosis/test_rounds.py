"""Rounds: what a round counts, and that two agents never share numbers."""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, select

from consumers import database
from consumers.diagnosis.priority import update
from consumers.reads import rollouts
from consumers.reads.rollouts import PatternLine, RoundLine
from consumers.tables import PatternRound, Rollout, Round
from events.learning import TaskProposed
from events.log import Entry
from events.memory import MemoryLog
from events.messages import Action, Message, ToolCall
from events.rollouts import RolloutContent, Task
from events.streams import ROLLOUTS
from tests.consumers.diagnosis.test_priority import evidence_of
from tests.consumers.folding import (
    at,
    close_round,
    diagnosed,
    ended,
    entry,
    fold,
    folded_position,
    fresh,
    hash_of,
    log_of,
)

GOLD = (Action(name="cancel_order", arguments={"order_id": "1"}),)
MISSING = "missing_write_action|cancel_order"


def failure(
    name: str, task: str | Task | None = "t", second: int | None = None, **fields: object
) -> Entry:
    """A rollout that never made the gold write; each says something else, so none is a repeat."""
    given: dict[str, object] = {
        "task": Task(id=task, gold_actions=GOLD) if isinstance(task, str) else task,
        "write_tools": ("cancel_order",),
        "termination": "user_stop",
        "content": said(name),
    }
    return ended(name, None if second is None else at(second), **{**given, **fields})


def said(query: str) -> RolloutContent:
    """A conversation with one read, so that the tool-call trace differs with `query`."""
    return RolloutContent(
        messages=(
            Message(role="user", content="please cancel"),
            Message(
                role="assistant",
                tool_calls=(ToolCall(name="get_order", arguments={"query": query}),),
            ),
            Message(role="tool", content="{}", error=False),
            Message(role="assistant", content="Done."),
            Message(role="user", content="Thanks."),
        )
    )


def success(name: str, task: str | Task | None = "t", **fields: object) -> Entry:
    return failure(name, task, None, **{"success": True, "reward": 1.0, **fields})


def patterns(engine: Engine, alias: str | None = None) -> dict[str, PatternLine]:
    with database.read_transaction(engine) as connection:
        return {line.pattern: line for line in rollouts.pattern_lines(connection, alias)}


def last(engine: Engine) -> RoundLine:
    with database.read_transaction(engine) as connection:
        found = rollouts.last_round(connection)
    assert found is not None
    return found


def test_failures_of_one_kind_make_one_pattern_with_the_formula_of_the_notes(
    engine: Engine,
) -> None:
    log = log_of([*(failure(f"f{n}") for n in range(3)), success("s0"), success("s1", task="u")])
    close_round(log, engine)
    line = patterns(engine)[MISSING]
    assert (line.category, line.pivot) == ("missing_write_action", "cancel_order")
    assert (line.failures, line.attempts, line.passes) == (3, 5, 2)  # task u has the same gold tool
    assert line.pass_rate == pytest.approx(3 / 7)
    assert line.priority == pytest.approx(0.5 * 1.0 * 1.5 * (1 - 3 / 7))
    assert line.status == "NEW"
    assert line.examples == ["f0", "f1", "f2"]


def test_priorities_move_only_when_a_round_closes(engine: Engine) -> None:
    log = log_of([failure("f0")])
    close_round(log, engine, "one")
    before = patterns(engine)
    log.append([failure("f1"), failure("f2")])
    fold(log, engine)
    assert patterns(engine) == before
    close_round(log, engine, "two")
    assert patterns(engine)[MISSING].failures == 2
    assert len(patterns(engine)[MISSING].trend) == 2


def test_one_trace_on_one_task_counts_once_and_its_earliest_rollout_represents_it(
    engine: Engine,
) -> None:
    same = said("same")
    repeats = [failure("b", second=5, content=same), failure("a", second=9, content=same)]
    others = [failure("c", second=7), failure("d", second=8, task="u", content=same)]
    log = log_of([*repeats, *others])
    close_round(log, engine)
    line = patterns(engine)[MISSING]
    assert (line.failures, line.attempts) == (3, 4)
    assert line.examples == ["b", "c", "d"]
    assert last(engine).failed == 3


def test_another_policy_version_is_another_attempt_at_the_same_trace(engine: Engine) -> None:
    same: dict[str, Any] = {"content": said("same"), "purpose": "import"}
    close_round(log_of([failure("a", **same), failure("b", policy="v2", **same)]), engine)
    assert patterns(engine)[MISSING].failures == 2


def test_rollouts_beyond_the_position_wait_for_the_next_round(engine: Engine) -> None:
    log = log_of([failure("f0", session="s")])
    fold(log, engine)
    early = folded_position(engine)
    log.append([failure("f1", session="s"), failure("f2", session="s")])
    fold(log, engine)
    log.append([diagnosed(early)])
    fold(log, engine)
    assert (last(engine).rollouts, patterns(engine)[MISSING].failures) == (1, 1)
    close_round(log, engine, "next")
    assert (last(engine).rollouts, patterns(engine)[MISSING].failures) == (2, 2)


def test_a_round_that_is_not_ahead_of_the_last_one_is_ignored(engine: Engine) -> None:
    log = log_of([failure("f0", session="s")])
    close_round(log, engine, "one")
    log.append([diagnosed(folded_position(engine), "same again")])
    fold(log, engine)
    assert last(engine).round == 0
    with database.read_transaction(engine) as connection:
        assert len(connection.execute(select(Round.table())).all()) == 1


def test_when_the_round_is_folded_does_not_matter(engine: Engine, tmp_path: Path) -> None:
    """Live folds a round late, after more rollouts; a rebuild meets it as early as it can."""
    log = MemoryLog()
    log.append([failure(f"f{n}", second=n) for n in range(8)])
    fold(log, engine)
    position = folded_position(engine)
    log.append([failure(f"late{n}", task="u", second=-n - 1) for n in range(8)])
    fold(log, engine)
    log.append([diagnosed(position)])
    fold(log, engine)
    other = fresh(tmp_path, "other")
    fold(log, other)
    assert hash_of(engine) == hash_of(other)


def test_two_agents_and_two_base_models_never_share_numbers(engine: Engine) -> None:
    log = log_of([failure("a"), failure("b", alias="other"), failure("c", base="newer")])
    close_round(log, engine, "one")
    log.append([failure(f"more{n}", alias="other") for n in range(3)])
    close_round(log, engine, "two")
    log.append([success("fine", alias="other", task="else")])
    close_round(log, engine, "three")
    mine = patterns(engine, "agent")[MISSING]
    assert (mine.failures, mine.attempts, mine.round, mine.status) == (1, 1, 0, "NEW")
    theirs = patterns(engine, "other")[MISSING]
    assert (theirs.failures, theirs.round) == (0, 2)
    with database.read_transaction(engine) as connection:
        lines = rollouts.pattern_lines(connection)
    assert [(line.alias, line.base) for line in lines].count(("agent", "base")) == 1
    assert len(lines) == 3


def test_unjudged_rollouts_count_nowhere(engine: Engine) -> None:
    log = log_of([failure("f"), failure("nobody", success=None, reward=None)])
    close_round(log, engine)
    line = patterns(engine)[MISSING]
    assert (line.failures, line.attempts) == (1, 1)
    assert (last(engine).judged, last(engine).unjudged) == (1, 1)


def test_rollouts_made_by_the_daemon_are_no_failures_and_evidence_of_who_answers(
    engine: Engine, tmp_path: Path
) -> None:
    def own(number: int) -> list[Entry]:
        return [failure(f"f{number}"), success(f"s{number}"), failure(f"u{number}", task="u")]

    def made(number: int, policy: str, purpose: str) -> list[Entry]:
        fields: dict[str, Any] = {"purpose": purpose, "policy": policy}
        names = [f"{purpose}-{policy}-{number}-{place}" for place in range(6)]
        return [
            *(failure(f"{name}-f", "t", **fields) for name in names[:2]),
            *(success(f"{name}-s", "v", **fields) for name in names),
        ]

    logs = {"plain": MemoryLog(), "candidate": MemoryLog(), "base": MemoryLog()}
    engines = {"plain": fresh(tmp_path, "plain"), "candidate": fresh(tmp_path, "candidate")}
    engines["base"] = engine
    for number in range(3):
        for policy, log in logs.items():
            for purpose in ("train", "evaluate", "probe") if policy != "plain" else ():
                log.append(made(number, policy, purpose))
            log.append(own(number))
            close_round(log, engines[policy], f"round-{number}")
    lines = {policy: patterns(engines[policy])[MISSING] for policy in logs}
    assert lines["candidate"] == lines["plain"]
    assert (lines["plain"].attempts, lines["plain"].passes) == (3, 1)
    assert (lines["base"].attempts, lines["base"].passes) == (27, 19)
    assert lines["base"].failures == lines["plain"].failures == 2
    assert lines["base"].priority < lines["plain"].priority
    assert last(engines["base"]) == last(engines["plain"])


def test_what_no_engine_answered_is_no_agents_failure(engine: Engine) -> None:
    """Gateways that started under load left judged rollouts of policy `agent`, base `unknown`."""
    lost: dict[str, Any] = {"base": "unknown", "policy": "agent", "purpose": "live"}
    entries = [failure("mine", purpose="live"), failure("lost", **lost)]
    log = log_of([*entries, success("unjudged", **{**lost, "success": None, "reward": None})])
    fold(log, engine)
    with database.read_transaction(engine) as connection:
        waiting = rollouts.count_backlog(connection)
    assert (waiting.rollouts, waiting.undiagnosed, waiting.unjudged) == (3, 1, 0)
    close_round(log, engine)
    with database.read_transaction(engine) as connection:
        (line,) = rollouts.pattern_lines(connection, None)
        assert rollouts.count_backlog(connection).undiagnosed == 0
    assert (line.base, line.failures) == ("base", 1)
    assert (last(engine).rollouts, last(engine).judged) == (1, 1)


def test_other_is_counted_and_forms_no_pattern(engine: Engine) -> None:
    log = log_of([ended("f", termination="user_stop", content=said("q"))])
    close_round(log, engine)
    assert patterns(engine) == {}
    assert (last(engine).failed, last(engine).other, last(engine).patterns) == (1, 1, 0)


def test_a_success_below_the_threshold_is_a_failure_of_its_pattern_and_no_pass(
    engine: Engine,
) -> None:
    close_round(log_of([success(f"s{n}", reward=0.4) for n in range(20)]), engine)
    line = patterns(engine)["policy_violation|cancel_order"]
    assert (line.failures, line.attempts, line.passes) == (20, 20, 0)
    assert line.status == "NEW"


def test_history_of_three_rounds_follows_the_arithmetic(engine: Engine) -> None:
    log = MemoryLog()
    state = None
    plan = [(3, 1), (2, 2), (0, 5), (0, 1), (1, 0)]  # (failures, passes) on one task per round
    for number, (failed, passed) in enumerate(plan):
        log.append([failure(f"f{number}-{n}") for n in range(failed)])
        log.append([success(f"s{number}-{n}") for n in range(passed)])
        close_round(log, engine, str(number))
        state = update(state, evidence_of(failed, failed, failed + passed, passed))
    with database.read_transaction(engine) as connection:
        history = connection.execute(
            select(PatternRound.table()).order_by(PatternRound.table().c.round)
        ).all()
    assert [row.status for row in history] == ["NEW", "IMPROVING", "IMPROVING", "RESOLVED",
                                               "REGRESSED"]  # fmt: skip
    assert state is not None
    assert history[-1].priority == state.priority
    assert [row.attempts for row in history] == [4, 4, 5, 1, 1]


def test_rollouts_of_a_proposed_task_count_for_its_pattern(engine: Engine) -> None:
    log = log_of([failure("f")])
    close_round(log, engine, "one")
    proposed = TaskProposed(
        alias="agent", base="base", task=Task(id="new"), pattern=MISSING, source_rollout="f"
    )
    log.append([entry(proposed, "proposal")])
    log.append([success(f"s{n}", task="new") for n in range(4)])
    close_round(log, engine, "two")
    line = patterns(engine)[MISSING]
    assert (line.failures, line.attempts, line.passes) == (0, 4, 4)
    with database.read_transaction(engine) as connection:
        origin = connection.exec_driver_sql("SELECT origin FROM tasks WHERE task = 'new'").scalar()
    assert origin == "proposed"


def test_a_rollout_without_a_task_is_its_own_attempt(engine: Engine) -> None:
    loop = tuple(
        Message(role="assistant", tool_calls=(ToolCall(name="look", arguments={}),))
        if n % 2 == 0
        else Message(role="tool", content="{}", error=False)
        for n in range(8)
    )
    log = log_of([ended(f"f{n}", task=None, content=RolloutContent(messages=loop))
                  for n in range(2)])  # fmt: skip
    close_round(log, engine)
    line = patterns(engine)["tool_loop|*"]
    assert (line.failures, line.attempts) == (2, 2)


def test_a_task_keeps_the_definition_of_its_earliest_rollout(
    engine: Engine, tmp_path: Path
) -> None:
    late = failure("late", second=9, task="t")
    early = ended("early", at(1), task=Task(id="t", instruction="first"), content=said("x"))
    other = fresh(tmp_path, "other")
    fold(log_of([late, early]), engine)
    fold(log_of([early, late]), other)
    assert hash_of(engine) == hash_of(other)
    with database.read_transaction(engine) as connection:
        row = connection.exec_driver_sql("SELECT instruction FROM tasks").scalar()
    assert row == "first"


def test_every_counted_rollout_names_its_round(engine: Engine) -> None:
    log = log_of([failure("f"), failure("nobody", success=None, reward=None)])
    close_round(log, engine)
    log.append([failure("later")])
    fold(log, engine)
    with database.read_transaction(engine) as connection:
        query = select(Rollout.table().c.rollout, Rollout.table().c.round)
        rounds = {row.rollout: row.round for row in connection.execute(query)}
        assert rollouts.count_backlog(connection).undiagnosed == 1
    assert rounds == {"f": 0, "nobody": 0, "later": None}
    assert ROLLOUTS.name in folded_position(engine)
