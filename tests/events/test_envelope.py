"""The envelope as headers, and back."""

import string
from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from events.envelope import (
    Envelope,
    derive_id,
    from_headers,
    new_id,
    parse_timestamp,
    timestamp,
    to_headers,
)
from events.errors import BadRecord
from events.log import Headers

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
required = text.filter(bool)
moments = st.datetimes(timezones=st.just(UTC))
foreign = st.dictionaries(
    st.text(string.ascii_lowercase, min_size=1).map("x-".__add__),
    st.binary(max_size=20),
    max_size=3,
)
envelopes = st.builds(
    Envelope, id=required, type=required, version=st.integers(0, 2**31), subject=required,
    time=st.none() | moments, cause=st.none() | text, correlation=st.none() | text,
    traceparent=st.none() | text, epoch=st.none() | st.integers(0, 10**18 - 1),
    person=st.none() | text, keyid=st.none() | text, extra=foreign,
)  # fmt: skip

PLAIN = Envelope(id="id-1", type="CallEnded", version=3, subject="session-1")


def changed(name: str, value: bytes | None) -> Headers:
    """The headers of a plain envelope, one of them with other bytes, or missing."""
    headers = dict(to_headers(PLAIN, "application/json"))
    if value is None:
        del headers[name]
    else:
        headers[name] = value
    return tuple(headers.items())


@given(envelopes)
def test_an_envelope_is_read_as_it_was_written(envelope: Envelope) -> None:
    assert from_headers(to_headers(envelope, "application/json")) == envelope


def test_the_headers_are_those_of_cloudevents_in_a_fixed_order() -> None:
    envelope = Envelope(
        "id-1", "CallEnded", 3, "session-1", datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC), epoch=7,
        cause="id-0", person="p", extra={"x-proxy": b"\xff"},
    )  # fmt: skip
    assert to_headers(envelope, "application/json") == (
        ("ce_specversion", b"1.0"),
        ("ce_id", b"id-1"),
        ("ce_type", b"CallEnded"),
        ("ce_dataversion", b"3"),
        ("ce_subject", b"session-1"),
        ("ce_time", b"2026-01-02T03:04:05.000006Z"),
        ("ce_causationid", b"id-0"),
        ("ce_person", b"p"),
        ("ce_epoch", b"7"),
        ("content-type", b"application/json"),
        ("x-proxy", b"\xff"),
    )


def test_headers_of_the_log_and_of_others_are_carried_apart() -> None:
    headers = (
        *to_headers(PLAIN, "application/json"),
        ("ce_source", b"log"),
        ("ce_sequence", b"4"),
        ("ce_newattribute", b"of a later version"),
    )
    assert from_headers(headers).extra == {"ce_newattribute": b"of a later version"}


@pytest.mark.parametrize("name", ["ce_id", "ce_type", "ce_dataversion", "ce_subject"])
def test_a_missing_or_empty_header_is_named(name: str) -> None:
    for value in (None, b""):
        with pytest.raises(BadRecord, match=f"header {name} is missing"):
            from_headers(changed(name, value))


@pytest.mark.parametrize("name", ["ce_id", "ce_type", "ce_subject", "ce_person", "ce_time"])
def test_a_header_that_is_no_utf_8_is_named(name: str) -> None:
    with pytest.raises(BadRecord, match=rf"header {name} is not UTF-8: b'\\xff"):
        from_headers(changed(name, b"\xff\xfe"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ce_dataversion", "three"),
        ("ce_dataversion", "3.0"),
        ("ce_dataversion", "-1"),
        ("ce_dataversion", "1_0"),
        ("ce_dataversion", "٣"),
        ("ce_epoch", "IV"),
        ("ce_epoch", "9999999999999999999"),
        ("ce_time", "yesterday"),
        ("ce_time", "2026-01-02T03:04:05"),
        ("ce_time", "2026-13-02T03:04:05Z"),
        ("ce_time", "0001-01-01T00:00:00+23:59"),
    ],
)
def test_a_header_that_cannot_be_read_is_named_with_its_value(name: str, value: str) -> None:
    with pytest.raises(BadRecord, match=f"header {name} cannot be read: '{value[:10]}"):
        from_headers(changed(name, value.encode()))


@given(st.dictionaries(st.sampled_from([n for n, _ in to_headers(PLAIN, "")]), st.binary()))
def test_no_headers_are_an_unexpected_error(others: dict[str, bytes]) -> None:
    headers = {**dict(to_headers(PLAIN, "")), **others, "ce_time": others.get("ce_id", b"")}
    with pytest.raises(BadRecord):
        from_headers(tuple(headers.items()))


def test_times_are_written_in_utc_with_microseconds() -> None:
    east = datetime(2026, 1, 1, 0, 30, tzinfo=timezone(timedelta(hours=1)))
    assert timestamp(east) == "2025-12-31T23:30:00.000000Z"
    assert parse_timestamp("2026-01-01T00:30:00+01:00") == east


@given(moments)
def test_times_are_read_as_they_were_written(moment: datetime) -> None:
    assert parse_timestamp(timestamp(moment)) == moment


def test_minted_ids_follow_time_and_derived_ids_repeat() -> None:
    minted = [new_id() for _ in range(100)]
    assert minted == sorted(set(minted))
    assert UUID(minted[0]).version == 7
    assert derive_id("cause", "step") == derive_id("cause", "step")
    assert UUID(derive_id("cause", "step")).version == 5
    assert len({derive_id("ab", "c"), derive_id("a", "bc"), derive_id("abc")}) == 3


def test_derived_ids_never_change_between_releases() -> None:
    assert derive_id("cause", "step") == "76c3b975-707a-5e5c-ac3c-c10cffc81d73"
