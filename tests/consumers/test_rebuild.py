"""Rebuild, hash and migrations: the log is the truth, on both databases."""

import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

from sqlalchemy import Engine, delete, text, update

from consumers import database
from consumers.digest import digest, first_difference
from consumers.reads import rollouts
from consumers.rebuild import rebuild
from consumers.runner import Runner
from consumers.tables import METADATA, PROJECTED, REVISION, Pattern, Rollout
from events.learning import CONTROL_KEY
from events.memory import MemoryLog
from events.sqlite.log import SqliteLog
from migrations.upgrade import current, differences, head, upgrade
from ops.mix import mix
from tests.consumers.folding import Broker, close_round, ended, fold, fresh, hash_of, log_of


def folded(engine: Engine, count: int = 300) -> MemoryLog:
    log = log_of(list(mix(count)))
    close_round(log, engine)
    return log


def test_a_rebuild_is_equal_row_for_row_and_leaves_the_tables_alone(engine: Engine) -> None:
    log = folded(engine)
    before = hash_of(engine)
    rebuilt = rebuild(log, engine)
    assert (rebuilt.equal, rebuilt.swapped, rebuilt.events) == (True, False, 301)
    assert rebuilt.hash == before == hash_of(engine)


def test_a_changed_row_is_found_named_and_only_replaced_when_confirmed(engine: Engine) -> None:
    log = folded(engine)
    before = hash_of(engine)
    with database.write_transaction(engine) as connection:
        connection.execute(
            update(Pattern.table()).where(Pattern.table().c.pattern.like("wrong%")).values(streak=7)
        )
    rebuilt = rebuild(log, engine)
    assert (rebuilt.equal, rebuilt.swapped) == (False, False)
    assert "streak is 7 in the live tables and 1 in the rebuild" in str(rebuilt.difference)
    assert rebuilt.changed == {"patterns": 1}
    assert hash_of(engine) != before
    assert rebuild(log, engine, confirmed=True).swapped
    assert hash_of(engine) == before
    assert rebuild(log, engine).equal


def test_a_lost_row_and_a_row_from_nowhere_are_found(engine: Engine) -> None:
    log = folded(engine)
    with database.write_transaction(engine) as connection:
        some = rollouts.rollout_lines(connection, limit=1)[0].rollout
        connection.execute(delete(Rollout.table()).where(Rollout.table().c.rollout == some))
    lost = rebuild(log, engine)
    assert str(lost.difference) == f"rollouts (rollout={some}): the live tables have no such row"
    assert rebuild(log, engine, confirmed=True).swapped
    extra = MemoryLog()
    extra.source = log.source
    with database.write_transaction(engine) as connection:
        connection.execute(
            text("INSERT INTO tasks (alias, task, outputs, reward_basis, origin, order_key) "
                 "VALUES ('z', 'z', '', '', '', '')")
        )  # fmt: skip
    found = rebuild(log, engine)
    assert str(found.difference) == "tasks (alias=z, task=z): the rebuild has no such row"


def test_every_table_can_be_emptied_and_rebuilt(engine: Engine) -> None:
    log = folded(engine)
    before = hash_of(engine)
    with database.write_transaction(engine) as connection:
        for model in PROJECTED:
            connection.execute(delete(model.table()))
    assert rebuild(log, engine, confirmed=True).swapped
    assert hash_of(engine) == before


def test_a_new_fold_version_reports_what_changes_and_swaps_when_confirmed(engine: Engine) -> None:
    log = folded(engine)
    with database.write_transaction(engine) as connection:
        connection.execute(text("UPDATE projection SET fold_version = 0"))
        connection.execute(text("UPDATE calls SET outcome = 'done' WHERE outcome = 'completed'"))
    asked = rebuild(log, engine)
    assert (asked.equal, asked.swapped) == (None, False)
    assert asked.changed["calls"] > 50
    confirmed = rebuild(log, engine, confirmed=True)
    assert (confirmed.equal, confirmed.swapped) == (None, True)
    assert fold(log, engine).counters.folded == 0
    assert rebuild(log, engine).equal


def test_a_dead_letter_that_live_did_not_have_makes_them_unequal(engine: Engine) -> None:
    made = ended("r", session="s")
    log = log_of([made, replace(made, value=b"broken")])
    fold(log, engine)
    with database.write_transaction(engine) as connection:
        connection.execute(text("DELETE FROM dead_letters"))
    assert "dead_letters" in str(rebuild(log, engine).difference)


def test_a_rebuild_while_the_fold_goes_on_is_equal(engine: Engine) -> None:
    log = folded(engine)
    stop = threading.Event()
    live = Runner(log, engine, batch_events=20)
    thread = threading.Thread(target=live.run, args=(stop,))
    thread.start()
    try:
        for start in range(300, 600, 100):
            log.append(list(mix(100, start=start)))
            assert rebuild(log, engine).equal
    finally:
        stop.set()
        thread.join()
    assert rebuild(log, engine).equal


def test_two_rebuilds_at_once_are_refused(engine: Engine) -> None:
    log = folded(engine)
    refused: list[str] = []

    def second(_count: int) -> None:
        if refused:
            return
        try:
            rebuild(log, engine)
        except database.DatabaseUnavailable as error:
            refused.append(str(error))

    assert rebuild(log, engine, on_progress=second).equal
    assert refused
    assert "another rebuild is filling" in refused[0]


def test_the_hash_does_not_depend_on_the_broker_or_on_who_recorded(
    engine: Engine, tmp_path: Path
) -> None:
    spool = log_of(list(mix(300)))
    broker = Broker()
    for partition in range(8):
        broker.deliver(spool.read("rollouts", partition, 0, limit=10_000))
    copied = fresh(tmp_path, "copied")
    fold(broker, copied)
    again = log_of(list(mix(300)))
    assert again.source != spool.source
    fold(again, engine)
    assert hash_of(engine) == hash_of(copied)


def test_hash_and_comparison_notice_every_kind_of_column(tmp_path: Path) -> None:
    one, two = fresh(tmp_path, "one"), fresh(tmp_path, "two")
    log = folded(one)
    fold(log, two)
    with database.write_transaction(two) as connection:
        connection.execute(text("UPDATE rollouts SET sequence = sequence + 1000"))
    with database.read_transaction(one) as left, database.read_transaction(two) as right:
        assert digest(left) == digest(right)
        assert "sequence" in str(first_difference(left, right))
    with database.write_transaction(two) as connection:
        connection.execute(text('UPDATE rollouts SET sequence = sequence - 1000, "offset" = 1'))
    with database.read_transaction(one) as left, database.read_transaction(two) as right:
        assert first_difference(left, right) is None
    with database.write_transaction(two) as connection:
        connection.execute(text("UPDATE feedback SET score = 2 WHERE score = (SELECT max(score) "
                                "FROM feedback)"))  # fmt: skip
    with database.read_transaction(one) as left, database.read_transaction(two) as right:
        assert digest(left) != digest(right)


REBUILD = """
import sys
from pathlib import Path
from consumers import database
from consumers.rebuild import rebuild
from events.sqlite.log import SqliteLog
log = SqliteLog(Path(sys.argv[1]))
print(rebuild(log, database.open_database(sys.argv[2])).hash)
log.close()
"""


def test_hash_seed_time_zone_and_language_of_the_machine_do_not_matter(
    engine: Engine, tmp_path: Path
) -> None:
    log = SqliteLog(tmp_path / "log.db")
    log.append(list(mix(200)))
    close_round(log, engine)
    expected = hash_of(engine)
    log.close()
    url = engine.url.render_as_string(hide_password=False)
    machine = {"PYTHONHASHSEED": "77", "TZ": "America/St_Johns", "LANG": "tr_TR.UTF-8"}
    ran = subprocess.run(
        [sys.executable, "-c", REBUILD, str(tmp_path / "log.db"), url],
        env={**os.environ, **machine},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.strip() == expected


def test_migrations_make_exactly_the_tables_of_the_code(engine: Engine) -> None:
    assert differences(engine) == []
    assert current(engine) == head() == REVISION
    assert upgrade(engine) == REVISION
    assert set(METADATA.tables) >= {model.table().name for model in PROJECTED}


def test_the_learning_stream_has_one_partition_and_one_key() -> None:
    from events.streams import LEARNING

    assert LEARNING.partition_of(CONTROL_KEY) == 0
