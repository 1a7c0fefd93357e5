"""What no table can hold costs its own event and nothing else, the same on both databases."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, select, text
from sqlalchemy.exc import DBAPIError

from consumers import database
from consumers.database import is_permanent, is_transient
from consumers.folds import rollouts as folds
from consumers.reads import rollouts as reads
from consumers.runner import REFUSED, Runner
from consumers.storage import KEY_BYTES, TEXT_CHARACTERS, storable
from consumers.tables import Call, DeadLetter, OperatorAction, Rollout, Source
from events.codec import encode
from events.envelope import Envelope
from events.errors import BadRecord
from events.log import Entry
from events.memory import MemoryLog
from events.privacy.sealing import Key
from events.rollouts import CallEnded, CallStarted, FeedbackReceived, Labels, Task
from events.serving import OperatorActed
from ops.faults.fold_poison import Topic
from tests.consumers.folding import (
    Broker,
    close_round,
    diagnosed,
    ended,
    entry,
    fold,
    folded_position,
    hash_of,
    log_of,
    rollout,
)

NOISE = random.Random(1).randbytes(3_000).hex()
"""That no compression makes short enough for an index row."""


def letters(engine: Engine) -> list[tuple[str | None, str]]:
    with database.read_transaction(engine) as connection:
        return [(line.type, line.reason) for line in reads.dead_letters(connection)]


def rollouts(engine: Engine) -> list[str]:
    with database.read_transaction(engine) as connection:
        return sorted(line.rollout for line in reads.rollout_lines(connection))


def named(made: Entry, event: str) -> Entry:
    headers = ((n, event.encode() if n == "ce_id" else value) for n, value in made.headers)
    return replace(made, headers=tuple(headers))


def sealed(labels: Labels) -> Entry:
    data = rollout("sealed", labels=labels)
    envelope = Envelope(id="sealed", type=data.TYPE, version=1, subject="sealed")
    return encode(envelope, data, recorded_ms=1, owner=Key("k1", "somebody", bytes(32))).entry


LABELS = Labels(
    messages=1, tool_calls=1, tool_errors=0, malformed_calls=0, loops=0,
    category="tool_loop", categories=("tool_loop",), pivot="p", trace_key="k",
)  # fmt: skip


@pytest.mark.parametrize(
    ("hostile", "place"),
    [
        (lambda: ended("long", session=NOISE), "rollouts.session"),
        (lambda: ended("wide", session="\U0002a6d6" * 700), "rollouts.session"),
        (lambda: ended("named", session="s", calls=("c", NOISE)), "calls.call"),
        (lambda: ended("loose", calls=("c",)), "calls.session is not said"),
        (lambda: named(entry(FeedbackReceived(session="s"), "f"), NOISE), "feedback.feedback"),
        (lambda: sealed(LABELS.model_copy(update={"pivot": NOISE})), "pivot"),
        (lambda: sealed(LABELS.model_copy(update={"trace_key": NOISE})), "trace_key"),
        (lambda: ended("much", termination="x" * (TEXT_CHARACTERS + 1)), "rollouts.termination"),
        (lambda: ended("many", calls=("c",) * 200_001), "names 200,001 calls"),
        (lambda: named(entry(OperatorActed(actor="a", action="pause", reason=""), "o"), NOISE),
         "operator_actions.event"),
    ],
    ids=["session", "wide letters", "a rollout's call", "calls of no session", "event id",
         "sealed pivot", "sealed trace", "text", "calls", "decision"],
)  # fmt: skip
def test_what_no_table_holds_is_one_dead_letter(
    engine: Engine, hostile: Callable[[], Entry], place: str
) -> None:
    log = log_of([ended("before"), hostile(), ended("after")])
    fold(log, engine)
    ((_, reason),) = letters(engine)
    assert place in reason
    assert rollouts(engine) == ["after", "before"]


def test_a_dead_letter_is_never_refused_itself(engine: Engine) -> None:
    unreadable = named(replace(ended("x", session="s"), value=b"no frame"), NOISE)
    log = log_of([ended("before", session="s"), unreadable, ended("after", session="s")])
    fold(log, engine)
    assert len(letters(engine)) == 1
    assert rollouts(engine) == ["after", "before"]


def test_what_just_fits_is_folded(engine: Engine) -> None:
    widest = "\U0002a6d6" * (KEY_BYTES // 4)
    name, longest = "\U0002a6d6" * 128, Task(id="\U0002a6d6" * 256)
    names = ended("names", task=longest, alias=name, base=name, policy=name)
    log = log_of([ended("session", session=widest), names])
    close_round(log, engine)
    assert letters(engine) == []
    assert rollouts(engine) == ["names", "session"]


def test_two_ids_that_are_one_once_they_are_stored_are_one_row(engine: Engine) -> None:
    log = log_of(
        [
            ended("x\x00", session="s", reward=0.25),
            ended("x\ufffd", session="s", reward=0.75),
            entry(CallStarted(call="c\x00", session="s", alias="a", base="b", policy="p"), "1"),
            entry(CallEnded(call="c\ufffd", session="s", outcome="completed"), "2"),
        ]
    )
    fold(log, engine)
    with database.read_transaction(engine) as connection:
        (call,) = connection.execute(select(Call.table())).all()
        rewards = connection.execute(select(Rollout.table().c.reward)).scalars().all()
    assert (call.call, call.policy, call.outcome) == ("c\ufffd", "p", "completed")
    assert rewards == [0.25]


@pytest.mark.parametrize(
    ("source", "sequence"),
    [("far", 2**63), ("far", 2**70), ("a\x00b", 0), (NOISE, 0), ("", 0), ("far", -1)],
)
def test_an_origin_that_no_log_of_ours_has_is_one_records_own(
    engine: Engine, source: str, sequence: int
) -> None:
    topic = Topic()
    topic.take(ended("before", session="s"))
    topic.take(ended("foreign", session="s"), source, sequence)
    topic.take(replace(ended("broken", session="s"), value=b"kg"), source, sequence)
    topic.take(ended("after", session="s"))
    fold(topic, engine)
    assert rollouts(engine) == ["after", "before", "foreign"]
    with database.read_transaction(engine) as connection:
        (letter,) = connection.execute(select(DeadLetter.table())).all()
        sources = set(connection.execute(select(Source.table().c.source)).scalars())
    assert letter.event_source == "foreign:2"
    assert sources == {topic.source, "foreign:1", "foreign:2"}
    before = hash_of(engine)
    assert fold(topic, engine).counters.folded == 0
    assert hash_of(engine) == before


def test_an_event_in_the_stream_of_another_is_a_dead_letter(engine: Engine) -> None:
    """A claim of leadership counts on `learning` alone, where its order is known."""
    made = ended("r", session="s")
    headers = ((n, b"LeaderClaimed" if n == "ce_type" else value) for n, value in made.headers)
    fold(log_of([replace(made, headers=tuple(headers)), ended("good")]), engine)
    ((kind, reason),) = letters(engine)
    assert (kind, reason) == ("LeaderClaimed", "LeaderClaimed belongs to learning, not to rollouts")
    assert rollouts(engine) == ["good"]


def refuse(engine: Engine, table: str, where: str) -> None:
    """Have the database itself refuse rows of a table, as it would a value nobody thought of."""
    with database.write_transaction(engine) as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(text(f"ALTER TABLE {table} ADD CHECK (NOT ({where}))"))
        else:
            connection.execute(
                text(
                    f"CREATE TRIGGER refuse_{table} BEFORE INSERT ON {table} "
                    f"WHEN new.{where} BEGIN SELECT RAISE(ABORT, 'refused'); END"
                )
            )


def test_what_the_database_refuses_for_good_costs_one_event(engine: Engine) -> None:
    refuse(engine, "rollouts", "rollout = 'bad'")
    log = log_of([ended(name, session="s") for name in ("a", "bad", "b", "c")])
    runner = fold(log, engine)
    assert letters(engine) == [("RolloutEnded", REFUSED)]
    assert rollouts(engine) == ["a", "b", "c"]
    assert runner.counters.dead_letters == {"BadRecord": 1}
    assert runner.counters.folded == 4
    log.append([ended("d", session="s")])
    fold(log, engine)
    assert rollouts(engine) == ["a", "b", "c", "d"]


def test_a_decision_that_the_database_refuses_for_good_costs_itself(engine: Engine) -> None:
    refuse(engine, "operator_actions", "action = 'bad'")
    log = log_of(
        [
            entry(OperatorActed(actor="a", action=action, reason=""), action)
            for action in ("one", "bad", "two")
        ]
    )
    fold(log, engine)
    assert letters(engine) == [("OperatorActed", REFUSED)]
    with database.read_transaction(engine) as connection:
        actions = set(connection.execute(select(OperatorAction.table().c.action)).scalars())
    assert actions == {"one", "two"}


def test_what_a_decision_says_is_looked_for_as_it_is_stored(engine: Engine) -> None:
    acted = OperatorActed(
        actor="a\x00", action="pause", arguments={"n": "\\\x00", "m": "\\u0000"}, reason="\x00\x00"
    )
    fold(log_of([entry(acted, "acted")]), engine)
    with database.read_transaction(engine) as connection:
        (row,) = connection.execute(select(OperatorAction.table())).all()
    assert (row.actor, row.reason) == ("a\ufffd", "\ufffd\ufffd")
    assert row.arguments == '{"m":"\\\\u0000","n":"\\\\\ufffd"}'


@pytest.mark.parametrize(
    "state",
    ["08006", "25P03", "40001", "40P01", "53100", "53200", "55P03", "57014", "57P01", "58030"],
)
def test_what_passes_by_itself_is_never_an_events_fault(state: str) -> None:
    error = _error(state)
    assert is_transient(error)
    assert not is_permanent(error)


@pytest.mark.parametrize("state", ["21000", "22001", "22003", "22021", "22P02", "23502", "54000"])
def test_what_the_same_rows_meet_again_is_not_waited_for(state: str) -> None:
    error = _error(state)
    assert is_permanent(error)
    assert not is_transient(error)


@pytest.mark.parametrize("state", ["42P01", "42703", "28P01", "XX000", "XX001"])
def test_trouble_of_the_database_itself_is_neither(state: str) -> None:
    assert not is_permanent(_error(state))


def _error(state: str) -> DBAPIError:
    """As the driver files it: it takes an index row that is too large for a matter of operation."""
    theirs = psycopg.errors.lookup(state)("said by the server")
    wrapped = DBAPIError.instance("SELECT", {}, theirs, psycopg.Error)
    assert isinstance(wrapped, DBAPIError)
    return wrapped


def test_labels_are_made_while_no_transaction_is_open(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On PostgreSQL the server ends one that idles; on SQLite nobody else could write."""
    held: list[int] = []
    usual = folds.FACTS["RolloutEnded"]

    def watched(*arguments: Any) -> None:
        held.append(engine.pool.checkedout())  # type: ignore[attr-defined]
        usual(*arguments)

    monkeypatch.setitem(folds.FACTS, "RolloutEnded", watched)
    fold(log_of([ended(f"r{n}", session="s") for n in range(3)]), engine)
    assert held == [0, 0, 0]
    assert rollouts(engine) == ["r0", "r1", "r2"]


def test_a_repetition_is_not_labelled_again(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = log_of([ended(f"r{n}", session="s") for n in range(5)])
    at = ended("r", session="s").partition
    records = spool.read("rollouts", at, 0)
    broker = Broker()
    broker.deliver([*records[:3], *records])
    labelled: list[str] = []
    usual = folds.FACTS["RolloutEnded"]

    def counted(folding: Any, data: Any, batch: Any) -> None:
        labelled.append(data.rollout)
        usual(folding, data, batch)

    monkeypatch.setitem(folds.FACTS, "RolloutEnded", counted)
    runner = fold(broker, engine)
    assert labelled == [f"r{n}" for n in range(5)]
    assert runner.counters.duplicates == 3


def test_a_transaction_writes_no_more_than_its_bound(engine: Engine) -> None:
    log = log_of([ended(f"r{n}", session="s", termination="x" * 3_900_000) for n in range(12)])
    runner = Runner(log, engine)
    at = ended("r", session="s").partition
    passed = [runner.step("rollouts", at) for _ in range(3)]
    assert sum(passed) == 12
    assert max(passed) < 6
    assert len(rollouts(engine)) == 12


def test_a_round_counts_what_was_labelled_beside_poison(engine: Engine) -> None:
    log = MemoryLog()
    log.append([ended("one", session="s"), ended("long", session=NOISE), ended("two")])
    fold(log, engine)
    log.append([diagnosed(folded_position(engine))])
    fold(log, engine)
    with database.read_transaction(engine) as connection:
        last = reads.last_round(connection)
    assert last is not None
    assert last.rollouts == 2


@pytest.mark.parametrize(
    ("value", "stored"), [(-0.0, 0.0), ("a\x00b", "a\ufffdb"), (True, True), (2**63 - 1, 2**63 - 1)]
)
def test_a_value_is_kept_as_both_databases_have_it(value: Any, stored: Any) -> None:
    row, _ = storable(Rollout, {"rollout": "r", "reward": value})
    assert repr(row["reward"]) == repr(stored)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2**63, -(2**63) - 1, "\ud800"])
def test_a_value_that_one_database_refuses_both_refuse(value: Any) -> None:
    with pytest.raises(BadRecord, match=r"rollouts\.reward"):
        storable(Rollout, {"rollout": "r", "reward": value})
