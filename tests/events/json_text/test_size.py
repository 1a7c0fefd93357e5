"""What a JSON text holds is counted exactly on its bytes, in whatever form it is written."""

import json
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.json_text import size as json_size
from events.json_text.size import MAX_JSON, JsonSize, find_excess

texts = st.text() | st.text('[]{},:"\\ \n')
json_value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5),
    max_leaves=60,
)
"""What a parser makes of a text."""

ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32", "utf-32-be")


class Pairs(list[tuple[str, Any]]):
    """An object with all of its keys, also those that are written twice."""


def count(body: bytes) -> JsonSize:
    """The size of a text as a parser finds it."""
    values = list(_walk(json.loads(body, object_pairs_hook=Pairs)))
    containers = [value for value in values if isinstance(value, list)]
    keys = sum(len(value) for value in containers if isinstance(value, Pairs))
    return JsonSize(len(values), len(containers), keys)


def _walk(value: Any) -> Iterator[Any]:
    yield value
    if isinstance(value, list):
        inner = (item for _, item in value) if isinstance(value, Pairs) else value
        yield from chain.from_iterable(map(_walk, inner))


def less(size: JsonSize) -> list[JsonSize]:
    """Limits that are one below a size, each in one number."""
    most = 10**9
    return [
        JsonSize(size.values - 1, most, most),
        JsonSize(most, size.containers - 1, most),
        JsonSize(most, most, size.keys - 1),
    ]


@given(json_value, st.sampled_from(ENCODINGS), st.booleans(), st.sampled_from([None, 1]))
def test_the_count_is_that_of_the_parser(
    value: Any, encoding: str, ascii_only: bool, indent: int | None
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    body = text.encode(encoding, "surrogatepass")
    size = count(body)
    assert find_excess(body, most=size) is None
    assert find_excess(text, most=size) is None
    for most in less(size):
        if min(most.values, most.containers, most.keys) >= 0:
            assert find_excess(body, most=most) is not None


@given(st.lists(json_value, min_size=1, max_size=4), st.integers(1, 7))
def test_a_text_may_be_cut_anywhere(values: list[Any], piece: int) -> None:
    bodies = [json.dumps(value, indent=1).encode() for value in values]
    sizes = [count(body) for body in bodies]
    size = JsonSize(
        sum(one.values for one in sizes),
        sum(one.containers for one in sizes),
        sum(one.keys for one in sizes),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_size, "_PIECE_BYTES", piece)
        patch.setattr(json_size, "_COUNTED_BYTES", piece)
        assert find_excess(*bodies, most=size) is None
        for most in less(size):
            if min(most.values, most.containers, most.keys) >= 0:
                assert find_excess(*bodies, most=most) is not None


@given(json_value, st.data())
def test_what_a_parser_makes_before_a_mistake_is_counted(value: Any, data: st.DataObject) -> None:
    body = json.dumps(value).encode()
    size = count(body)
    tail = data.draw(st.binary(max_size=20))
    for most in less(size):
        # One below, and one more for a bracket or comma that begins nothing.
        if min(most.values, most.containers, most.keys) >= 0:
            assert find_excess(body + tail, most=most) is not None


@given(st.binary())
def test_bytes_of_any_kind_are_counted(body: bytes) -> None:
    assert find_excess(body) is None


@pytest.mark.parametrize("text", [',[]{}:"\\' * 500_000, "\\" * 3_000_000, '"' * 3_000_000])
def test_a_text_is_one_value_whatever_it_says(text: str) -> None:
    body = json.dumps({"content": text}).encode()
    assert find_excess(body, most=JsonSize(values=2, containers=1, keys=1)) is None


@pytest.mark.parametrize(
    ("body", "excess"),
    [
        (b"[" + b"1," * 999_999 + b"1]", "values"),
        (b"[" + b"[]," * 299_999 + b"[]]", "objects and lists"),
        (b"{" + b'"":1,' * 299_999 + b'"":1}', "keys"),
        (b"[" * 1_000_000, "objects and lists"),
    ],
)
def test_what_is_above_a_limit_is_named(body: bytes, excess: str) -> None:
    assert excess in str(find_excess(body))


def test_many_texts_are_counted_together() -> None:
    part = json.dumps([1] * (MAX_JSON.values // 2)).encode()
    assert find_excess(part) is None
    assert find_excess(part, b'"', part) is not None
