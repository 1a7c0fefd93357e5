"""Who of a panel answered which calls."""

from sqlalchemy import Engine

from consumers import database
from consumers.methods.skills.panel_reads import PanelTraffic, read_traffic
from events.log import Entry
from events.rollouts import CallEnded, CallStarted, MemberChoice, Outcome
from tests.consumers.folding import at, entry, fold, log_of

ONE = MemberChoice(skill="returns", adapter="one")
ABSENT = MemberChoice(skill="returns", kept=True, doubt="absent")


def call(name: str, member: MemberChoice) -> Entry:
    started = CallStarted(
        call=name, session="s", alias="agent", base="base", policy="p", routed="drawn",
        member=member,
    )  # fmt: skip
    return entry(started, name, at(10))


def over(name: str, outcome: Outcome, upstream: str | None) -> Entry:
    data = CallEnded(call=name, session="s", outcome=outcome, upstream=upstream)
    return entry(data, f"end-{name}", at(20))


def test_calls_count_for_the_member_that_answered_them(engine: Engine) -> None:
    entries = [
        call("whole", ONE), over("whole", "completed", "http://engine/v1"),
        call("lost", ONE), over("lost", "failed", None),
        call("stood in", ABSENT), over("stood in", "completed", "http://engine/v1"),
        call("open", ONE),
    ]  # fmt: skip
    fold(log_of(entries), engine)
    with database.read_transaction(engine) as connection:
        traffic = read_traffic(connection, ["p", "q"])
    assert traffic == {
        "p": PanelTraffic(3, {None: 1, "returns": 2}, {"absent": 1}), "q": PanelTraffic(),
    }  # fmt: skip
