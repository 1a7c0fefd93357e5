"""A document that is encoded in pieces has the text that an encoder gives at once."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.canonical import exact_json
from events.json_text import pieces as json_pieces
from events.json_text.pieces import encode_in_pieces

json_value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=9) | st.dictionaries(st.text(), inner, max_size=9),
)


@given(json_value, st.integers(0, 3), st.integers(1, 3), st.integers(1, 3), st.integers(0, 4))
def test_the_text_is_the_same(
    value: Any, few: int, at_once: int, characters: int, depth: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_pieces, "_FEW", few)
        patch.setattr(json_pieces, "_AT_ONCE", at_once)
        patch.setattr(json_pieces, "_CHARACTERS", characters)
        patch.setattr(json_pieces, "_DEPTH", depth)
        assert encode_in_pieces(value, exact_json, sort_keys=True) == exact_json(value)
        assert encode_in_pieces(value, json.dumps).replace(" ", "") == json.dumps(value).replace(
            " ", ""
        )


def test_no_call_of_the_encoder_is_for_much() -> None:
    sizes: list[int] = []
    letters: list[int] = []

    def counting(encode: Callable[[Any], str]) -> Callable[[Any], str]:
        def counted(value: Any) -> str:
            (letters if isinstance(value, str) else sizes).append(len(value))
            return encode(value)

        return counted

    many = {"messages": [{"a": 1}] * 5_000, "bias": {str(n): n for n in range(5_000)}}
    document = {**many, "long": "x" * (5 << 20)}
    text = encode_in_pieces(document, counting(exact_json), sort_keys=True)
    assert text == exact_json(document)
    assert max(sizes) == 1_000
    assert max(letters) == 1 << 20
