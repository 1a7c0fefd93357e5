"""Who runs a gateway is known by its reports, and by no fold."""

import pytest
from sqlalchemy import Engine, text

from consumers import database
from consumers.reads import gateways
from consumers.reads.gateways import Report
from consumers.rebuild import rebuild
from tests.consumers.deciding import Control, passed
from tests.consumers.folding import hash_of


def report(gateway: str, position: int = 7, **uses: int) -> Report:
    return Report(gateway, "host-1", position, in_flight=uses, open_sessions={})


def write(engine: Engine, *reports: Report) -> None:
    for one in reports:
        with database.write_transaction(engine) as connection:
            gateways.report(connection, one)


def seen(engine: Engine, within_seconds: float = 60) -> list[Report]:
    with database.read_transaction(engine) as connection:
        return [one.report for one in gateways.read_live_gateways(connection, within_seconds)]


def age(engine: Engine, gateway: str, seconds: float) -> None:
    """As if it had reported that long ago."""
    with database.write_transaction(engine) as connection:
        connection.execute(
            text("UPDATE gateways SET seen = seen - :s, started = started - :s WHERE gateway = :g"),
            {"s": seconds, "g": gateway},
        )


def test_a_gateway_is_known_as_it_last_reported(engine: Engine) -> None:
    write(engine, report("g2"), report("g1", a=2), report("g1", position=9, a=1, b=0))
    one, two = seen(engine)
    assert (one.gateway, one.position, two.gateway) == ("g1", 9, "g2")
    assert one.uses("a")
    assert not one.uses("b")
    assert not two.uses("a")


def test_an_open_session_holds_an_adapter_as_a_call_does(engine: Engine) -> None:
    write(engine, Report("g", "host", 1, in_flight={}, open_sessions={"a": 3}))
    assert seen(engine)[0].uses("a")


def test_one_that_was_not_heard_of_is_not_live_until_it_reports_again(engine: Engine) -> None:
    write(engine, report("g1"), report("g2"))
    age(engine, "g1", 120)
    assert [one.gateway for one in seen(engine)] == ["g2"]
    assert [one.gateway for one in seen(engine, within_seconds=600)] == ["g1", "g2"]
    write(engine, report("g1"))
    with database.read_transaction(engine) as connection:
        first, second = gateways.read_live_gateways(connection, 60)
    assert first.age_seconds == pytest.approx(0, abs=30)
    assert first.running_seconds == pytest.approx(120, abs=30), "it is still the same process"
    assert second.running_seconds == pytest.approx(0, abs=30)


def test_one_that_stops_leaves_and_one_that_vanished_is_forgotten(engine: Engine) -> None:
    write(engine, report("g1"), report("g2"), report("g3"))
    age(engine, "g2", 7200)
    with database.write_transaction(engine) as connection:
        gateways.leave(connection, "g1")
        assert gateways.silent(connection, for_seconds=3600) == ["g2"]
        gateways.forget(connection, for_seconds=3600)
        assert gateways.silent(connection, for_seconds=3600) == []
    assert [one.gateway for one in seen(engine, within_seconds=1e6)] == ["g3"]


def test_a_rebuild_leaves_reports_alone_and_they_leave_the_hash_alone(engine: Engine) -> None:
    control = Control(engine)
    control.decide(*passed("a"))
    before = hash_of(engine)
    write(engine, report("g1", a=1))
    assert hash_of(engine) == before
    assert rebuild(control.log, engine).equal
    with database.write_transaction(engine) as connection:
        connection.execute(text("UPDATE adapters SET state = 'promoted'"))
    assert rebuild(control.log, engine, confirmed=True).swapped
    assert hash_of(engine) == before
    assert seen(engine) == [report("g1", a=1)]
