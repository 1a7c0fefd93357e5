"""Which sessions are open, with whom, and when they are over."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from producers.gateway.routing.sticky_sessions import StickySessions

IDLE, AGE = 10.0, 50.0


def stays(most: int = 100) -> StickySessions:
    return StickySessions(IDLE, AGE, most)


def test_a_session_has_a_policy_per_alias_until_it_ends() -> None:
    known = stays()
    known.assign("s", "agent", "a1", 0)
    known.assign("s", "planner", None, 1)
    assert known.read_policies("s", 2) == {"agent": "a1", "planner": None}
    known.end("s")
    assert known.read_policies("s", 2) == {}
    assert known.count_open(2) == {}


def test_what_was_silent_for_too_long_is_over() -> None:
    known = stays()
    known.assign("s", "agent", "a1", 0)
    assert known.count_open(IDLE - 0.1) == {"a1": 1}
    assert known.read_policies("s", IDLE) == {}
    known.assign("t", "agent", "a1", 0)
    assert known.count_open(IDLE) == {}


def test_what_is_too_old_is_over_however_much_is_said() -> None:
    known = stays()
    for second in range(int(AGE)):
        known.assign("s", "agent", "a1", second)
    assert known.count_open(AGE - 0.1) == {"a1": 1}
    assert known.read_policies("s", AGE) == {}
    known.assign("s", "agent", "a1", AGE - 1)
    assert known.count_open(AGE) == {"a1": 1}, "what goes on afterwards is a new session"


def test_of_too_many_the_ones_that_were_silent_longest_are_forgotten() -> None:
    known = stays(most=2)
    for second, session in enumerate("abac"):
        known.assign(session, "agent", "a1", second)
    assert [session for session in "abc" if known.read_policies(session, 4)] == ["a", "c"]
    assert known.count_open(4) == {"a1": 2}


def test_recalled_sessions_are_known_and_newer_ones_stay() -> None:
    earlier, now = stays(), stays()
    earlier.assign("old", "agent", "a1", 0)
    earlier.assign("both", "agent", "a1", 0)
    now.assign("both", "agent", "a2", 5)
    now.recall(earlier)
    assert now.read_policies("old", 6) == {"agent": "a1"}
    assert now.read_policies("both", 6) == {"agent": "a2"}
    assert now.count_open(6) == {"a1": 1, "a2": 1}


sessions = st.sampled_from("abcdef")
steps = st.tuples(sessions, st.sampled_from(["a1", "a2", None]), st.integers(0, 30), st.booleans())


@given(st.lists(steps, max_size=60), st.integers(1, 6))
def test_the_counts_are_those_of_the_open_sessions(
    given: list[tuple[str, str | None, int, bool]], most: int
) -> None:
    known, now = stays(most), 0
    for session, policy, later, ends in given:
        now += later
        known.read_policies(session, now)
        known.assign(session, "agent", policy, now)
        if ends:
            known.end(session)
        counted = known.count_open(now)
        held = Counter(
            policy
            for name in "abcdef"
            if (policy := known.read_policies(name, now).get("agent")) is not None
        )
        assert counted == held
        assert sum(bool(known.read_policies(name, now)) for name in "abcdef") <= most
