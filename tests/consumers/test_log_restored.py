"""A log that was restored from before: nothing between is passed over in silence."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from consumers import database
from consumers.reads import rollouts as reads
from consumers.rebuild import rebuild
from consumers.runner import Runner
from events.errors import AheadOfLog, KintsugiError
from events.kafka.log import KafkaLog
from events.log import Entry, EventLog
from events.memory import MemoryLog
from events.sqlite.log import SqliteLog
from events.streams import LEARNING, ROLLOUTS
from tests.consumers.folding import Broker, ended, fold, fresh, hash_of, log_of

PARTITION = ROLLOUTS.partition_of("s")


def rollouts(names: str) -> list[Entry]:
    """One for each letter, in one session."""
    return [ended(name, session="s") for name in names]


def folded(engine: Engine) -> str:
    with database.read_transaction(engine) as connection:
        return "".join(sorted(line.rollout for line in reads.rollout_lines(connection)))


def restored(log: MemoryLog, length: int, since: Sequence[Entry]) -> MemoryLog:
    """A copy of a log as it was when it held so many events, and what was appended since."""
    copy = MemoryLog()
    copy.source = log.source
    copy.append(
        [
            Entry(one.stream, one.partition, one.key, one.headers, one.value, one.recorded_ms)
            for one in log.read(ROLLOUTS.name, PARTITION, 0, limit=length)
        ]
    )
    copy.append(since)
    return copy


def refusal(log: EventLog, engine: Engine) -> str:
    """How the fold refuses to go on; the class of the error."""
    with pytest.raises(KintsugiError) as caught:
        fold(log, engine)
    return type(caught.value).__name__


@pytest.mark.parametrize("since", ["xyz", "uvwxyz"], ids=["as long as before", "longer"])
def test_a_log_restored_from_before_halts_the_fold_when_it_has_grown_again(
    engine: Engine, since: str
) -> None:
    log = log_of(rollouts("abcdef"))
    fold(log, engine)
    before = hash_of(engine)
    copy = restored(log, 3, rollouts(since))
    assert refusal(copy, engine) == "LogDiverged"
    assert refusal(copy, engine) == "LogDiverged", "and it goes on halting"
    assert hash_of(engine) == before
    assert folded(engine) == "abcdef"


def test_one_that_has_not_grown_again_is_shorter_than_the_position(engine: Engine) -> None:
    log = log_of(rollouts("abcdef"))
    fold(log, engine)
    for since in ("", "xy"):
        with pytest.raises(AheadOfLog):
            fold(restored(log, 3, rollouts(since)), engine)


def test_nothing_of_another_partition_is_folded_either(engine: Engine) -> None:
    log = log_of(rollouts("abcdef"))
    fold(log, engine)
    other = next(f"t{n}" for n in range(99) if ROLLOUTS.partition_of(f"t{n}") < PARTITION)
    copy = restored(log, 3, [*rollouts("uvwxyz"), ended("z", session=other)])
    refusal(copy, engine)
    assert folded(engine) == "abcdef"


def test_the_same_log_goes_on_whatever_was_trimmed_of_it(engine: Engine) -> None:
    log = log_of(rollouts("abcdef"))
    fold(log, engine)
    log.trim(ROLLOUTS.name, PARTITION, 6)
    log.append(rollouts("gh"))
    fold(log, engine)
    assert folded(engine) == "abcdefgh"


def test_a_rebuild_that_is_confirmed_goes_on_with_the_restored_log(
    engine: Engine, tmp_path: Path
) -> None:
    log = log_of(rollouts("abcdef"))
    fold(log, engine)
    copy = restored(log, 3, rollouts("uvwxyz"))
    refused = rebuild(copy, engine)
    assert (refused.equal, refused.swapped) == (False, False)
    assert folded(engine) == "abcdef"
    assert rebuild(copy, engine, confirmed=True).swapped
    copy.append(rollouts("k"))
    fold(copy, engine)
    straight = fresh(tmp_path, "straight")
    fold(copy, straight)
    assert folded(engine) == "abckuvwxyz"
    assert hash_of(engine) == hash_of(straight)


@pytest.mark.parametrize("since", ["", "xy"])
def test_so_does_one_of_a_log_that_is_shorter_than_the_position(engine: Engine, since: str) -> None:
    log = log_of(rollouts("abcdef"))
    log.append([ended("z", session="t")])
    fold(log, engine)
    copy = restored(log, 3, rollouts(since))
    assert rebuild(copy, engine, confirmed=True).swapped
    fold(copy, engine)
    assert folded(engine) == "abc" + since


def test_equal_rows_at_another_place_are_gone_on_from_once_confirmed(engine: Engine) -> None:
    """What was lost was of a type that no fold knows."""
    log = log_of(rollouts("abc"))
    lost = rollouts("d")[0]
    headers = tuple((n, b"Unheard" if n == "ce_type" else v) for n, v in lost.headers)
    log.append([Entry(lost.stream, lost.partition, "s", headers, lost.value, 1)])
    fold(log, engine)
    copy = restored(log, 3, rollouts("x"))
    assert refusal(copy, engine) == "LogDiverged"
    with database.write_transaction(engine) as connection:
        connection.execute(text("DELETE FROM rollouts WHERE rollout = 'none'"))
    assert rebuild(restored(log, 3, []), engine, confirmed=True).swapped
    fold(copy, engine)
    assert folded(engine) == "abcx"


def test_tables_of_before_this_check_are_believed_once(engine: Engine) -> None:
    log = log_of(rollouts("abcdef"))
    fold(log, engine)
    with database.write_transaction(engine) as connection:
        connection.execute(text("UPDATE positions SET last_offset = NULL, last_sha256 = NULL"))
        connection.execute(text("UPDATE sources SET last_sha256 = NULL"))
    fold(log, engine)
    assert refusal(restored(log, 3, rollouts("uvwxyz")), engine) == "LogDiverged"


def test_an_earlier_version_that_folds_beside_this_one_raises_no_alarm(engine: Engine) -> None:
    """It moves offset and sequence, and knows nothing of the rest."""
    log = log_of(rollouts("abcdef"))
    Runner(log, engine).catch_up({(ROLLOUTS.name, PARTITION): 3})
    with database.write_transaction(engine) as connection:
        connection.execute(text("UPDATE positions SET next_offset = 6"))
        connection.execute(text("UPDATE sources SET sequence = 5"))
    broker = Broker()
    broker.deliver(log.read(ROLLOUTS.name, PARTITION, 0))
    broker.deliver(log.read(ROLLOUTS.name, PARTITION, 4))
    log.append(rollouts("g"))
    broker.deliver(log.read(ROLLOUTS.name, PARTITION, 6))
    fold(broker, engine)
    assert folded(engine) == "abcg"
    with database.read_transaction(engine) as connection:
        assert reads.dead_letters(connection) == []
    assert refusal(restored(log, 2, rollouts("uvwxyzklm")), engine) == "LogDiverged"


def test_an_event_under_the_number_of_another_is_a_dead_letter(engine: Engine) -> None:
    """A spool that was restored from before numbers once more from there; go-back-N does not."""
    spool = log_of(rollouts("abcdef"))
    broker = Broker()
    broker.deliver(spool.read(ROLLOUTS.name, PARTITION, 0))
    broker.deliver(spool.read(ROLLOUTS.name, PARTITION, 2))
    fold(broker, engine)
    again = restored(spool, 3, rollouts("uvwxyz"))
    broker.deliver(again.read(ROLLOUTS.name, PARTITION, 3))
    fold(broker, engine)
    with database.read_transaction(engine) as connection:
        (letter,) = reads.dead_letters(connection)
    assert (letter.stream, letter.offset) == (ROLLOUTS.name, 12)
    assert "another event under sequence 5" in letter.reason
    assert folded(engine) == "abcdefxyz"


def test_a_fold_that_runs_sees_that_the_file_was_replaced(engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    log = SqliteLog(path)
    log.append(rollouts("abc"))
    log.close()
    shutil.copy(path, tmp_path / "backup.db")
    log = SqliteLog(path)
    log.append(rollouts("def"))
    runner = Runner(log, engine)
    runner.catch_up()
    for beside in ("-wal", "-shm"):
        path.with_name(f"log.db{beside}").unlink()
    (tmp_path / "backup.db").replace(path)
    with pytest.raises(KintsugiError, match="replaced"):
        runner.catch_up()
    with pytest.raises(KintsugiError, match="replaced"):
        log.append(rollouts("g"))
    log.close()
    again = SqliteLog(path)
    again.append(rollouts("uvwxyz"))
    assert refusal(again, engine) == "LogDiverged"
    assert folded(engine) == "abcdef"
    again.close()


def test_a_record_counts_the_same_on_another_log(engine: Engine) -> None:
    """The tables may go on with the broker's copy of a home's log, and with a restored one."""
    log = log_of(rollouts("abcdef"))
    fold(log, engine)
    broker = Broker()
    broker.deliver(log.read(ROLLOUTS.name, PARTITION, 0))
    fold(broker, engine)
    assert folded(engine) == "abcdef"


@pytest.mark.kafka
def test_a_restored_topic_halts_the_fold_as_well(engine: Engine, kafka_log: KafkaLog) -> None:
    kafka_log.append(rollouts("abcdef"))
    fold(kafka_log, engine)
    kafka_log.append([ended("l", session="t")])
    fold(kafka_log, engine)
    with database.write_transaction(engine) as connection:
        connection.execute(
            text("UPDATE positions SET last_sha256 = 'other' WHERE partition = :p"),
            {"p": PARTITION},
        )
    assert refusal(kafka_log, engine) == "LogDiverged"


def test_the_decisions_are_watched_too(engine: Engine) -> None:
    log = log_of([])
    made = rollouts("ab")
    here = [Entry(LEARNING.name, 0, "k", one.headers, one.value, 1) for one in made]
    log.append([here[0]])
    fold(log, engine)
    other = log_of([here[1]])
    assert refusal(other, engine) == "LogDiverged"
