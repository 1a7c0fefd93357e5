"""Old versions become the newest one before anything reads them; stored bytes stay as they are."""

from typing import Any, ClassVar

import pytest

from events.codec import decode, encode
from events.envelope import Envelope
from events.errors import BadRecord, SchemaAhead
from events.learning import Decision
from events.log import Record
from events.registry import Registry, UnknownType


class ToolRenamed(Decision):
    """A type in its third version: `tool` was called `name`, then `reason` became a must."""

    TYPE: ClassVar[str] = "ToolRenamed"
    VERSION: ClassVar[int] = 3

    tool: str
    reason: str


def name_to_tool(data: dict[str, Any]) -> dict[str, Any]:
    return {**{key: value for key, value in data.items() if key != "name"}, "tool": data["name"]}


def reason_given(data: dict[str, Any]) -> dict[str, Any]:
    return {**data, "reason": data.get("reason", "not recorded")}


UPCASTERS = {("ToolRenamed", 1): name_to_tool, ("ToolRenamed", 2): reason_given}
REGISTRY = Registry({"ToolRenamed": ToolRenamed}, UPCASTERS)


def stored(version: int, value: bytes) -> Record:
    """A record as that version wrote it."""
    data = ToolRenamed(tool="", reason="")
    entry = encode(Envelope("id-1", "ToolRenamed", version, "control"), data, 1).entry
    return Record("learning", 0, 0, "log", 0, entry.key, entry.headers, value, 1)


@pytest.mark.parametrize(
    ("version", "value", "tool", "reason"),
    [
        (1, b'{"name":"refund"}', "refund", "not recorded"),
        (1, b'{"name":"refund","reason":"typo"}', "refund", "typo"),
        (2, b'{"tool":"refund"}', "refund", "not recorded"),
        (3, b'{"tool":"refund","reason":"typo"}', "refund", "typo"),
    ],
)
def test_every_stored_version_is_read_as_the_newest(
    version: int, value: bytes, tool: str, reason: str
) -> None:
    event = decode(stored(version, value), REGISTRY)
    assert event.data == ToolRenamed(tool=tool, reason=reason)
    assert event.envelope.version == version


def test_a_version_of_the_future_halts_and_says_what_to_do() -> None:
    with pytest.raises(SchemaAhead, match=r"ToolRenamed version 4 .* up to 3; upgrade this"):
        decode(stored(4, b"{}"), REGISTRY)


def test_a_gap_between_upcasters_is_named() -> None:
    registry = Registry({"ToolRenamed": ToolRenamed}, {("ToolRenamed", 1): name_to_tool})
    with pytest.raises(BadRecord, match="version 1 has no upcaster from version 2"):
        decode(stored(1, b'{"name":"refund"}'), registry)


@pytest.mark.parametrize("value", [b"", b"{", b"\xff", b"[]", b'"refund"', b"null", b"3", b"{}"])
@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_malformed_data_of_any_version_is_a_bad_record(version: int, value: bytes) -> None:
    with pytest.raises(BadRecord, match="ToolRenamed"):
        decode(stored(version, value), REGISTRY)


def test_an_old_version_is_validated_after_it_was_upcast() -> None:
    with pytest.raises(BadRecord, match=r"ToolRenamed: tool: .* valid string \(got '3'\)"):
        decode(stored(1, b'{"name":3}'), REGISTRY)


def test_an_unknown_type_is_told_apart_from_a_malformed_one() -> None:
    with pytest.raises(UnknownType, match="event type 'ToolRenamed' is not one of "):
        decode(stored(1, b"{}"), Registry({}))


def test_a_registry_without_history_knows_types_by_their_names() -> None:
    assert Registry.of([ToolRenamed]).types == {"ToolRenamed": ToolRenamed}
