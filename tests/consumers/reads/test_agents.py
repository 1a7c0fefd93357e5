"""On which base an agent runs: who answered its newest rollout."""

from pathlib import Path

import pytest
from sqlalchemy import Engine, select

from consumers import database
from consumers.diagnosis.round_counts import Pair
from consumers.reads import agents
from consumers.tables import Rollout
from events.log import Entry
from events.memory import MemoryLog
from migrations.upgrade import upgrade
from tests.consumers.cycling import Leading
from tests.consumers.diagnosis.test_rounds import failure
from tests.consumers.folding import fold
from tests.consumers.plans import plans_of


def present(engine: Engine, *entries: Entry) -> list[Pair]:
    leading = Leading(engine)
    leading.log.append(list(entries))
    fold(leading.log, engine)
    with leading.tables() as connection:
        return agents.present(connection)


def test_the_base_that_answered_last_is_the_present_one(engine: Engine) -> None:
    found = present(
        engine,
        failure("old", second=1, base="old"),
        failure("new", second=2, base="new"),
        failure("undated", base="undated"),
        failure("trained", second=3, base="other", purpose="train"),
        failure("theirs", second=3, alias="another", base="other"),
    )
    assert found == [Pair("agent", "new"), Pair("another", "other")]


def test_a_call_that_nobody_answered_changes_no_base(engine: Engine) -> None:
    """A client asks for a model that does not exist: that is no move to another base, and calls
    off no cycle."""
    found = present(
        engine,
        failure("answered", second=1, base="base", purpose="live"),
        failure("misspelt", second=2, base="unknown", policy="nobody", purpose="live"),
        failure("only", second=1, alias="unserved", base="unknown", purpose="live"),
        failure("named", second=1, alias="imported", base="named", purpose="import"),
        failure("unnamed", second=2, alias="imported", base="unknown", purpose="import"),
    )
    assert found == [
        Pair("agent", "base"), Pair("imported", "unknown"),
    ]  # fmt: skip


@pytest.mark.parametrize("second", [7, None])
def test_of_two_bases_at_one_time_that_of_the_larger_id_is_the_present_one(
    engine: Engine, second: int | None
) -> None:
    found = present(
        engine,
        *(
            failure(f"{base}-{n}", base=base, second=second)
            for base in ("a", "b", "c")
            for n in "12"
        ),
        failure("unanswered", base="unknown", policy="nobody", purpose="live", second=second),
    )
    rollouts = Rollout.table().c
    with database.read_transaction(engine) as connection:
        query = select(rollouts.base).where(rollouts.base != "unknown")
        last = connection.execute(query.order_by(rollouts.rollout.desc()).limit(1)).scalar_one()
    assert found == [Pair("agent", last)]


def test_what_every_tick_asks_reads_the_index_and_no_more_of_a_longer_history(
    tmp_path: Path,
) -> None:
    """As many questions of ten rollouts as of a hundred, and each is answered by the index."""
    asked: list[list[str]] = []
    for count in (10, 100):
        engine = database.open_database(database.sqlite_url(tmp_path / f"{count}.db"))
        upgrade(engine)
        log = MemoryLog()
        log.append([failure(f"r{n}", second=n, base="ab"[n % 2]) for n in range(count)])
        fold(log, engine)
        with database.read_transaction(engine) as connection:
            plans = plans_of(connection)
            assert agents.present(connection) == [Pair("agent", "b")]
            assert agents.newest_rollouts(connection).keys() == {"agent"}
            assert agents.read_oldest_rollout_time(connection, "agent", "a") is not None
        asked.append(plans)
        engine.dispose()
    assert asked[0] == asked[1]
    assert asked[0]
    by_agent = ("INDEX ix_rollouts_agent", "INDEX ix_rollouts_counted")
    assert all(any(index in plan for index in by_agent) for plan in asked[0])
