"""Spools whose owners fell silent are known, and what of them is in no table."""

import pytest
from sqlalchemy import Engine

from consumers import database
from consumers.reads import spools
from consumers.reads.spools import Report
from consumers.rebuild import rebuild
from consumers.runner import Runner
from events.memory import MemoryLog
from tests.consumers.folding import ended, hash_of


def report(source: str, *ends: int) -> Report:
    return Report(source, "host-1", f"/var/lib/{source}/log.db", {"rollouts": ends})


def write(engine: Engine, *reports: Report) -> None:
    for one in reports:
        with database.write_transaction(engine) as connection:
            spools.report(connection, one)


def known(engine: Engine) -> dict[str, spools.SpoolState]:
    with database.read_transaction(engine) as connection:
        return {one.report.source: one for one in spools.read_spools(connection)}


def test_a_spool_is_known_as_it_was_last_reported(engine: Engine) -> None:
    write(engine, report("s2", 1), report("s1", 3, 0), report("s1", 3, 4))
    found = known(engine)
    assert list(found) == ["s1", "s2"]
    assert found["s1"].report == Report("s1", "host-1", "/var/lib/s1/log.db", {"rollouts": [3, 4]})
    assert found["s1"].age_seconds == pytest.approx(0, abs=30)
    assert (found["s1"].unfolded, found["s2"].unfolded) == (7, 1)


def test_what_was_folded_is_missed_no_more_however_it_came(engine: Engine) -> None:
    log = MemoryLog()
    log.append([ended(f"r-{number}") for number in range(20)])
    ends = log.end("rollouts")
    write(engine, Report(log.source, "gone", "/gone/log.db", {"rollouts": ends}))
    assert known(engine)[log.source].unfolded == 20
    Runner(log, engine).catch_up()
    assert known(engine)[log.source].unfolded == 0


def test_one_that_is_forgotten_is_gone_and_another_one_cannot_be(engine: Engine) -> None:
    write(engine, report("s1", 1))
    with database.write_transaction(engine) as connection:
        assert not spools.forget(connection, "s2")
        assert spools.forget(connection, "s1")
    assert known(engine) == {}


def test_a_rebuild_neither_counts_nor_drops_them(engine: Engine) -> None:
    log = MemoryLog()
    log.append([ended("r")])
    Runner(log, engine).catch_up()
    before = hash_of(engine)
    write(engine, report("s1", 1))
    assert hash_of(engine) == before
    assert rebuild(log, engine).equal
    assert list(known(engine)) == ["s1"]
