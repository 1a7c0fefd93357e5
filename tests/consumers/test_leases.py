"""A lease has one holder, ends by itself, and is no part of what is folded."""

from sqlalchemy import Engine, text

from consumers import database, leases
from consumers.rebuild import rebuild
from tests.consumers.cycling import Leading, over, started
from tests.consumers.folding import hash_of


def take(engine: Engine, holder: str, seconds: float = 60) -> bool:
    with database.write_transaction(engine) as connection:
        return leases.take(connection, "lead", holder, seconds)


def renew(engine: Engine, holder: str, epoch: int | None = None) -> bool:
    with database.write_transaction(engine) as connection:
        return leases.renew(connection, "lead", holder, 60, epoch)


def held(engine: Engine, name: str = "lead") -> leases.LeaseState | None:
    with database.read_transaction(engine) as connection:
        return leases.read_lease(connection, name)


def holder(engine: Engine) -> tuple[str, int | None]:
    found = held(engine)
    assert found is not None
    return found.holder, found.epoch


def shift(engine: Engine, seconds: float) -> None:
    with database.write_transaction(engine) as connection:
        connection.execute(text("UPDATE leases SET expires = expires + :s"), {"s": seconds})


def test_the_first_holds_it_until_it_ends(engine: Engine) -> None:
    assert held(engine) is None
    assert take(engine, "one")
    assert not take(engine, "other")
    assert take(engine, "one"), "whoever has it, has it anew"
    shift(engine, -61)
    found = held(engine)
    assert found is not None
    assert found.seconds < 0
    assert take(engine, "other")
    assert holder(engine) == ("other", None)
    assert not renew(engine, "one", 1)
    assert holder(engine) == ("other", None)


def test_a_renewal_says_the_epoch_and_goes_on_from_now(engine: Engine) -> None:
    assert not renew(engine, "one"), "there is none"
    take(engine, "one")
    shift(engine, -59)
    assert renew(engine, "one", 7)
    found = held(engine)
    assert found is not None
    assert (found.holder, found.epoch) == ("one", 7)
    assert found.seconds > 30
    shift(engine, -100)
    assert renew(engine, "one", 7), "it ended, and nobody took it"


def test_one_that_ends_later_than_any_can_is_free(engine: Engine) -> None:
    take(engine, "one")
    shift(engine, 3600)
    assert take(engine, "other")


def test_it_is_given_back_by_its_holder_alone(engine: Engine) -> None:
    take(engine, "one")
    for giver in ("other", "one"):
        assert holder(engine) == ("one", None)
        with database.write_transaction(engine) as connection:
            leases.give_back(connection, "lead", giver)
    assert held(engine) is None


def test_names_are_leases_of_their_own(engine: Engine) -> None:
    take(engine, "one")
    with database.write_transaction(engine) as connection:
        assert leases.take(connection, "something else", "other", 60)
    assert holder(engine) == ("one", None)


def test_a_rebuild_leaves_leases_alone_and_they_leave_the_hash_alone(engine: Engine) -> None:
    leading = Leading(engine)
    leading.all(started(), over())
    before = hash_of(engine)
    take(engine, "one")
    assert hash_of(engine) == before
    with database.write_transaction(engine) as connection:
        connection.execute(text("UPDATE learning_cycles SET outcome = 'failed'"))
    assert rebuild(leading.log, engine, confirmed=True).swapped
    assert hash_of(engine) == before
    assert holder(engine) == ("one", None)
