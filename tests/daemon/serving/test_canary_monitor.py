"""Live traffic decides about canaries: by evidence, by time, and never against a person."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from daemon.config.settings import Settings
from daemon.core.app import App
from daemon.core.decision_log import Decisions
from daemon.serving.canary_monitor import CanaryEvidence, Guards, decide, due_share
from daemon.serving.sequential_test import ENOUGH, UNEQUAL
from daemon.status.doctor.serving import canaries
from events.codec import decode, encode
from events.envelope import Envelope, derive_id, utc_now
from events.learning import Decision
from events.log import Entry, now_ms
from events.messages import Message, ToolCall
from events.rollouts import (
    CallStarted,
    EventData,
    FeedbackReceived,
    HoldoutDraw,
    RolloutContent,
    RolloutEnded,
    Task,
)
from events.serving import ArmCounts, RouteChanged, Why
from tests.consumers.deciding import passed, routed

A: Final = "a"
DAY: Final = timedelta(days=1)
SHARES: Final = {A: 0.5, "base": 0.5}
"""That drew the sessions, by policy."""


class Traffic:
    """A home with a canary, and sessions of it that end with a verdict."""

    def __init__(self, folder: Path, **canary: Any) -> None:
        self.app = App(Settings(home=folder, canary=canary))
        self.decisions = Decisions(self.app)
        self.guards = Guards(self.app)
        self.numbers = count()
        for step, data in enumerate(passed(A)):
            self.decisions.take(data, str(step), "before")

    def route(self, why: Why, shares: dict[str | None, float]) -> None:
        self.take(routed(why, shares))

    def take(self, data: Decision) -> None:
        self.decisions.take(data, f"step {next(self.numbers)}", "test")

    def sessions(
        self,
        adapter: str | None,
        verdicts: Iterable[bool | None],
        loops: int = 0,
        shares: dict[str, float] = SHARES,
        began: timedelta = timedelta(),
        ended: timedelta = timedelta(),
        grader: str | None = None,
    ) -> None:
        """Sessions of one call each; `began` and `ended` from now."""
        entries = [
            one
            for verdict in verdicts
            for one in self._session(adapter, verdict, loops, shares, began, ended, grader)
        ]
        self.app.append(entries)
        self.app.settle()

    def begin(self, adapter: str | None, number: int) -> None:
        """Sessions that do not end."""
        sessions = [self._session(adapter, None, 0) for _ in range(number)]
        self.app.append([next(session) for session in sessions])
        self.app.settle()

    def _session(
        self,
        adapter: str | None,
        verdict: bool | None,
        loops: int,
        shares: dict[str, float] = SHARES,
        began: timedelta = timedelta(),
        ended: timedelta = timedelta(),
        grader: str | None = None,
    ) -> Iterator[Entry]:
        name = f"s{next(self.numbers)}"
        yield entry(
            CallStarted(
                call=f"call-{name}", session=name, alias="agent", base="base",
                policy=adapter or "base", routed="drawn", shares=shares,
            ),
            began,
        )  # fmt: skip
        looping = Message(
            role="assistant", tool_calls=(ToolCall(id="c", name="look", arguments={"a": 1}),)
        )
        answer = Message(role="tool", tool_call_id="c", content="nothing")
        yield entry(
            RolloutEnded(
                rollout=f"rollout-{name}", alias="agent", base="base", policy=adapter or "base",
                source="live", session=name, success=verdict, grader=grader,
                task=Task(id="t", environment="library", capability="k"),
                content=RolloutContent(messages=(looping, answer) * (5 * loops)),
            ),
            ended,
        )  # fmt: skip

    def watch(self, later: timedelta = timedelta()) -> list[RouteChanged]:
        return self.guards.watch(utc_now() + later)

    def routes(self) -> list[RouteChanged]:
        found = [decode(record).data for record in self.app.spool.read("learning", 0, 0)]
        return [data for data in found if isinstance(data, RouteChanged)]


def entry(data: EventData, later: timedelta = timedelta()) -> Entry:
    when = utc_now() + later
    identity = derive_id("test", data.TYPE, data.key(), str(later), data.model_dump_json()[:200])
    envelope = Envelope(identity, data.TYPE, data.VERSION, data.key(), when)
    return encode(envelope, data, now_ms()).entry


@pytest.fixture
def traffic(tmp_path: Path) -> Iterator[Traffic]:
    """A canary with the first share."""
    made = Traffic(tmp_path / "home")
    made.route("canary", {A: 0.05, None: 0.95})
    yield made
    made.app.close()


def shares(route: RouteChanged) -> dict[str | None, float]:
    return {part.adapter: part.share for part in route.shares}


def alternating(chance: float, number: int, seed: int = 0) -> list[bool]:
    draws = Random(seed)
    return [draws.random() < chance for _ in range(number)]


def test_nothing_happens_while_nothing_is_shown(traffic: Traffic) -> None:
    assert traffic.watch() == []
    assert canaries(traffic.app)[0]
    for adapter in (A, None):
        traffic.sessions(adapter, [True, False] * 2)
    assert traffic.watch() == []
    assert canaries(traffic.app) == (
        True, "a: 4 judged sessions, evidence 0.785 that it is worse and 0.629 that it is not",
    )  # fmt: skip


def test_a_canary_that_is_worse_is_rolled_back(traffic: Traffic) -> None:
    traffic.sessions(A, [False] * 30)
    traffic.sessions(None, [True] * 30)
    (route,) = traffic.watch()
    assert (route.why, shares(route)) == ("rollback", {None: 1.0})
    assert route.evidence is not None
    assert route.evidence.against >= ENOUGH
    assert (route.evidence.pairs, route.evidence.expected) == (30, 30.0)
    assert route.evidence.canary == ArmCounts(judged=30, failed=30)
    assert route.evidence.incumbent == ArmCounts(judged=30, failed=0)
    assert "worse, most at k: 30 of 30 judged sessions failed" in route.reason
    assert traffic.watch() == [], "and that is it"


def test_a_canary_that_is_better_rises_and_is_promoted(traffic: Traffic) -> None:
    seen = []
    for _ in range(20):
        traffic.sessions(A, [True] * 2)
        traffic.sessions(None, [True, False])
        seen += [(route.why, shares(route)) for route in traffic.watch()]
    assert seen == [("canary", {A: 0.25, None: 0.75}), ("promoted", {A: 1.0})]


def test_one_that_is_as_good_is_promoted_and_not_rolled_back(traffic: Traffic) -> None:
    for adapter in (A, None):
        traffic.sessions(adapter, [False] * 480)
    (route,) = traffic.watch()
    assert (route.why, shares(route)) == ("promoted", {A: 1.0})


def test_where_nobody_fails_nothing_is_shown(traffic: Traffic) -> None:
    for adapter in (A, None):
        traffic.sessions(adapter, [True] * 100)
    assert traffic.watch() == []
    (route,) = traffic.watch(DAY + timedelta(minutes=1))
    assert route.why == "expired"
    assert "decided nothing in time: 0 of 100 judged sessions failed" in route.reason


def test_a_canary_whose_sessions_are_judged_less_often_is_not_promoted(traffic: Traffic) -> None:
    """Though those that are judged went well. When its time is over, the reason is said."""
    traffic.sessions(A, [True] * 20)
    traffic.sessions(A, [None] * 60)
    traffic.sessions(None, [True, False] * 40)
    with traffic.app.reading() as connection:
        (one,) = Guards(traffic.app).look(connection)
    assert one.guard.towards >= ENOUGH
    assert traffic.watch() == []
    sound, finding = canaries(traffic.app)
    assert not sound
    assert "20 sessions of a were judged where its shares foretell 50.0" in finding
    (route,) = traffic.watch(DAY + timedelta(minutes=1))
    assert (route.why, shares(route)) == ("expired", {None: 1.0})
    assert "20 of its sessions were judged where its shares foretell 50.0" in route.reason
    assert route.evidence is not None
    assert route.evidence.imbalance is not None
    assert route.evidence.imbalance >= UNEQUAL


def test_a_canary_is_not_promoted_while_its_open_sessions_may_change_that(
    traffic: Traffic,
) -> None:
    traffic.begin(A, 60)
    traffic.sessions(A, [True] * 20)
    traffic.sessions(None, [True, False] * 10)
    assert traffic.watch() == []
    traffic.sessions(A, [True] * 100)
    traffic.sessions(None, [True, False] * 50)
    (route,) = traffic.watch()
    assert route.why == "promoted", "sixty failures more would not matter now"


def test_a_canary_is_not_promoted_while_verdicts_of_its_ended_sessions_may_come(
    traffic: Traffic,
) -> None:
    """They are as young as others were that were judged since."""
    slow = timedelta(minutes=5)
    for adapter in (A, None):
        traffic.sessions(adapter, [None] * 60)
    traffic.sessions(A, [True] * 20, ended=slow)
    traffic.sessions(None, [True, False] * 10, ended=slow)
    assert traffic.watch() == []
    traffic.sessions(None, [None], began=2 * slow, ended=2 * slow)
    (route,) = traffic.watch()
    assert route.why == "promoted", "nobody was judged who was as old as they are now"


def test_the_decision_names_what_it_read_and_follows_from_the_route(traffic: Traffic) -> None:
    traffic.sessions(A, [False] * 30)
    traffic.sessions(None, [True] * 30)
    (route,) = traffic.watch()
    assert route.evidence is not None
    read = route.evidence.position["rollouts"]
    assert sum(sum(after + 1 for after in of.values()) for of in read.values()) == 120
    records = traffic.app.spool.read("learning", 0, 0)
    event, before = decode(records[-1]), decode(records[-2])
    assert event.envelope.cause == before.envelope.id
    assert event.envelope.id == derive_id(before.envelope.id, "guard rollback")


def test_a_session_without_a_verdict_says_nothing(traffic: Traffic) -> None:
    traffic.sessions(A, [None] * 50)
    traffic.sessions(None, [None] * 50)
    assert traffic.watch() == []


def test_in_its_time_a_canary_that_showed_nothing_ends(traffic: Traffic) -> None:
    traffic.sessions(A, [True] * 3)
    traffic.sessions(None, [True] * 3)
    assert traffic.watch(DAY - timedelta(minutes=1)) == []
    (route,) = traffic.watch(DAY + timedelta(minutes=1))
    assert (route.why, shares(route)) == ("expired", {None: 1.0})


def test_in_its_time_one_that_loops_more_is_rolled_back_though_nobody_judged(
    traffic: Traffic,
) -> None:
    traffic.sessions(A, [None] * 20, loops=1)
    traffic.sessions(None, [None] * 20)
    (route,) = traffic.watch(DAY + timedelta(minutes=1))
    assert (route.why, shares(route)) == ("rollback", {None: 1.0})


def test_in_its_time_an_equal_one_is_not_rolled_back_though_its_share_rose_as_traffic_got_worse(
    traffic: Traffic,
) -> None:
    """It has its share of the loops of both times: those of the whole are more than its share of
    all sessions, for most of its sessions are from the worse time."""
    for loops, share in ((0, 0.05), (1, 0.25)):
        canary = round(100 * share)
        drew = {A: share, "base": 1 - share}
        traffic.sessions(A, [None] * canary, loops, drew)
        traffic.sessions(None, [None] * (100 - canary), loops, drew)
    (route,) = traffic.watch(DAY + timedelta(minutes=1))
    assert (route.why, shares(route)) == ("expired", {None: 1.0})


def test_silence_never_promotes(traffic: Traffic) -> None:
    (route,) = traffic.watch(DAY + timedelta(minutes=1))
    assert route.why == "expired"


def test_a_route_that_a_person_set_is_left_to_them(tmp_path: Path) -> None:
    traffic = Traffic(tmp_path / "home")
    traffic.route("operator", {A: 0.5, None: 0.5})
    traffic.sessions(A, [False] * 30)
    traffic.sessions(None, [True] * 30)
    assert traffic.watch(2 * DAY) == []
    traffic.app.close()


def test_a_person_who_was_faster_is_not_overruled(traffic: Traffic) -> None:
    """The guard read the tables, and meanwhile somebody ended the canary."""
    traffic.sessions(A, [True] * 60)
    traffic.sessions(None, [False] * 60)
    (found,) = watching(traffic)
    traffic.route("rollback", {None: 1.0})
    with pytest.raises(Exception, match="rolled_back and cannot join as promoted"):
        traffic.take(found)
    assert shares(traffic.routes()[-2]) == {None: 1.0}
    assert traffic.watch() == []


def watching(traffic: Traffic) -> Sequence[RouteChanged]:
    """What the guard would say now."""
    with traffic.app.reading() as connection:
        found = [
            decide(one, traffic.app.settings.canary, utc_now())
            for one in Guards(traffic.app).look(connection)
        ]
    return [route for route in found if route is not None]


def _said(guards: Guards, traffic: Traffic) -> tuple[int, float, float, float, float, Any]:
    """What a guard knows, and by what position."""
    with traffic.app.reading() as connection:
        (one,) = guards.look(connection)
        settled = one.settled()
    guard = one.guard
    return guard.pairs, guard.against, guard.towards, guard.imbalance, settled, one.position


def _something(chance: Random, begun: list[tuple[str, str]]) -> Iterator[Entry]:
    """Of a session: it begins, goes on, moves to another policy, is judged, or judged earlier than
    it was. Verdicts come in any order."""
    later = timedelta(seconds=chance.uniform(1, 60))
    if not begun or chance.random() < 0.4:
        begun.append((f"s{len(begun)}", chance.choice((A, "base"))))
        session, policy = begun[-1]
    else:
        session, policy = chance.choice(begun)
    what, success = chance.random(), chance.random() < 0.5
    if what < 0.1:
        policy = chance.choice((A, "base"))
    if what < 0.4 or (session, policy) == begun[-1]:
        yield entry(
            CallStarted(
                call=f"call-{session}-{later}", session=session, alias="agent", base="base",
                policy=policy, routed="drawn",
                shares=chance.choice((SHARES, {A: 0.25, "base": 0.75}, None)),
            ),
            later,
        )  # fmt: skip
    if 0.3 < what < 0.7:
        yield entry(FeedbackReceived(session=session, success=success, verified=True), 2 * later)
    elif what > 0.7:
        yield entry(
            RolloutEnded(
                rollout=f"rollout-{session}-{later}", alias="agent", base="base", policy=policy,
                source="live", session=session, success=success,
                task=Task(id="t", environment="library", capability=chance.choice("kl")),
                grader=chance.choice((None, "library/1", "library/1", "library/2")),
                content=RolloutContent(),
            ),
            2 * later,
        )  # fmt: skip


def test_verdicts_under_older_rules_are_not_held_against_a_canary(traffic: Traffic) -> None:
    for adapter in (A, None):
        traffic.sessions(adapter, [adapter is None] * 6, grader="library/1")
    assert _said(traffic.guards, traffic)[0] > 0
    traffic.sessions(None, [True], grader="library/2")
    assert _said(traffic.guards, traffic)[0] == 0
    with traffic.app.reading() as connection:
        (watched,) = traffic.guards.look(connection)
    guard = watched.guard
    assert (guard.count_verdicts("canary"), guard.count_verdicts("incumbent")) == (0, 1)


@pytest.mark.parametrize("seed", range(3))
def test_what_is_remembered_says_what_reading_all_again_says(traffic: Traffic, seed: int) -> None:
    chance, begun = Random(seed), list[tuple[str, str]]()
    for _ in range(40):
        happened = [one for _ in range(chance.randrange(10)) for one in _something(chance, begun)]
        traffic.app.append(happened)
        traffic.app.settle()
        assert _said(traffic.guards, traffic) == _said(Guards(traffic.app), traffic)
    assert _said(traffic.guards, traffic)[0] > 5, "there are pairs"


def test_the_risk_ratio_is_a_setting(tmp_path: Path) -> None:
    """Slightly worse and allowed to be: promoted with a wide ratio, not with a narrow one."""
    outcomes = {}
    for ratio in (1.25, 5.0):
        traffic = Traffic(tmp_path / str(ratio), risk_ratio=ratio)
        traffic.route("canary", {A: 0.05, None: 0.95})
        traffic.sessions(A, [True] * 28 + [False] * 12)
        traffic.sessions(None, [True] * 30 + [False] * 10)
        outcomes[ratio] = [route.why for route in traffic.watch()]
        traffic.app.close()
    assert outcomes == {1.25: [], 5.0: ["promoted"]}


def test_shares_cut_the_way_into_parts_of_one_factor() -> None:
    assert [due_share(value, (0.05, 0.25)) for value in (0, 1, 4.4, 4.5, 19)] == [
        0.05, 0.05, 0.05, 0.25, 0.25,
    ]  # fmt: skip
    assert [due_share(value, (0.1, 0.2, 0.3)) for value in (1, 2.8, 7.5)] == [0.1, 0.2, 0.3]
    assert due_share(19.9, (0.5,)) == 0.5


# Sessions that are held out


def held_out(traffic: Traffic, verdicts: Sequence[bool], policy: str = "base") -> None:
    """Sessions that a draw gave to the base before the shares had a say, and that ended."""
    for verdict in verdicts:
        name = f"held-{next(traffic.numbers)}"
        started = CallStarted(
            call=f"call-{name}", session=name, alias="agent", base="base", policy=policy,
            routed="drawn", holdout=HoldoutDraw(share=0.02, held_out=True),
        )  # fmt: skip
        over = RolloutEnded(
            rollout=f"rollout-{name}", alias="agent", base="base", policy=policy, source="live",
            session=name, success=verdict, task=Task(id="t", capability="k"),
        )  # fmt: skip
        traffic.app.append([entry(started), entry(over)])
    traffic.app.settle()


def test_who_is_held_out_takes_no_part_in_a_canarys_test(traffic: Traffic) -> None:
    """Though the base, which answers them, is the incumbent."""
    for adapter in (A, None):
        traffic.sessions(adapter, [True, False] * 10)
    (before,) = look(traffic)
    held_out(traffic, [True] * 60)
    (after,) = look(traffic)
    assert (after.guard.against, after.guard.towards) == (
        before.guard.against,
        before.guard.towards,
    )
    assert after.guard.count_verdicts("incumbent") == 20
    assert after.settled() == before.settled()
    assert after.drawn() == before.drawn()


def look(traffic: Traffic) -> Sequence[CanaryEvidence]:
    with traffic.app.reading() as connection:
        found = Guards(traffic.app).look(connection)
        return [
            replace(one, settled=partial(float, one.settled()), drawn=partial(list, one.drawn()))
            for one in found
        ]


def test_a_canary_that_rises_and_is_promoted_keeps_the_holdout(tmp_path: Path) -> None:
    made = Traffic(tmp_path / "home")
    made.take(routed("canary", {A: 0.05, None: 0.95}, holdout=0.02))
    for _ in range(20):
        made.sessions(A, [True] * 2)
        made.sessions(None, [True, False])
        made.watch()
    turned = made.routes()
    assert [route.why for route in turned] == ["canary", "canary", "promoted"]
    assert [route.holdout for route in turned] == [0.02] * 3
    made.app.close()


def test_where_the_base_answers_alone_again_nobody_is_held_out(tmp_path: Path) -> None:
    made = Traffic(tmp_path / "home")
    made.take(routed("canary", {A: 0.05, None: 0.95}, holdout=0.02))
    made.sessions(A, [False] * 30)
    made.sessions(None, [True] * 30)
    (route,) = made.watch()
    assert (route.why, shares(route), route.holdout) == ("rollback", {None: 1.0}, 0)
    made.app.close()
