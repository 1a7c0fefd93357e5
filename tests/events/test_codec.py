"""Stored bytes: what goes in comes out, and malformed bytes are refused with the right error."""

import array
import random
import struct
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from events import codec
from events.codec import Event, arrays_of, attach, decode, encode
from events.envelope import Envelope
from events.errors import BadRecord, BlobError, SchemaAhead, TooLarge
from events.learning import PatternsDiagnosed, TaskProposed
from events.log import Entry, Record
from events.messages import Action, Message, ToolCall
from events.registry import REGISTRY, UnknownType
from events.rollouts import (
    CallEndContent,
    CallEnded,
    CallStartContent,
    CallStarted,
    EventData,
    FeedbackContent,
    FeedbackReceived,
    RolloutContent,
    RolloutEnded,
    Task,
)
from events.streams import MAX_DECODED_BYTES, MAX_INLINE_BODY_BYTES, MAX_VALUE_BYTES

# Any text but lone surrogates, which UTF-8 cannot carry.
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
identifier = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
maybe_text = st.none() | text
number = st.floats(allow_nan=False, allow_infinity=False)
int64 = st.integers(-(2**63), 2**63 - 1)
count = st.integers(0, 2**63 - 1)
json_value = st.recursive(
    st.none() | st.booleans() | int64 | number | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
json_object = st.dictionaries(text, json_value, max_size=3)


def few(element: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(element, max_size=3).map(tuple)


tool_calls = st.builds(ToolCall, name=text, arguments=json_object | text, id=maybe_text)
messages = st.builds(
    Message,
    role=st.sampled_from(("system", "developer", "user", "assistant", "tool")),
    content=maybe_text | st.lists(json_object, max_size=2),
    tool_calls=few(tool_calls),
    tool_call_id=maybe_text,
    name=maybe_text,
    error=st.none() | st.booleans(),
    reasoning=maybe_text,
    sampled=st.none() | st.booleans(),
)
actions = st.builds(
    Action, name=identifier, arguments=json_object, compare=st.none() | few(text),
    requestor=st.sampled_from(("assistant", "user")),
)  # fmt: skip
tasks = st.builds(
    Task, id=identifier, environment=maybe_text, capability=maybe_text, instruction=maybe_text,
    gold_actions=st.none() | few(actions), outputs=few(text), reward_basis=few(text),
    definition=maybe_text,
)  # fmt: skip
positions = st.dictionaries(
    text,
    st.dictionaries(
        st.integers(0, 9_999).map(str), st.dictionaries(text, count, max_size=2), max_size=2
    ),
    max_size=2,
)  # fmt: skip
events = st.one_of(
    st.builds(
        RolloutEnded, rollout=identifier, alias=identifier, base=identifier, policy=identifier,
        source=identifier, session=maybe_text, task=st.none() | tasks, trial=st.none() | int64,
        success=st.none() | st.booleans(), reward=st.none() | number,
        reward_parts=st.dictionaries(text, st.none() | number, max_size=3),
        write_tools=st.none() | few(text), calls=few(text),
        content=st.none() | st.builds(RolloutContent, messages=few(messages)),
    ),
    st.builds(
        CallStarted, call=identifier, session=identifier, alias=identifier, base=identifier,
        policy=identifier, parent=maybe_text, parent_messages=count, sampling=json_object,
        content=st.none()
        | st.builds(CallStartContent, messages=few(messages), tools=few(json_object)),
    ),
    st.builds(
        CallEnded, call=identifier, session=identifier, duration_ms=st.none() | count,
        outcome=st.sampled_from(("completed", "aborted", "failed", "timeout")), error=maybe_text,
        content=st.none() | st.builds(CallEndContent, messages=few(messages)),
    ),
    st.builds(
        FeedbackReceived, session=identifier, score=st.none() | number, tags=few(text),
        content=st.none() | st.builds(FeedbackContent, comment=maybe_text),
    ),
    st.builds(PatternsDiagnosed, trigger=st.sampled_from(("import", "diagnose", "schedule")),
              position=positions),
    st.builds(TaskProposed, alias=identifier, base=identifier, task=tasks, pattern=identifier),
)  # fmt: skip
token_ids = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=20).map(
    lambda v: array.array("i", v)
)
logprobs = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=20).map(
    lambda v: array.array("f", v)
)
named_arrays = st.dictionaries(text, token_ids | logprobs, max_size=3)

CALL = CallEnded(
    call="call-1",
    session="session-1",
    outcome="completed",
    content=CallEndContent(messages=(Message(role="assistant", content="Here is your order."),)),
)
DECISION = PatternsDiagnosed(trigger="import", position={"rollouts": {"0": {"log": 3}}})
TOKENS: dict[str, "array.array[Any]"] = {
    "token_ids": array.array("i", [1, -2, 3]),
    "logprobs": array.array("f", [-0.5, 0.0]),
}


def envelope(data: EventData) -> Envelope:
    return Envelope("id-1", data.TYPE, data.VERSION, data.key())


def stored(entry: Entry) -> Record:
    """The entry as a log hands it back."""
    return Record(
        entry.stream, entry.partition, 7, "log", 7, entry.key, entry.headers, entry.value,
        entry.recorded_ms,
    )  # fmt: skip


def record_of(data: EventData, **changes: Any) -> Record:
    return replace(stored(encode(envelope(data), data, 1, TOKENS).entry), **changes)


def with_sections(head: bytes, content: bytes = b"", arrays: bytes = b"") -> Record:
    """A framed record of sections that are compressed already, whatever they hold."""
    frame = struct.pack("<2sBBIII", b"kg", 1, 0, len(head), len(content), len(arrays))
    return record_of(CALL, value=frame + head + content + arrays)


def packed(section: bytes) -> bytes:
    return zstandard.compress(section)


# Round trips


@given(events)
def test_every_event_is_read_as_it_was_written(data: EventData) -> None:
    encoded = encode(envelope(data), data, 1)
    assert encoded.blob is None
    assert decode(stored(encoded.entry)) == Event(envelope(data), data)


@given(named_arrays)
def test_arrays_are_read_as_they_were_written(arrays: dict[str, "array.array[Any]"]) -> None:
    assert arrays_of(encode(envelope(CALL), CALL, 1, arrays).entry.value) == arrays


@given(events)
def test_an_entry_is_placed_by_its_events_key(data: EventData) -> None:
    entry = encode(envelope(data), data, 5).entry
    assert (entry.stream, entry.key, entry.recorded_ms) == (data.STREAM, data.key(), 5)
    assert 0 <= entry.partition < (8 if data.STREAM == "rollouts" else 1)


def test_equal_events_have_equal_bytes() -> None:
    assert record_of(CALL).value == record_of(CALL).value


def test_arrays_are_stored_little_endian_whatever_the_machine() -> None:
    value = record_of(CALL).value
    head, content = struct.unpack_from("<II", value, 4)
    raw = zstandard.decompress(value[16 + head + content :])
    directory = b'{"logprobs":["<f4",0,2],"token_ids":["<i4",8,3]}'
    assert raw == (
        struct.pack("<I", len(directory))
        + directory
        + struct.pack("<ff", -0.5, 0.0)
        + struct.pack("<iii", 1, -2, 3)
    )


def test_an_array_of_another_type_is_refused() -> None:
    with pytest.raises(TypeError, match="'token_ids' is of type 'd'; use 'i' or 'f'"):
        encode(envelope(CALL), CALL, 1, {"token_ids": array.array("d", [1.0])})


@pytest.mark.parametrize("value", [1e300, float("nan"), float("-inf")])
def test_an_array_of_what_is_no_number_is_refused(value: float) -> None:
    arrays = {"logprobs": array.array("f", [-0.5, value, -0.25])}
    with pytest.raises(ValueError, match="no finite number"):
        encode(envelope(CALL), CALL, 1, arrays)


def test_what_could_not_be_read_back_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MAX_DECODED_BYTES", 10_000)
    content = CallEndContent(messages=(Message(role="assistant", content="x" * 10_000),))
    with pytest.raises(TooLarge, match="are read back"):
        encode(envelope(CALL), CALL.model_copy(update={"content": content}), 1)


def test_a_decision_is_plain_json() -> None:
    entry = encode(envelope(DECISION), DECISION, 1).entry
    assert entry.value == (
        b'{"trigger":"import","position":{"rollouts":{"0":{"log":3}}},"cycle":null}'
    )  # fmt: skip
    assert dict(entry.headers)["content-type"] == b"application/json"


def test_many_threads_encode_and_decode_at_once() -> None:
    """Contexts of zstd are not shared: two threads in one of them corrupt each other's frames."""

    def round_trip(number: int) -> bool:
        data = CALL.model_copy(update={"error": f"{number} " * 3_000})
        return decode(record_of(data)) == Event(envelope(data), data)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(round_trip, range(400)))


# Sections


def test_the_head_is_read_without_the_content() -> None:
    found = decode(record_of(CALL), content=False).data
    assert found == CALL.model_copy(update={"content": None})


@pytest.mark.parametrize("garbage", [b"", b"\x00" * 50, b"encrypted for a person who left"])
def test_the_head_is_readable_when_the_content_is_destroyed(garbage: bytes) -> None:
    record = with_sections(packed(CALL.model_dump_json().encode()), garbage)
    found = decode(record, content=False).data
    assert found == CALL.model_copy(update={"content": None})
    if garbage:
        with pytest.raises(BadRecord, match="content is no whole zstd frame"):
            decode(record)


def test_the_arrays_are_readable_when_the_content_is_destroyed() -> None:
    value = record_of(CALL).value
    head, content = struct.unpack_from("<II", value, 4)
    destroyed = value[: 16 + head] + bytes(content) + value[16 + head + content :]
    assert arrays_of(destroyed) == TOKENS


# Blobs


def large_call() -> tuple[CallEnded, dict[str, "array.array[Any]"]]:
    """An answer whose tokens do not compress below the limit."""
    noise = array.array("i", [(number * 2_654_435_761) % 2**31 for number in range(400_000)])
    return CALL, {"token_ids": noise}


def test_a_body_above_the_limit_goes_to_a_blob_and_comes_back() -> None:
    data, arrays = large_call()
    encoded = encode(envelope(data), data, 1, arrays)
    assert encoded.blob is not None
    assert len(encoded.blob) > MAX_INLINE_BODY_BYTES
    assert len(encoded.entry.value) < 1_000
    event = decode(stored(encoded.entry))
    assert event.blob == encoded.reference
    assert event.data == data.model_copy(update={"content": None})
    assert arrays_of(encoded.entry.value) == {}
    whole, found = attach(event, encoded.blob)
    assert (whole.data, found) == (data, arrays)


def test_a_body_is_held_by_its_record_up_to_the_limit() -> None:
    small = {"token_ids": array.array("i", range(1_000))}
    assert encode(envelope(CALL), CALL, 1, small).blob is None


def test_another_blob_is_not_attached() -> None:
    data, arrays = large_call()
    event = decode(stored(encode(envelope(data), data, 1, arrays).entry))
    assert event.blob is not None
    with pytest.raises(BlobError, match=f"blob {event.blob.sha256} of event id-1 holds other"):
        attach(event, b"other bytes")
    with pytest.raises(BlobError, match="event id-1 names no blob"):
        attach(decode(record_of(CALL)), b"any")


def test_a_head_that_fits_no_record_is_refused() -> None:
    noise = random.Random(0).randbytes(1_500_000).hex()
    with pytest.raises(TooLarge, match=r"CallEnded id-1 takes .* bytes without its content"):
        encode(envelope(CALL), CALL.model_copy(update={"error": noise}), 1)


# Malformed bytes


HEAD = packed(CALL.model_dump_json().encode())


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"", "value of 0 bytes is shorter than a frame's 16"),
        (b"kg\x01", "value of 3 bytes is shorter"),
        (b"PK\x01\x00" + bytes(12), r"does not start with a frame of layout 1: b'PK\\x01\\x00'"),
        (b"kg\x02\x00" + bytes(12), "does not start with a frame of layout 1"),
        (b"kg\x01\x80" + bytes(12), "does not start with a frame of layout 1"),
        (struct.pack("<2sBBIII", b"kg", 1, 0, 4, 0, 0), "16 bytes, its frame announces 20"),
        (struct.pack("<2sBBIII", b"kg", 1, 0, 0, 2**32 - 1, 9), "its frame announces 4294967320"),
        (struct.pack("<2sBBIII", b"kg", 1, 1, 0, 0, 0), "16 bytes, its frame announces 56"),
        (struct.pack("<2sBBIII", b"kg", 1, 0, 0, 0, 0), "head is no whole zstd frame"),
    ],
)  # fmt: skip
def test_a_broken_frame_is_a_bad_record(value: bytes, message: str) -> None:
    with pytest.raises(BadRecord, match=message):
        decode(record_of(CALL, value=value))


def test_a_value_of_ten_megabytes_is_too_large() -> None:
    with pytest.raises(
        TooLarge, match=f"10,000,000 bytes, a record holds at most {MAX_VALUE_BYTES:,}"
    ):
        decode(record_of(CALL, value=bytes(10_000_000)))


@pytest.mark.parametrize("length", [1, 4, len(HEAD) // 2, len(HEAD) - 1])
def test_a_truncated_section_is_a_bad_record(length: int) -> None:
    with pytest.raises(BadRecord, match="head is no whole zstd frame"):
        decode(with_sections(HEAD[:length]))


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (b"{", "CallEnded: value: Invalid JSON"),
        (b"[]", "CallEnded: value: Input should be an object"),
        (b'{"call":"c","session":"s"}', "CallEnded: outcome: Field required"),
        (b'{"call":"c","session":"s","outcome":"won"}', "outcome: .* \\(got 'won'\\)"),
        (b'{"call":1,"session":"s","outcome":"failed"}', "CallEnded: call: .* valid string"),
        (b'{"call":"c","session":"s","outcome":"failed","mood":1}', "mood: Extra inputs"),
        (b"\xff\xfe", "CallEnded: value: Invalid JSON"),
    ],
)
def test_a_head_that_is_no_such_event_is_a_bad_record(head: bytes, message: str) -> None:
    with pytest.raises(BadRecord, match=message):
        decode(with_sections(packed(head)))


def test_a_content_that_is_none_names_its_type() -> None:
    with pytest.raises(BadRecord, match=r"content of CallEnded: messages\.0\.role"):
        decode(with_sections(HEAD, packed(b'{"messages":[{"role":"ghost"}]}')))


def test_a_decompression_bomb_is_refused_before_it_unfolds() -> None:
    bomb = zstandard.compress(bytes(MAX_DECODED_BYTES + 1))
    assert len(bomb) < MAX_VALUE_BYTES
    for record in (with_sections(bomb), with_sections(HEAD, bomb)):
        with pytest.raises(BadRecord, match="announces 268,435,457 bytes, the limit is"):
            decode(record)
    with pytest.raises(BadRecord, match="arrays announces 268,435,457 bytes"):
        arrays_of(with_sections(HEAD, b"", bomb).value)


def test_a_frame_that_hides_its_size_is_refused() -> None:
    hidden = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1_000))
    with pytest.raises(BadRecord, match="head"):
        decode(with_sections(hidden))


def test_bytes_behind_a_section_are_refused() -> None:
    with pytest.raises(BadRecord, match="head"):
        decode(with_sections(HEAD + b"smuggled"))


@pytest.mark.parametrize(
    "directory",
    [
        b"",
        b"\x05\x00\x00\x00",
        struct.pack("<I", 2) + b"[]",
        struct.pack("<I", 2) + b"{]",
        struct.pack("<I", 7) + b'{"a":1}',
        struct.pack("<I", 18) + b'{"a":["<q9",0,10]}',
        struct.pack("<I", 17) + b'{"a":["<i4",0,9]}' + bytes(8),
        struct.pack("<I", 18) + b'{"a":["<i4",-8,1]}' + bytes(8),
        struct.pack("<I", 19) + b'{"a":["<i4","0",1]}' + bytes(8),
        struct.pack("<I", 18) + b'{"a":["<i4",0,-1]}' + bytes(8),
        struct.pack("<I", 18) + b'{"a":["<i4",0,.5]}' + bytes(8),
        struct.pack("<I", 2**31) + b'{"a":["<i4",0,0]}',
    ],
)
def test_a_broken_directory_of_arrays_is_a_bad_record(directory: bytes) -> None:
    with pytest.raises(BadRecord, match="array"):
        arrays_of(with_sections(HEAD, b"", packed(directory)).value)


@given(st.binary(max_size=200))
def test_no_bytes_are_an_unexpected_error(value: bytes) -> None:
    for bad in (value, b"kg\x01\x00" + value, b"kg\x01\x01" + value):
        with pytest.raises(BadRecord):
            decode(record_of(CALL, value=bad))


@given(st.data())
def test_no_altered_byte_is_an_unexpected_error(data: st.DataObject) -> None:
    value = bytearray(record_of(CALL).value)
    value[data.draw(st.integers(0, len(value) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        decode(record_of(CALL, value=bytes(value)))
        arrays_of(bytes(value))
    except BadRecord:
        pass


def test_a_missing_header_is_named() -> None:
    headers = tuple(pair for pair in record_of(CALL).headers if pair[0] != "ce_type")
    with pytest.raises(BadRecord, match="header ce_type is missing"):
        decode(record_of(CALL, headers=headers))


def altered(name: str, value: bytes) -> Record:
    headers = tuple((n, value if n == name else old) for n, old in record_of(CALL).headers)
    return record_of(CALL, headers=headers)


def test_an_unknown_type_is_named_and_tells_itself_apart() -> None:
    with pytest.raises(UnknownType, match="event type 'MoodChanged' is not one of Adapter"):
        decode(altered("ce_type", b"MoodChanged"))


def test_a_version_from_the_future_is_no_bad_record() -> None:
    with pytest.raises(SchemaAhead, match=r"CallEnded version 99 .* knows up to 1; upgrade"):
        decode(altered("ce_dataversion", b"99"))


def test_every_registered_type_has_a_stream_and_its_own_name() -> None:
    for name, data_type in REGISTRY.types.items():
        assert data_type.TYPE == name == data_type.__name__
        assert data_type.STREAM in ("rollouts", "learning")


def test_a_future_version_in_a_future_layout_is_ahead_and_not_broken() -> None:
    record = record_of(FeedbackReceived(session="s"), value=b"a layout nobody knows yet")
    headers = tuple((n, b"99" if n == "ce_dataversion" else v) for n, v in record.headers)
    with pytest.raises(SchemaAhead):
        decode(replace(record, headers=headers))
