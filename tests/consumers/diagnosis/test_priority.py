"""Every property that priorities and quotas promise, and three patterns over five rounds."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.diagnosis.priority import (
    Override,
    PatternState,
    RoundEvidence,
    Status,
    apply_overrides,
    quotas,
    update,
)


def evidence_of(
    failures: int, failed_total: int, attempts: int, passes: int, broken: int = 0
) -> RoundEvidence:
    """A round in which all attempts are around one anchor."""
    share = passes / attempts if attempts else 0.5
    return RoundEvidence(failures, failed_total, attempts, passes, share, attempts, broken)


@st.composite
def rounds(draw: st.DrawFn) -> RoundEvidence:
    failures = draw(st.integers(0, 30))
    attempts = draw(st.integers(failures, failures + 60))
    passes = draw(st.integers(0, attempts - failures))
    total = draw(st.integers(failures, 60))
    share, weight = draw(st.floats(0, 1)), draw(st.floats(0, attempts))
    broken = draw(st.integers(0, failures))
    return RoundEvidence(failures, total, attempts, passes, share, weight, broken)


def play(history: list[RoundEvidence]) -> PatternState | None:
    state: PatternState | None = None
    for closed in history:
        state = update(state, closed)
    return state


histories = st.lists(rounds(), max_size=6)
states = st.builds(lambda history, last: update(play(history), last), histories, rounds())


@given(histories, rounds(), st.integers(1, 10))
def test_more_failures_never_lower_the_priority(
    history: list[RoundEvidence], closed: RoundEvidence, more: int
) -> None:
    previous = play(history)
    # The more failures on tasks that nobody passes, the lower: by design.
    few = replace(closed, failed_total=closed.failed_total + more, broken=0)
    many = replace(few, failures=few.failures + more)
    assert update(previous, many).priority >= update(previous, few).priority


@given(states, st.integers(0, 8))
def test_a_longer_streak_never_lowers_the_priority(state: PatternState, more: int) -> None:
    assert replace(state, streak=state.streak + more).priority >= state.priority


@given(histories, rounds(), st.floats(0, 1))
def test_a_higher_pass_rate_never_raises_the_priority(
    history: list[RoundEvidence], closed: RoundEvidence, more: float
) -> None:
    previous = play(history)
    better = replace(closed, share=closed.share + (1 - closed.share) * more)
    assert update(previous, better).priority <= update(previous, closed).priority


@given(histories, rounds())
def test_failures_on_tasks_that_nobody_passes_never_raise_the_priority(
    history: list[RoundEvidence], closed: RoundEvidence
) -> None:
    previous = play(history)
    all_broken = update(previous, replace(closed, broken=closed.failures))
    none_broken = update(previous, replace(closed, broken=0))
    assert all_broken.priority <= update(previous, closed).priority <= none_broken.priority
    assert all_broken.learnability == (0.25 if closed.failures else 1)


@given(states)
def test_resolved_means_no_priority(state: PatternState) -> None:
    assert (state.priority == 0) == (state.status is Status.RESOLVED or state.recurrence == 0)


@given(histories, rounds())
def test_bounds(history: list[RoundEvidence], closed: RoundEvidence) -> None:
    state = update(play(history), closed)
    assert 0 <= state.recurrence <= 1
    assert 0 < state.pass_rate < 1
    assert 0 <= state.priority <= 3 * 1.5
    assert (state.streak == 0) != (state.absent == 0)


priorities = st.dictionaries(
    st.text(max_size=3),
    st.floats(0, 4.5) | st.sampled_from([0.0, 1e-300, 0.1, 0.1, 4.5]),
    max_size=12,
)


@given(priorities, st.integers(0, 40))
def test_quotas_sum_to_the_budget_within_their_bounds(
    given_priorities: dict[str, float], q_max: int
) -> None:
    found = quotas(given_priorities, q_max)
    wanted = {pid for pid, priority in given_priorities.items() if priority > 0}
    cap = math.ceil(q_max / 2)
    assert sum(found.values()) == min(q_max, cap * len(wanted))
    assert all(1 <= quota <= cap for quota in found.values())
    assert found.keys() <= wanted
    assert len(found) == min(len(wanted), q_max)


@given(priorities, st.integers(0, 40))
def test_quotas_do_not_depend_on_the_order_given(
    given_priorities: dict[str, float], q_max: int
) -> None:
    backwards = dict(reversed(given_priorities.items()))
    assert quotas(backwards, q_max) == quotas(given_priorities, q_max)


@given(priorities, st.integers(0, 40))
def test_a_higher_priority_never_gets_less(given_priorities: dict[str, float], q_max: int) -> None:
    found = quotas(given_priorities, q_max)
    ranked = sorted(given_priorities, key=lambda pid: -given_priorities[pid])
    for high, low in pairwise(ranked):
        if given_priorities[high] > given_priorities[low]:
            assert found.get(high, 0) >= found.get(low, 0)


@pytest.mark.parametrize(
    ("given_priorities", "q_max", "expected"),
    [
        ({}, 8, {}),
        ({"a": 0.0}, 8, {}),
        ({"a": 1.0}, 7, {"a": 4}),
        ({"a": 1.0, "b": 1.0}, 7, {"a": 4, "b": 3}),
        ({"a": 3.0, "b": 1.0}, 8, {"a": 4, "b": 4}),
        ({"a": 100.0, "b": 1.0, "c": 1.0, "d": 1.0}, 4, {"a": 1, "b": 1, "c": 1, "d": 1}),
        ({"a": 100.0, "b": 1.0, "c": 1.0}, 10, {"a": 5, "b": 3, "c": 2}),
        ({"a": 5.0, "b": 3.0, "c": 2.0}, 10, {"a": 5, "b": 3, "c": 2}),
        ({"a": 1.0, "b": 1.0, "c": 0.9}, 2, {"a": 1, "b": 1}),
    ],
)
def test_quotas_by_hand(
    given_priorities: dict[str, float], q_max: int, expected: dict[str, int]
) -> None:
    assert quotas(given_priorities, q_max) == expected


def test_five_rounds_by_hand() -> None:
    # 4 of 10 failures, 4 attempts, none passed: s = .4, e = .2, ρ = 1/6.
    first = update(None, evidence_of(4, 10, 4, 0))
    assert first.status is Status.NEW
    assert first.priority == pytest.approx(0.2 * 1.5 * (5 / 6))
    # 2 of 10, 6 attempts, 2 passed: e = .1 + .1 = .2, ρ = 3/8, a gain of .21.
    second = update(first, evidence_of(2, 10, 6, 2))
    assert second.status is Status.IMPROVING
    assert second.priority == pytest.approx(0.2 * 2 * (5 / 8))
    # A third round in a row: PERSISTENT goes before the gain of .125 to ρ = 1/2.
    third = update(second, evidence_of(1, 10, 8, 4))
    assert third.status is Status.PERSISTENT
    assert third.recurrence == pytest.approx(0.15)
    assert third.priority == pytest.approx(0.15 * 2.5 * 0.5)
    # Mastered: 16 attempts, all passed, ρ = 17/18, although absent only once.
    fourth = update(third, evidence_of(0, 10, 16, 16))
    assert (fourth.status, fourth.absent, fourth.priority) == (Status.RESOLVED, 1, 0.0)
    # Back again: e = .0375 + .05, ρ = 1/6, half as much again for the relapse.
    fifth = update(fourth, evidence_of(1, 10, 4, 0))
    assert fifth.status is Status.REGRESSED
    assert fifth.priority == pytest.approx((0.0375 + 0.05) * 1.5 * (5 / 6) * 1.5)


def test_two_rounds_without_failures_resolve() -> None:
    state = update(update(None, evidence_of(1, 4, 2, 1)), evidence_of(0, 4, 0, 0))
    assert state.status is not Status.RESOLVED
    assert update(state, evidence_of(0, 0, 0, 0)).status is Status.RESOLVED


def test_a_broken_task_demotes_itself_and_not_its_pattern() -> None:
    whole = update(None, evidence_of(8, 10, 32, 0, broken=8))
    part = update(None, evidence_of(8, 10, 32, 0, broken=2))
    healthy = update(None, evidence_of(8, 10, 32, 0))
    assert (whole.learnability, healthy.learnability) == (0.25, 1.0)
    assert part.priority == pytest.approx(healthy.priority * (1 - 0.75 * 2 / 8))


def test_a_pinned_pattern_does_not_resolve() -> None:
    mastered = evidence_of(0, 4, 40, 40)
    previous = update(None, evidence_of(1, 4, 2, 1))
    assert update(previous, mastered).status is Status.RESOLVED
    pinned = update(update(previous, mastered, pinned=True), mastered, pinned=True)
    assert pinned.status is not Status.RESOLVED
    assert pinned.priority > 0


overrides = st.dictionaries(st.text(max_size=3), st.sampled_from(("pinned", "muted")), max_size=4)


@given(priorities, overrides)
def test_a_pinned_pattern_is_first_and_a_muted_one_has_no_priority(
    given_priorities: dict[str, float], words: dict[str, Override]
) -> None:
    effective = apply_overrides(given_priorities, words)
    assert effective.keys() == given_priorities.keys()
    free = [effective[name] for name in effective if name not in words]
    for name, priority in effective.items():
        word = words.get(name)
        if word == "muted":
            assert priority == 0
        elif word == "pinned":
            assert priority >= max([given_priorities[name], *free])
            assert priority > 0
        else:
            assert priority == given_priorities[name]


def test_a_gain_of_exactly_a_tenth_is_improving() -> None:
    # ρ = 5/10, then 6/10; as floats the difference is below 0.1.
    before = update(None, evidence_of(1, 4, 8, 4))
    after = update(before, evidence_of(1, 4, 8, 5))
    assert 0.6 - 0.5 < 0.1
    assert after.status is Status.IMPROVING


def test_evidence_that_cannot_be_is_an_error() -> None:
    with pytest.raises(ValueError, match="3 of 2 failures"):
        update(None, evidence_of(3, 2, 4, 0))
    with pytest.raises(ValueError, match="5 of 4 passes"):
        RoundEvidence(1, 2, 4, 5, 0.5, 4)
    with pytest.raises(ValueError, match="2 of 1 failures on tasks"):
        evidence_of(1, 2, 4, 0, broken=2)
    with pytest.raises(ValueError, match=r"pass rate of 1\.5"):
        RoundEvidence(1, 2, 4, 0, 1.5, 4)
    with pytest.raises(ValueError, match="4 attempts cannot be worth 5"):
        RoundEvidence(1, 2, 4, 0, 0.5, 5)
