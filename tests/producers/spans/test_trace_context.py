"""Headers of W3C trace context, and ids that follow from what they are of."""

import pytest

from producers.spans.trace_context import TraceContext, parse_traceparent, root, span_id

HEADER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_header_is_read_and_written() -> None:
    found = parse_traceparent(HEADER)
    assert found == TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
    assert found is not None
    assert found.header == HEADER
    off = parse_traceparent(HEADER[:-1] + "0")
    assert off is not None
    assert (off.sampled, off.child("a").sampled) == (False, False)


@pytest.mark.parametrize(
    "header",
    [
        None, "", "00", HEADER.upper(), "ff" + HEADER[2:], HEADER + "-x",
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
    ],
)  # fmt: skip
def test_what_is_no_header_is_none(header: str | None) -> None:
    assert parse_traceparent(header) is None


def test_ids_follow_from_what_they_are_of() -> None:
    one = root("session", "s", "")
    assert one == root("session", "s", "")
    assert one.trace != root("session", "t", "").trace
    assert (len(one.trace), len(one.span)) == (32, 16)
    inner = one.child("call", "c")
    assert (inner.trace, inner.span) == (one.trace, span_id("call", "c"))
    assert parse_traceparent(inner.header) == inner
