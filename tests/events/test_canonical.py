"""Equal meaning, equal text."""

import json
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.canonical import canonical, canonical_json, exact_json, sha256

number = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
json_value = st.recursive(
    st.none() | st.booleans() | number | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


def shuffled(value: Any) -> Any:
    """The same value with the keys of every object in another order."""
    if isinstance(value, dict):
        return {key: shuffled(value[key]) for key in reversed(value)}
    return [shuffled(item) for item in value] if isinstance(value, list) else value


@given(json_value)
def test_the_order_of_keys_does_not_matter(value: Any) -> None:
    assert canonical_json(shuffled(value)) == canonical_json(value)


@given(json_value)
def test_canonical_text_is_canonical(value: Any) -> None:
    text = canonical_json(value)
    assert canonical_json(json.loads(text)) == text


@given(st.text())
def test_a_text_equals_its_other_forms_and_its_padding(text: str) -> None:
    composed, decomposed = (unicodedata.normalize(form, text) for form in ("NFC", "NFD"))
    assert canonical_json(composed) == canonical_json(f" \n{decomposed}\t")


@given(json_value)
def test_exact_text_keeps_the_value(value: Any) -> None:
    assert json.loads(exact_json(value)) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2.0, "2"),
        (-0.0, "0"),
        (1e15, "1000000000000000"),
        (1e16, "1e+16"),
        (0.1, "0.1"),
        (True, "true"),
        (None, "null"),
        ((1, [2]), "[1,[2]]"),
        ({"b": 1, "a": " x "}, '{"a":"x","b":1}'),
        ("e\u0301", '"\u00e9"'),
        ({}, "{}"),
    ],
)
def test_the_canonical_form_never_changes_between_releases(value: Any, text: str) -> None:
    assert canonical_json(value) == text


def test_the_order_of_a_list_and_the_type_of_a_value_matter() -> None:
    assert canonical_json([1, 2]) != canonical_json([2, 1])
    assert len({canonical_json(value) for value in (1, "1", True, [1], {"1": 1})}) == 5


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_no_json_can_say_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="has no canonical JSON; use a finite number or null"):
        canonical({"reward": [value]})


def test_hashes_never_change_between_releases() -> None:
    assert sha256("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert sha256("\ud800") == sha256("\ud800") != sha256("?")


@given(st.text())
def test_every_text_has_a_hash(text: str) -> None:
    assert len(sha256(text)) == 64
