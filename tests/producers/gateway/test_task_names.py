"""The task that a client names, as it is stored: redacted, but for a hash."""

from hashlib import sha256
from typing import Final

import pytest
from starlette.requests import Request

from producers.gateway.privacy.keys import Client
from producers.gateway.privacy.redaction import Redaction
from producers.gateway.privacy.rules import find_builtin
from producers.gateway.request_context import read_caller

DIGITS: Final = next(
    digest
    for digest in (sha256(str(number).encode()).hexdigest() for number in range(10_000))
    if any(True for _ in find_builtin("card").find(f"shop/={digest}"))
)
"""A sha256 with the digits of a card in it."""


@pytest.mark.parametrize(
    ("named", "kept"),
    [
        (f"shop/={DIGITS}", True),
        ("shop/cancel/7", True),
        (f"shop/{DIGITS}", False),
        (f"shop/={DIGITS}/4111-1111-1111-1111", False),
        ("4111-1111-1111-1111", False),
    ],
    ids=["by content", "generated", "another hash", "more than a hash", "a card"],
)
def test_only_an_id_by_content_may_have_digits_like_those_of_a_card(named: str, kept: bool) -> None:
    scope = {"type": "http", "headers": [(b"x-kintsugi-task", named.encode())]}
    client = Client("somebody", frozenset({"trusted"}))
    caller = read_caller(Request(scope), client, {}, Redaction([find_builtin("card")], bytes(16)))
    assert (caller.task == named) == kept
