"""Prepare a record before the transaction: decode and label it, as far as that needs no tables.

Decompressing and labelling take time, so they hold no lock and no transaction idles meanwhile.

Bounds protect against oversized records: a record whose decompressed head exceeds `HEAD_BYTES` is
no event. A rollout with more than `LABELLED_BYTES` of content takes the labels in its head.
"""

from dataclasses import dataclass
from typing import Final

from consumers.batch import Row, Staging
from consumers.folds.record import FoldInput
from consumers.folds.rollouts import FACTS, READS_CONTENT
from consumers.tables import ProjectionTable
from events.codec import decode_value, measure_sections
from events.envelope import Envelope, from_headers
from events.errors import BadRecord, KintsugiError, SchemaAhead
from events.log import Record
from events.registry import Registry, UnknownType
from events.rollouts import RolloutEnded
from events.streams import LEARNING, ROLLOUTS

HEAD_BYTES: Final = 16 << 20
"""Most bytes of a decompressed head."""

LABELLED_BYTES: Final = 16 << 20
"""Most bytes of a rollout's decompressed content for labelling. The worst case, only empty
messages, takes about a gigabyte of memory."""

_COMPRESSED_BYTES: Final = 512
"""Least compressed size of anything beyond `HEAD_BYTES`: zstd takes four bytes for 128 KiB."""

REASON_CHARACTERS: Final = 500
TYPE_CHARACTERS: Final = 128
ID_CHARACTERS: Final = 256
"""Most characters of an id in a dead letter; our own are UUIDs."""


@dataclass(frozen=True, slots=True)
class Preparation:
    """The result of preparing a record: all that can be computed without tables."""

    record: Record
    """The record after `sanitize_record`."""
    kind: str | None = None
    """The event's type in the record's header; None if it cannot be read."""
    folding: FoldInput | None = None
    """The decoded event, for an event of `learning`; else None."""
    rows: tuple[tuple[type[ProjectionTable], Row], ...] = ()
    """The rows of an event of `rollouts`; empty for an event of another stream."""
    characters: int = 0
    """Number of characters in all texts of the rows."""
    error: Exception | None = None
    """Why the record cannot be folded: UnknownType, SchemaAhead, or a dead letter's error."""


def prepare(record: Record, registry: Registry) -> Preparation:
    """Decode a sanitized record, and fold it if it is of `rollouts`. Raise only MemoryError."""
    type_name: str | None = None
    try:
        envelope = from_headers(record.headers)
        type_name = envelope.type
        folding = _decode(record, envelope, registry)
        if record.stream == LEARNING.name:
            return Preparation(record, type_name, folding)
        staging = Staging()
        FACTS[type_name](folding, folding.event.data, staging)
        return Preparation(
            record, type_name, rows=tuple(staging.rows), characters=staging.characters
        )
    except MemoryError:
        raise
    except Exception as error:  # a fold is deterministic: every replay raises the same error
        return Preparation(record, type_name, error=error)


def _decode(record: Record, envelope: Envelope, registry: Registry) -> FoldInput:
    data_type = registry.check(envelope.type, envelope.version)
    if record.stream != data_type.STREAM:
        raise BadRecord(f"{envelope.type} belongs to {data_type.STREAM}, not to {record.stream}")
    content = envelope.type in READS_CONTENT
    if record.stream == ROLLOUTS.name and len(record.value) >= _COMPRESSED_BYTES:
        head, content_bytes = measure_sections(record.value)
        if head > HEAD_BYTES:
            raise BadRecord(f"a head of {head:,} bytes; one is read up to {HEAD_BYTES:,}")
        content = content and content_bytes <= LABELLED_BYTES
    return FoldInput(decode_value(record, envelope, registry, content), record)


def is_unknown_type(item: Preparation) -> bool:
    """Return whether the event is of a type that this projection does not know."""
    return isinstance(item.error, UnknownType)


def halts(item: Preparation) -> bool:
    """Return whether the fold has to wait for a newer kintsugi."""
    return isinstance(item.error, SchemaAhead)


def dead_letter(item: Preparation, error: Exception) -> Row:
    """Return the row of a dead letter for an event that could not be folded."""
    record = item.record
    return {
        "stream": record.stream,
        "partition": record.partition,
        "event_source": record.source,
        "sequence": record.sequence,
        "type": None if item.kind is None else item.kind[:TYPE_CHARACTERS],
        "reason": why(error)[:REASON_CHARACTERS],
        "rollout": _read_rollout_id(item),
        "offset": record.offset,
    }


def _read_rollout_id(item: Preparation) -> str | None:
    """Return the rollout's id, which is the event's id, if the event is a `RolloutEnded`; else
    None. Return None for an id that is too long, because the dead letter must fit its table."""
    if item.kind != RolloutEnded.TYPE:
        return None
    rollout = from_headers(item.record.headers).id
    return rollout if len(rollout) <= ID_CHARACTERS else None


def why(error: Exception) -> str:
    """Return an error's text; an error of another library also gets its class name."""
    return str(error) if isinstance(error, KintsugiError) else f"{type(error).__name__}: {error}"
