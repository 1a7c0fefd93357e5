"""Which sessions are open, with whom, and when they are over."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from producers.gateway.routing.sticky_sessions import Stays

IDLE, AGE = 10.0, 50.0


def stays(most: int = 100) -> Stays:
    return Stays(IDLE, AGE, most)


def test_a_session_has_a_policy_per_alias_until_it_ends() -> None:
    known = stays()
    known.answered("s", "agent", "a1", 0)
    known.answered("s", "planner", None, 1)
    assert known.of("s", 2) == {"agent": "a1", "planner": None}
    known.ended("s")
    assert known.of("s", 2) == {}
    assert known.open(2) == {}


def test_what_was_silent_for_too_long_is_over() -> None:
    known = stays()
    known.answered("s", "agent", "a1", 0)
    assert known.open(IDLE - 0.1) == {"a1": 1}
    assert known.of("s", IDLE) == {}
    known.answered("t", "agent", "a1", 0)
    assert known.open(IDLE) == {}


def test_what_is_too_old_is_over_however_much_is_said() -> None:
    known = stays()
    for second in range(int(AGE)):
        known.answered("s", "agent", "a1", second)
    assert known.open(AGE - 0.1) == {"a1": 1}
    assert known.of("s", AGE) == {}
    known.answered("s", "agent", "a1", AGE - 1)
    assert known.open(AGE) == {"a1": 1}, "what goes on afterwards is a new session"


def test_a_session_that_moves_is_counted_where_it_is() -> None:
    known = stays()
    for policy in ("a1", None, "a2"):
        known.answered("s", "agent", policy, 0)
    assert known.open(0) == {"a2": 1}


def test_of_too_many_the_ones_that_were_silent_longest_are_forgotten() -> None:
    known = stays(most=2)
    for second, session in enumerate("abac"):
        known.answered(session, "agent", "a1", second)
    assert [session for session in "abc" if known.of(session, 4)] == ["a", "c"]
    assert known.open(4) == {"a1": 2}


def test_recalled_sessions_are_known_and_newer_ones_stay() -> None:
    earlier, now = stays(), stays()
    earlier.answered("old", "agent", "a1", 0)
    earlier.answered("both", "agent", "a1", 0)
    now.answered("both", "agent", "a2", 5)
    now.recall(earlier)
    assert now.of("old", 6) == {"agent": "a1"}
    assert now.of("both", 6) == {"agent": "a2"}
    assert now.open(6) == {"a1": 1, "a2": 1}


sessions = st.sampled_from("abcdef")
steps = st.tuples(sessions, st.sampled_from(["a1", "a2", None]), st.integers(0, 30), st.booleans())


@given(st.lists(steps, max_size=60), st.integers(1, 6))
def test_the_counts_are_those_of_the_open_sessions(
    given: list[tuple[str, str | None, int, bool]], most: int
) -> None:
    known, now = stays(most), 0
    for session, policy, later, ends in given:
        now += later
        known.of(session, now)
        known.answered(session, "agent", policy, now)
        if ends:
            known.ended(session)
        counted = known.open(now)
        held = Counter(
            policy for name in "abcdef" if (policy := known.of(name, now).get("agent")) is not None
        )
        assert counted == held
        assert sum(bool(known.of(name, now)) for name in "abcdef") <= most
