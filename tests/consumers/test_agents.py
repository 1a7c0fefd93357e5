"""On which base an agent runs: who answered its newest rollout."""

from sqlalchemy import Engine

from consumers import agents
from consumers.tally import Pair
from events.log import Entry
from tests.consumers.cycling import Leading
from tests.consumers.folding import fold
from tests.consumers.test_rounds import failure


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
        Pair("agent", "base"), Pair("imported", "unknown"), Pair("unserved", "unknown"),
    ]  # fmt: skip
