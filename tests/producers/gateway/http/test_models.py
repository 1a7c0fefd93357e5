"""The names of models: aliases in the list, and the one that an answer is given under."""

import json
from typing import Any

import pytest

from producers.gateway.http.wire import set_model
from producers.gateway.server import with_aliases

BASE = {"id": "tiny", "parent": None, "root": "a checkpoint", "max_model_len": 64}
ADAPTER = {"id": "one", "parent": "tiny", "root": "/one"}


def listed(*cards: Any) -> bytes:
    return json.dumps({"object": "list", "data": list(cards)}).encode()


def test_an_alias_has_the_card_of_its_base() -> None:
    other = {**BASE, "id": "other"}
    found = json.loads(with_aliases(listed(BASE, other, ADAPTER), {"a": None, "b": "other"}))
    alias = {**BASE, "id": "a", "root": "tiny", "parent": "tiny"}
    of_other = {**BASE, "id": "b", "root": "other", "parent": "other"}
    assert found == {"object": "list", "data": [BASE, other, ADAPTER, alias, of_other]}


def test_a_name_that_the_engine_has_is_not_listed_twice() -> None:
    assert with_aliases(listed(BASE), {"tiny": None}) == listed(BASE)


@pytest.mark.parametrize(
    "answer",
    [b"", b"no JSON", b"[]", b"{}", b'{"data": 3}', b'{"data": [1]}', listed(), listed(ADAPTER),
     listed({"parent": None})],
)  # fmt: skip
def test_what_is_no_list_of_models_stays_as_it_is(answer: bytes) -> None:
    assert with_aliases(answer, {"agent": None}) == answer


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"id": "1", "model": "one"}, {"id": "1", "model": "agent"}),
        ({"id": "1", "choices": []}, {"id": "1", "choices": []}),
        (
            {"type": "message_start", "message": {"id": "1", "model": "one"}},
            {"type": "message_start", "message": {"id": "1", "model": "agent"}},
        ),
        ({"error": {"message": "one"}}, {"error": {"message": "one"}}),
    ],
)
def test_an_answer_names_the_model_that_was_asked_for(document: Any, expected: Any) -> None:
    assert set_model(document, "agent") == expected
    assert list(set_model(document, "agent")) == list(document)
    assert set_model(document, None) is document
