"""A record before the transaction: decoded and labelled, as far as that needs no tables.

    prepare(record)   an event of `rollouts` as its rows; a decision as its data; or why neither

Where it sits: the runner prepares a batch, then opens the transaction in which the rows are written
(runner.py). What takes time (decompressing, labelling) holds no lock, and no database ends a
transaction for idling meanwhile.

Bounds, each within reach of an outsider's record: a head of more than `HEAD_BYTES` once
decompressed is no event. What was said in a rollout is read up to `LABELLED_BYTES`; beyond it, as
in a blob, the rollout is labelled by its head.
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
"""How large a head may be once it is decompressed."""

LABELLED_BYTES: Final = 16 << 20
"""How large the content of a rollout may be, decompressed, and still be labelled. The worst case,
nothing but empty messages, takes about a gigabyte of memory."""

_COMPRESSED_BYTES: Final = 512
"""At least, of what is beyond `HEAD_BYTES` once decompressed: zstd takes four for 128 KiB."""

REASON_CHARACTERS: Final = 500
TYPE_CHARACTERS: Final = 128
ID_CHARACTERS: Final = 256
"""How long an id in a dead letter may be; our own are UUIDs."""


@dataclass(frozen=True, slots=True)
class Preparation:
    """What is known of a record before the tables are asked."""

    record: Record
    """The record in the form that the tables can name (`sanitize_record`)."""
    kind: str | None = None
    """Its type, by its header; None where that cannot be read."""
    folding: FoldInput | None = None
    """The decoded event, for an event of `learning`; else None."""
    rows: tuple[tuple[type[ProjectionTable], Row], ...] = ()
    """The rows of an event of `rollouts`; empty for any other."""
    characters: int = 0
    """How long the texts of the rows are together."""
    error: Exception | None = None
    """Why it cannot be folded: UnknownType, SchemaAhead, or what a dead letter says."""


def prepare(record: Record, registry: Registry) -> Preparation:
    """A record as `sanitize_record` makes it, decoded; of `rollouts`, folded. Raises MemoryError
    and nothing else."""
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
    except Exception as error:  # a fold is deterministic: what it raises, every replay raises
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
    """Whether there is nothing to fold: an event of a type that this projection does not know."""
    return isinstance(item.error, UnknownType)


def halts(item: Preparation) -> bool:
    """Whether the fold has to wait for a newer kintsugi."""
    return isinstance(item.error, SchemaAhead)


def dead_letter(item: Preparation, error: Exception) -> Row:
    """The row that names an event which could not be folded, and why."""
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
    """The live rollout that a record would have been: its event has the rollout's id. None for an
    id that none of ours has: a dead letter must never be refused itself."""
    if item.kind != RolloutEnded.TYPE:
        return None
    rollout = from_headers(item.record.headers).id
    return rollout if len(rollout) <= ID_CHARACTERS else None


def why(error: Exception) -> str:
    """What is said of an error: one of ours says all itself."""
    return str(error) if isinstance(error, KintsugiError) else f"{type(error).__name__}: {error}"
