"""The lift of drawn sessions: late verdicts and drift move it no further than its bounds allow."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from math import isfinite

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.reads.outcomes.holdout import DrawnSession
from daemon.serving.lift import PATIENCE, Lift, measure_lift, select_due
from events.envelope import timestamp
from ops.bench.lift.traffic import Traffic, look_at, simulate

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(minute: float) -> str:
    return timestamp(START + timedelta(minutes=minute))


def session(
    minute: float,
    success: bool | None = True,
    *,
    age: float | None = 60,
    held_out: bool = False,
    ended: bool = True,
    share: float = 0.1,
) -> DrawnSession:
    return DrawnSession(
        f"s{minute}", held_out, share, at(minute), ended, success, None if success is None else age
    )


def lift_of(sessions: Sequence[DrawnSession], now: float = 1e4, share: float = 0.1) -> Lift:
    return measure_lift("agent", "base", at(0), share, sessions, at(now))


def due(sessions: Sequence[DrawnSession], now: float = 1e4) -> list[float]:
    started = {at(minute): minute for minute in range(100)}
    return [started[one.began] for one in select_due(sessions, at(now))]


def test_what_began_after_an_open_session_does_not_count_yet() -> None:
    sessions = [session(1), session(2, None, ended=False), session(3), session(4)]
    assert due(sessions, now=5) == [1]


def test_an_open_session_is_given_up_when_it_is_too_old() -> None:
    sessions = [session(1), session(2, None, ended=False), session(3)]
    limit = PATIENCE.total_seconds() / 60
    assert due(sessions, now=2 + limit - 1) == [1]
    assert due(sessions, now=2 + limit + 1) == [1, 2, 3]


def test_an_ended_session_is_waited_for_as_long_as_slow_verdicts_take() -> None:
    sessions = [session(1, False, age=600, held_out=True), session(2, None), session(3)]
    assert due(sessions, now=11) == [1], "a failure of the holdout took ten minutes"
    assert due(sessions, now=13) == [1, 2, 3]


def test_all_count_where_all_are_judged() -> None:
    assert due([session(1), session(2), session(3, False)], now=3) == [1, 2, 3]


def test_quick_successes_say_nothing_before_slow_failures_are_known() -> None:
    """Of policies that fail alike, the one with the quicker failures looks worse at first."""
    quick = [session(n, n % 2 == 0, age=6, held_out=True) for n in range(50)]
    slow = [session(n + 0.5, n % 2 == 0 or None, age=6, ended=n % 2 == 0) for n in range(50)]
    lift = lift_of(sorted([*quick, *slow], key=lambda one: one.began), now=51)
    assert (lift.holdout.judged, lift.loop.judged) == (2, 1), "up to the first that is open"
    assert lift.low < 0


def test_arms_that_are_judged_differently_are_told_of() -> None:
    sessions = [session(n, n % 10 != 9 or None, held_out=n % 10 == 0) for n in range(1000)]
    never = [session(n, None, held_out=n % 10 == 0) for n in range(1000, 1100)]
    assert lift_of([*sessions, *never]).judged_ok
    off = [session(n, None if n % 10 == 0 else True, held_out=n % 10 == 0) for n in range(1000)]
    lift = lift_of(off)
    assert (lift.shares_ok, lift.judged_ok) == (True, False)
    assert (lift.holdout.due, lift.holdout.judged) == (100, 0)
    assert lift.difference is None


def test_shares_that_are_off_are_told_of_and_others_not() -> None:
    right = lift_of([session(n, held_out=n % 10 == 0) for n in range(1000)])
    wrong = lift_of([session(n, held_out=n % 20 == 0) for n in range(1000)])
    none = lift_of([session(n) for n in range(1000)])
    assert (right.shares_ok, wrong.shares_ok, none.shares_ok) == (True, False, False)
    assert right.shares_evidence < 1 < 100 <= wrong.shares_evidence < none.shares_evidence
    assert isfinite(none.shares_evidence)


def test_only_sessions_of_the_share_in_force_are_compared() -> None:
    """Where traffic got harder and the share grew, all sessions together would say that the loop is
    better: more of its sessions are of the easy time."""
    easy = [session(n, True, held_out=n % 50 == 0, share=0.02) for n in range(1000)]
    hard = [session(2000 + n, False, held_out=n % 2 == 0, share=0.5) for n in range(1000)]
    lift = lift_of([*easy, *hard], share=0.5)
    assert (lift.holdout.judged, lift.loop.judged, lift.difference) == (500, 500, 0)


@given(
    st.lists(
        st.tuples(st.booleans(), st.sampled_from((True, False, None)), st.booleans()), max_size=80
    )
)
def test_any_sessions_give_a_difference_within_its_bounds(
    drawn: list[tuple[bool, bool | None, bool]],
) -> None:
    lift = lift_of([
        session(n, success, held_out=held_out, ended=ended)
        for n, (held_out, success, ended) in enumerate(drawn)
    ], now=len(drawn))  # fmt: skip
    assert -1 <= lift.low <= lift.high <= 1
    if lift.difference is not None:
        assert lift.low <= lift.difference <= lift.high
    assert lift.holdout.judged <= lift.holdout.due <= lift.holdout.sessions


@pytest.mark.parametrize(
    "traffic",
    [
        Traffic(sessions=400, share=0.1, minutes_fail=60),
        Traffic(sessions=400, share=0.1, judged=(0.4, 0.6), late=0.3, lift=0.15),
    ],
    ids=["slow failures", "judged in part and late"],
)
def test_the_simulation_asks_what_the_product_says(traffic: Traffic) -> None:
    simulated = simulate(traffic, 1)
    for number in (20, 150, 400):
        now = float(simulated.began[number - 1])
        read = list[DrawnSession]()
        for n in range(number):
            began, judged = float(simulated.began[n]), float(simulated.judged[n])
            known = judged <= now
            read.append(
                DrawnSession(
                    f"s{n}", bool(simulated.held_out[n]), traffic.share, at(began),
                    bool(simulated.ended[n] <= now), bool(simulated.success[n]) if known else None,
                    60 * (judged - began) if known else None,
                )
            )  # fmt: skip
        lift = measure_lift("agent", "base", at(0), traffic.share, read, at(now))
        look = look_at(simulated, number, traffic.share)
        assert (look.low, look.high) == (lift.low, lift.high)
        assert look.alarm == (not (lift.shares_ok and lift.judged_ok))
