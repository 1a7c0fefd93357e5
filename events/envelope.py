"""The envelope: source, time and cause of an event, as headers of CloudEvents 1.0 (binary mode of
its Kafka binding). `source` and `sequence` belong to the log (log.py)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, TypeVar
from uuid import UUID, uuid5

from uuid_utils import uuid7

from events.errors import BadRecord
from events.log import Headers

T = TypeVar("T")

NAMESPACE: Final = UUID("5e6a7b3c-6b0e-5d0f-9a57-6b696e747375")
"""UUID namespace of every derived id."""

HEADER_SOURCE: Final = "ce_source"
HEADER_SEQUENCE: Final = "ce_sequence"


def new_id() -> str:
    """Return an id for a new fact that no other event implies: a UUIDv7, ordered by time."""
    return str(uuid7())


def derive_id(*parts: str) -> str:
    """Return an id computed from `parts`, so a repeated step makes a duplicate event."""
    return str(uuid5(NAMESPACE, "\x1f".join(parts)))


@dataclass(frozen=True, slots=True)
class Envelope:
    """The attributes of one event."""

    id: str
    type: str
    version: int
    subject: str
    """Id of the session, cycle or job that the event is about."""
    time: datetime | None = None
    """Time of the event, aware and in UTC; None where an imported record has none."""
    cause: str | None = None
    """Id of the event that this one follows from."""
    correlation: str | None = None
    traceparent: str | None = None
    epoch: int | None = None
    """The leader's epoch, on its decisions only."""
    person: str | None = None
    keyid: str | None = None
    """Id of the key that encrypts content, arrays and private fields; None if not sealed."""
    extra: Mapping[str, bytes] = field(default_factory=dict)
    """Headers of other programs (a proxy, a later version), kept without being read."""


def utc_now() -> datetime:
    """Return the current time in UTC; folds never call it."""
    return datetime.now(UTC)


def timestamp(moment: datetime) -> str:
    """Format a time as RFC 3339 in UTC with microseconds."""
    # Not strftime: its %Y has no leading zeros on every platform.
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def parse_timestamp(text: str) -> datetime:
    """Parse any RFC 3339 time with an offset."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"time {text!r} has no offset; write it in UTC with a final Z")
    return moment.astimezone(UTC)


_FIXED: Final = (("ce_specversion", b"1.0"),)
_TEXT: Final = {
    "ce_causationid": "cause",
    "ce_correlationid": "correlation",
    "ce_traceparent": "traceparent",
    "ce_person": "person",
    "ce_keyid": "keyid",
}
_REQUIRED: Final = ("ce_id", "ce_type", "ce_dataversion", "ce_subject")
_OURS: Final = frozenset(
    {"ce_specversion", "ce_id", "ce_type", "ce_dataversion", "ce_subject", "ce_time", "ce_epoch"}
    | set(_TEXT)
    | {"content-type", "content-encoding", HEADER_SOURCE, HEADER_SEQUENCE}
)


def to_headers(envelope: Envelope, content_type: str) -> Headers:
    """Return the envelope as record headers, in a fixed order."""
    headers: list[tuple[str, bytes]] = [
        *_FIXED,
        ("ce_id", envelope.id.encode()),
        ("ce_type", envelope.type.encode()),
        ("ce_dataversion", str(envelope.version).encode()),
        ("ce_subject", envelope.subject.encode()),
    ]
    if envelope.time is not None:
        headers.append(("ce_time", timestamp(envelope.time).encode()))
    for header, attribute in _TEXT.items():
        value = getattr(envelope, attribute)
        if value is not None:
            headers.append((header, value.encode()))
    if envelope.epoch is not None:
        headers.append(("ce_epoch", str(envelope.epoch).encode()))
    headers.append(("content-type", content_type.encode()))
    headers.extend(envelope.extra.items())
    return tuple(headers)


def from_headers(headers: Headers) -> Envelope:
    """Return the envelope of a record. Raises BadRecord with the name of a wrong header."""
    texts: dict[str, str] = {}
    extra: dict[str, bytes] = {}
    for name, raw in headers:
        if name not in _OURS:
            extra[name] = raw
            continue
        try:
            texts[name] = raw.decode()
        except UnicodeDecodeError as error:
            raise BadRecord(f"header {name} is not UTF-8: {raw[:40]!r}") from error
    for name in _REQUIRED:
        if not texts.get(name):
            raise BadRecord(f"header {name} is missing; this record was not written by kintsugi")
    time, epoch = texts.get("ce_time"), texts.get("ce_epoch")
    return Envelope(
        id=texts["ce_id"],
        type=texts["ce_type"],
        version=_parse_header("ce_dataversion", texts["ce_dataversion"], _natural),
        subject=texts["ce_subject"],
        time=None if time is None else _parse_header("ce_time", time, parse_timestamp),
        cause=texts.get("ce_causationid"),
        correlation=texts.get("ce_correlationid"),
        traceparent=texts.get("ce_traceparent"),
        epoch=None if epoch is None else _parse_header("ce_epoch", epoch, _natural),
        person=texts.get("ce_person"),
        keyid=texts.get("ce_keyid"),
        extra=extra,
    )


def _parse_header(name: str, value: str, parse: Callable[[str], T]) -> T:
    try:
        return parse(value)
    except (ValueError, OverflowError) as error:
        raise BadRecord(f"header {name} cannot be read: {value[:80]!r}") from error


def _natural(text: str) -> int:
    """Return a number of at most 18 digits; unlike int(), refuse signs, spaces and `_`."""
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise ValueError("not a natural number of at most 18 digits")
    return int(text)
