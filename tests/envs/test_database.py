"""The state against a model of it: a deep copy of plain dicts, written out as JSON."""

import hashlib
import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from envs.database import ABSENT, Database, Difference, Tables, copy_json

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.floats(allow_nan=False),
    st.text(max_size=4),
    st.sampled_from(["<absent>", "\ud800", "é", "0", "a"]),
)
KEYS = st.sampled_from(["a", "b", "é", "B", "10", "9", "\ud800", ""])
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)
RECORDS = st.dictionaries(KEYS, JSON, max_size=3)
TABLES = st.fixed_dictionaries(
    {"orders": st.dictionaries(KEYS, RECORDS, max_size=4), "users": st.just({"u": {"n": 1}})}
)
NAMES = st.sampled_from(["orders", "users"])


def plain_digest(tables: Tables) -> str:
    """The definition: the hash of the whole state as JSON."""
    return hashlib.sha256(json.dumps(tables, sort_keys=True).encode()).hexdigest()


def content(database: Database) -> Tables:
    """What can be read of a state."""
    return {name: dict(database[name]) for name in database.names}


class Pair:
    """A state, its model, and the model of the state in which its forks begin."""

    def __init__(self, database: Database, model: Tables, first: Tables) -> None:
        self.database = database
        self.model = deepcopy(model)
        self.first = deepcopy(first)


class States(RuleBasedStateMachine):
    """Any number of forks and copies of one pristine state, changed in any order."""

    pairs = Bundle("pairs")

    @initialize(target=pairs, tables=TABLES)
    def begin(self, tables: Tables) -> Pair:
        self.first = deepcopy(tables)
        self.pristine = Database(tables)
        self.all: list[Pair] = []
        return self.known(Pair(self.pristine.fork(), self.first, self.first))

    def known(self, pair: Pair) -> Pair:
        self.all.append(pair)
        return pair

    @rule(target=pairs, of=pairs)
    def fork(self, of: Pair) -> Pair:
        return self.known(Pair(of.database.fork(), of.first, of.first))

    @rule(target=pairs, of=pairs)
    def copy(self, of: Pair) -> Pair:
        return self.known(Pair(of.database.copy(), of.model, of.first))

    @rule(target=pairs, of=pairs)
    def settle(self, of: Pair) -> Pair:
        return self.known(Pair(of.database.copy().as_pristine().fork(), of.model, of.model))

    @rule(pair=pairs, table=NAMES, key=KEYS, field=KEYS, value=JSON)
    def edit(self, pair: Pair, table: str, key: str, field: str, value: Any) -> None:
        if key not in pair.model[table] or not isinstance(pair.model[table][key], dict):
            return
        pair.database.edit(table, key)[field] = deepcopy(value)
        pair.model[table][key][field] = value

    @rule(pair=pairs, table=NAMES, key=KEYS)
    def edit_deep_inside(self, pair: Pair, table: str, key: str) -> None:
        if key in pair.model[table]:
            for record in (pair.database.edit(table, key), pair.model[table][key]):
                for part in changeable(record):
                    part.append("more") if isinstance(part, list) else part.update(more=1)

    @rule(pair=pairs, table=NAMES, key=KEYS, record=JSON)
    def put(self, pair: Pair, table: str, key: str, record: Any) -> None:
        pair.database.put(table, key, deepcopy(record))
        pair.model[table][key] = record

    @rule(pair=pairs, table=NAMES, key=KEYS)
    def remove(self, pair: Pair, table: str, key: str) -> None:
        if key in pair.model[table]:
            pair.database.remove(table, key)
            del pair.model[table][key]
            return
        with pytest.raises(KeyError):
            pair.database.remove(table, key)
        with pytest.raises(KeyError):
            pair.database.edit(table, key)

    @invariant()
    def every_state_is_its_model(self) -> None:
        for pair in getattr(self, "all", []):
            assert content(pair.database) == pair.model
            assert pair.database.digest() == plain_digest(pair.model)

    @invariant()
    def the_pristine_state_stays(self) -> None:
        if hasattr(self, "pristine"):
            assert self.pristine.digest() == plain_digest(self.first)
            assert content(self.pristine.fork()) == self.first

    @rule(one=pairs, other=pairs)
    def compare(self, one: Pair, other: Pair) -> None:
        equal = plain_digest(one.model) == plain_digest(other.model)
        differences = one.database.difference(other.database)
        assert one.database.same(other.database) is equal
        assert (differences == ()) is equal
        for difference in differences:
            assert_found(difference.path, difference.expected, one.model)
            assert_found(difference.path, difference.actual, other.model)


def assert_found(path: tuple[str, ...], value: Any, tables: Any) -> None:
    """The difference tells what is at its path."""
    for step in path:
        if isinstance(tables, list):
            tables = tables[int(step)] if int(step) < len(tables) else ABSENT
        else:
            tables = tables.get(step, ABSENT)
    assert (value is ABSENT) == (tables is ABSENT)
    assert json.dumps(value, sort_keys=True) == json.dumps(tables, sort_keys=True)


TestStatesBehaveLikeDeepCopies = States.TestCase
States.TestCase.settings = settings(
    max_examples=60, stateful_step_count=20, deadline=None, print_blob=True
)


@settings(deadline=None)
@given(TABLES, TABLES)
def test_states_of_different_origin_are_compared_by_value(one: Tables, other: Tables) -> None:
    expected, actual = Database(deepcopy(one)), Database(deepcopy(other))
    equal = plain_digest(one) == plain_digest(other)
    assert expected.same(actual) is equal
    assert (expected.difference(actual) == ()) is equal


def test_a_difference_names_each_value_by_its_path() -> None:
    pristine = Database({"orders": {"w1": {"status": "pending", "items": ["a", "b"]}}})
    actual = pristine.fork()
    actual.edit("orders", "w1").update(status="cancelled", items=["a"], reason="late")
    actual.put("orders", "w2", {})
    assert pristine.difference(actual) == (
        Difference(("orders", "w1", "items", "1"), "b", ABSENT),
        Difference(("orders", "w1", "reason"), ABSENT, "late"),
        Difference(("orders", "w1", "status"), "pending", "cancelled"),
        Difference(("orders", "w2"), ABSENT, {}),
    )


@pytest.mark.parametrize(("one", "other"), [(1, 1.0), (1, True), (0, False), (None, "null")])
def test_values_that_only_python_takes_for_equal_differ(one: Any, other: Any) -> None:
    pristine = Database({"t": {"k": {"v": one}}})
    actual = pristine.fork()
    actual.edit("t", "k")["v"] = other
    assert not pristine.same(actual)
    assert pristine.difference(actual)


@settings(deadline=None)
@given(JSON)
def test_a_copy_of_json_shares_nothing_that_can_change(value: Any) -> None:
    copied = copy_json(value)
    assert json.dumps(copied) == json.dumps(value)
    assert not {id(part) for part in changeable(value)} & {id(part) for part in changeable(copied)}


def changeable(value: Any) -> list[Any]:
    """Every dict and list in it; the caller keeps them, so that no id comes twice."""
    if isinstance(value, dict):
        return [value, *(part for item in value.values() for part in changeable(item))]
    if isinstance(value, list):
        return [value, *(part for item in value for part in changeable(item))]
    return []


def test_an_unknown_table_is_an_error() -> None:
    database = Database({"t": {}})
    for change in (
        lambda: database["orders"],
        lambda: database.edit("orders", "k"),
        lambda: database.put("orders", "k", 1),
        lambda: database.remove("orders", "k"),
    ):
        with pytest.raises(KeyError):
            change()
    assert database.digest() == plain_digest({"t": {}})
