"""The fold of RepairSearched: which event counts, and that its order against rollouts does not."""

from pathlib import Path

from sqlalchemy import Engine

from consumers import database
from consumers.reads.repairs import RepairRow, read_repair
from consumers.reads.rollouts import pattern_lines, rollout_row
from events.learning import RepairSearched
from events.log import Entry
from events.memory import MemoryLog
from events.messages import Message
from events.rollouts import RolloutContent, RolloutEnded, Task
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
)


def searched(name: str, **fields: object) -> Entry:
    """A repair of the rollout `r`."""
    values: dict[str, object] = {
        "rollout": "r", "rules": "1", "outcome": "repaired", "category": "wrong_tool",
        "pivot": "cancel_order", "replays": 2,
    }  # fmt: skip
    return entry(RepairSearched.model_validate({**values, **fields}), name, at(1))


def failed(name: str = "r") -> Entry:
    """A failure that a rule explains."""
    words = (Message(role="user", content=name), Message(role="assistant", content="Which one?"))
    return ended(
        name, at(0), task=Task(id=name), content=RolloutContent(messages=words),
        termination="user_stop",
    )  # fmt: skip


def stored(engine: Engine) -> RepairRow:
    with database.read_transaction(engine) as connection:
        row = read_repair(connection, "r")
    assert row is not None
    return row


def patterns(engine: Engine) -> dict[str, int]:
    with database.read_transaction(engine) as connection:
        return {line.pattern: line.failures for line in pattern_lines(connection)}


def test_the_first_result_of_a_version_that_replayed_the_rollout_counts(engine: Engine) -> None:
    log = MemoryLog()
    log.append([searched("a", outcome="skipped", category=None, pivot=None, reason="away")])
    fold(log, engine)
    assert stored(engine).outcome == "skipped"
    log.append([searched("b"), searched("c", category="wrong_entity")])
    fold(log, engine)
    assert stored(engine).category == "wrong_tool"
    log.append([searched("d", outcome="skipped", category=None, pivot=None)])
    fold(log, engine)
    assert stored(engine).category == "wrong_tool"
    log.append([searched("e", rules="2", category="wrong_entity")])
    fold(log, engine)
    assert (stored(engine).rules, stored(engine).category) == ("2", "wrong_entity")


def test_a_round_counts_with_the_repairs_before_it(engine: Engine) -> None:
    log = MemoryLog()
    log.append([failed(), searched("a")])
    close_round(log, engine)
    assert patterns(engine) == {"wrong_tool|cancel_order": 1}


def test_a_repair_after_the_round_leaves_its_counts(engine: Engine) -> None:
    log = MemoryLog()
    log.append([failed()])
    close_round(log, engine)
    before = patterns(engine)
    log.append([searched("a")])
    fold(log, engine)
    assert patterns(engine) == before == {"premature_termination|*": 1}
    with database.read_transaction(engine) as connection:
        row = rollout_row(connection, "r")
    assert row is not None
    assert (row.line.category, row.pivot) == ("wrong_tool", "cancel_order")
    assert (row.rule_category, row.rule_pivot) == ("premature_termination", "*")


def test_nothing_depends_on_whether_the_rollout_or_its_repair_is_folded_first(
    engine: Engine, tmp_path: Path
) -> None:
    """Rollouts and decisions are in partitions of their own."""
    log = MemoryLog()
    log.append([searched("a")])
    fold(log, engine)
    log.append([failed(), failed("s")])
    close_round(log, engine)
    whole = fresh(tmp_path, "whole")
    other = MemoryLog()
    other.append([failed(), failed("s")])
    fold(other, whole)
    other.append([searched("a")])
    fold(other, whole)
    other.append([diagnosed(folded_position(whole), "round")])
    fold(other, whole)
    assert hash_of(whole) == hash_of(engine)
    assert patterns(whole) == patterns(engine)
    assert patterns(whole) == {"wrong_tool|cancel_order": 1, "premature_termination|*": 1}


def test_a_repair_labels_no_rollout_that_passed_and_no_proof_leaves_the_rules_label(
    engine: Engine,
) -> None:
    log = MemoryLog()
    passed = RolloutEnded(
        rollout="r", alias="agent", base="base", policy="base", source="test", success=True,
        reward=1.0,
    )  # fmt: skip
    nothing = searched("b", rollout="s", outcome="exhausted", category=None, pivot=None)
    log.append([entry(passed, "r"), failed("s"), searched("a"), nothing])
    close_round(log, engine)
    assert patterns(engine) == {"premature_termination|*": 1}
    with database.read_transaction(engine) as connection:
        row = rollout_row(connection, "r")
    assert row is not None
    assert (row.line.category, row.pivot) == (None, None)
