"""Positions are compared source by source."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.position import Position, ahead, covers, entries

names = st.sampled_from(("a", "b"))
positions: st.SearchStrategy[Position] = st.dictionaries(
    st.sampled_from(("rollouts", "learning")),
    st.dictionaries(
        st.integers(0, 12).map(str),
        st.dictionaries(names, st.integers(0, 3), max_size=2),
        max_size=3,
    ),
    max_size=2,
)


def at(sequence: int, source: str = "log", partition: str = "0") -> Position:
    return {"rollouts": {partition: {source: sequence}}}


@pytest.mark.parametrize(
    ("later", "earlier", "covered", "beyond"),
    [
        ({}, {}, True, False),
        (at(1), {}, True, True),
        (at(0), {}, True, True),
        ({}, at(0), False, False),
        (at(1), at(1), True, False),
        (at(2), at(1), True, True),
        (at(1), at(2), False, False),
        (at(9, "other"), at(1), False, False),
        (at(9, partition="1"), at(1), False, False),
        ({"rollouts": {"0": {"log": 1, "new": 0}}}, at(1), True, True),
        ({"rollouts": {"0": {}}}, {}, True, False),
    ],
)
def test_a_position_covers_another_when_no_source_is_behind(
    later: Position, earlier: Position, covered: bool, beyond: bool
) -> None:
    assert covers(later, earlier) is covered
    assert ahead(later, earlier) is beyond


@given(positions, positions, positions)
def test_covering_is_an_order(a: Position, b: Position, c: Position) -> None:
    assert covers(a, a)
    assert not ahead(a, a)
    if covers(a, b) and covers(b, c):
        assert covers(a, c)
    if covers(a, b) and covers(b, a):
        assert list(entries(a)) == list(entries(b))


@given(positions)
def test_entries_come_in_the_order_of_numbers_not_of_digits(position: Position) -> None:
    found = list(entries(position))
    assert found == sorted(found)
