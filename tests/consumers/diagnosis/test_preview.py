"""A round that is only looked at: equal to the one that is closed, and nothing of it is kept."""

from sqlalchemy import Engine, select, text

from consumers import database
from consumers.diagnosis.preview import WRITTEN, preview_round
from consumers.reads import rollouts
from consumers.reads.rollouts import PatternLine
from consumers.tables import Offset, Rollout
from events.learning import PatternsDiagnosed
from events.memory import MemoryLog
from tests.consumers.diagnosis.test_rounds import failure, patterns, success
from tests.consumers.folding import (
    close_round,
    fold,
    folded_position,
    hash_of,
    log_of,
)


def recorded(engine: Engine) -> MemoryLog:
    """Two agents; of the first a closed round and more rollouts after it."""
    log = log_of([failure("a", "t1"), failure("b", "t2"), success("c", "t2")])
    close_round(log, engine)
    log.append([failure("d", "t2"), success("e", "t1"), success("e2", "t1")])
    log.append([failure("f", "t1", alias="clerk"), failure("g", "t9", alias="clerk's 100%")])
    fold(log, engine)
    return log


def data_of(engine: Engine) -> PatternsDiagnosed:
    return PatternsDiagnosed(trigger="diagnose", position=folded_position(engine))


def seen(engine: Engine, alias: str) -> tuple[list[PatternLine], int]:
    with preview_round(engine, data_of(engine), alias) as (connection, number):
        with connection.begin():
            lines = rollouts.pattern_lines(connection, alias)
        return lines, number


def test_the_numbers_are_those_of_the_round_that_is_closed_then(engine: Engine) -> None:
    log = recorded(engine)
    looked = {alias: seen(engine, alias) for alias in ("agent", "clerk", "clerk's 100%")}
    before = patterns(engine, "agent")
    close_round(log, engine, "second")
    for alias, (lines, number) in looked.items():
        assert number == 1
        assert {line.pattern: line for line in lines} == patterns(engine, alias)
        assert lines
    assert patterns(engine, "agent") != before, "the round moved something"


def test_nothing_is_kept_and_no_later_reader_sees_the_copies(engine: Engine) -> None:
    recorded(engine)
    before = hash_of(engine)
    seen(engine, "agent")
    for _ in range(3):
        with database.read_transaction(engine) as connection:
            rounds = connection.execute(select(Rollout.table().c.round)).scalars().all()
        assert sorted(rounds, key=str) == [0, 0, 0, None, None, None, None, None]
    assert hash_of(engine) == before


def test_a_fold_goes_on_while_a_round_is_looked_at(engine: Engine) -> None:
    """Not even a lock: on SQLite there is one writer at a time."""
    log = recorded(engine)
    with preview_round(engine, data_of(engine), "agent") as (connection, _):
        log.append([failure("h", "t3")])
        fold(log, engine)
        with connection.begin():
            assert "h" not in connection.execute(select(Rollout.table().c.rollout)).scalars().all()
    with database.write_transaction(engine) as writer:
        # Whoever writes keeps nobody from looking.
        table = Offset.table()
        writer.execute(table.update().values(next_offset=table.c.next_offset))
        assert seen(engine, "agent")[1] == 1


def test_without_a_new_rollout_the_last_round_stays(engine: Engine) -> None:
    log = log_of([failure("a", "t1")])
    close_round(log, engine)
    lines, number = seen(engine, "agent")
    assert number == 0
    assert {line.pattern: line for line in lines} == patterns(engine, "agent")


def test_the_copies_have_the_indexes_of_the_tables(engine: Engine) -> None:
    recorded(engine)
    if engine.dialect.name == "sqlite":
        listed = "SELECT tbl_name, name FROM sqlite_temp_master WHERE type = 'index'"
    else:
        listed = "SELECT tablename, indexname FROM pg_indexes WHERE schemaname LIKE 'pg_temp%'"
    with preview_round(engine, data_of(engine), "agent") as (connection, _), connection.begin():
        names = {(table, name) for table, name in connection.execute(text(listed))}
    copied = [model.table() for model in WRITTEN]
    assert names == {
        (table.name, name)
        for table in copied
        for name in (f"preview_{table.name}", *(str(index.name) for index in table.indexes))
    }
