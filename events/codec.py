"""Events as stored bytes, and back. A decision (stream `learning`) is plain JSON. An event of
stream `rollouts` is framed:

    "kg" | layout u8 | flags u8 | head u32 | content u32 | arrays u32     16 bytes, little-endian
    head       zstd(JSON)            always readable; most folds need no more
    content    zstd(JSON)            the conversation; may be encrypted or destroyed by itself
    arrays     zstd(u32 length | directory JSON | raw little-endian arrays)

With flag BLOB the body (content and arrays) is a content-addressed blob: its sha256 (32 bytes) and
length (u64) follow the head. A fold never opens a blob, so a missing blob cannot change a
projection. With flag SEALED the body is encrypted with the key named in header `ce_keyid`
(privacy/sealing.py). It then includes the head's fields in `PRIVATE`; `ce_person` is not written.

Stored bytes never change. Older versions are upcast on read (registry.py).
"""

import array
import json
import math
import struct
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import sha256
from typing import Any, Final

import zstandard
from pydantic import BaseModel, ValidationError

from events.envelope import Envelope, from_headers, to_headers
from events.errors import BadRecord, BlobError, TooLarge
from events.log import Entry, Record
from events.privacy.sealing import Key, seal, unseal
from events.registry import REGISTRY, Registry, first_problem
from events.rollouts import EventData
from events.streams import (
    MAX_DECODED_BYTES,
    MAX_INLINE_BODY_BYTES,
    MAX_VALUE_BYTES,
    STREAMS,
)

FRAMED: Final = "application/vnd.kintsugi.framed"
PLAIN: Final = "application/json"

_MAGIC: Final = b"kg"
_LAYOUT: Final = 1
_BLOB: Final = 1
_SEALED: Final = 2
_FRAME: Final = struct.Struct("<2sBBIII")
_BLOB_REFERENCE: Final = struct.Struct("<32sQ")
_LENGTH: Final = struct.Struct("<I")

_DTYPES: Final = {"<i4": "i", "<f4": "f"}
"""Stored dtype -> typecode of the standard library's array."""

Arrays = Mapping[str, "array.array[Any]"]
"""Name -> int32 (token ids) or float32 (log-probabilities)."""


@dataclass(frozen=True, slots=True)
class BlobReference:
    """The blob of a body too large for its record."""

    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class Event:
    """An envelope and its data."""

    envelope: Envelope
    data: EventData
    blob: BlobReference | None = None
    sealed: bool = False
    """Whether its content, arrays and private fields are still encrypted."""


@dataclass(frozen=True, slots=True)
class WireEvent:
    """An entry to append, and the body (if any) that must be stored as a blob before."""

    entry: Entry
    blob: bytes | None = None
    reference: BlobReference | None = None


@dataclass(frozen=True, slots=True)
class _Sections:
    head: bytes
    content: bytes = b""
    arrays: bytes = b""
    blob: BlobReference | None = field(default=None)
    sealed: bool = False


def encode(
    envelope: Envelope,
    data: EventData,
    recorded_ms: int,
    arrays: Arrays | None = None,
    owner: Key | None = None,
) -> WireEvent:
    """Return an event in its stored form, encrypted with the key `owner` if given. Raises TooLarge
    if the head exceeds a record or a section exceeds the limit of reading. Raises ValueError for
    arrays with a number that is not finite."""
    stream = STREAMS[data.STREAM]
    framed = stream.name == "rollouts"
    blob: bytes | None = None
    reference: BlobReference | None = None
    if owner is not None:
        envelope = replace(envelope, person=None, keyid=owner.id)
    if framed:
        value, blob = _frame(data, arrays or {}, _sealing(owner, _context(envelope)))
        if blob is not None:
            reference = BlobReference(sha256(blob).hexdigest(), len(blob))
    else:
        value = _write_json(data)
    if len(value) > MAX_VALUE_BYTES:
        raise TooLarge(
            f"{data.TYPE} {envelope.id} takes {len(value):,} bytes without its content, a record "
            f"holds at most {MAX_VALUE_BYTES:,}; shorten its fields"
        )
    key = data.key()
    entry = Entry(
        stream=stream.name,
        partition=stream.partition_of(key),
        key=key,
        headers=to_headers(envelope, FRAMED if framed else PLAIN),
        value=value,
        recorded_ms=recorded_ms,
    )
    return WireEvent(entry, blob, reference)


def decode(record: Record, registry: Registry = REGISTRY, content: bool = True) -> Event:
    """Return a record's event, upcast to the newest version; with `content` False, only its head.
    Raises BadRecord for malformed bytes or an unknown type, SchemaAhead for a newer version."""
    envelope = from_headers(record.headers)
    return decode_value(record, envelope, registry, content)


def decode_value(
    record: Record, envelope: Envelope, registry: Registry = REGISTRY, content: bool = True
) -> Event:
    """Decode as `decode` does, for a record whose envelope was read already."""
    _check_value(record.value)
    # Check this before reading the value: a newer version may have another layout.
    registry.check(envelope.type, envelope.version)
    if record.stream == "rollouts":
        sections = _split(record.value)
        data = registry.parse(envelope.type, envelope.version, _inflate(sections.head, "head"))
        if content and sections.content and not sections.sealed:
            data = _with_content(data, sections.content)
        return Event(envelope, data, sections.blob, sections.sealed)
    data = registry.parse(envelope.type, envelope.version, record.value)
    return Event(envelope, data)


def measure_sections(value: bytes) -> tuple[int, int]:
    """Return the decompressed sizes of head and content in bytes. The content's size is 0 if it is
    sealed, in a blob or absent. Raises BadRecord."""
    _check_value(value)
    sections = _split(value)
    content = 0 if sections.sealed or not sections.content else _read_frame_size(sections.content)
    return _read_frame_size(sections.head), content


def _check_value(value: bytes) -> None:
    if len(value) > MAX_VALUE_BYTES:
        raise TooLarge(f"value of {len(value):,} bytes, a record holds at most {MAX_VALUE_BYTES:,}")


def _read_frame_size(section: bytes) -> int:
    try:
        return max(0, zstandard.frame_content_size(section))
    except zstandard.ZstdError as error:
        raise BadRecord(f"a section is no whole zstd frame: {error}") from error


def arrays_of(value: bytes) -> dict[str, "array.array[Any]"]:
    """Return the token arrays in a framed value; empty if it has none or they are in a blob."""
    section = _split(value).arrays
    return _unpack_arrays(section) if section else {}


def blob_of(value: bytes) -> BlobReference | None:
    """Return the blob that a framed value names, or None."""
    return _split(value).blob


def ciphertext_of(value: bytes) -> bytes:
    """Return the encrypted body in a framed value; empty if it is in a blob or not sealed."""
    sections = _split(value)
    return sections.content if sections.sealed else b""


def unseal_event(
    event: Event, sealed: bytes, key: Key
) -> tuple[Event, dict[str, "array.array[Any]"]]:
    """Decrypt an event with its body `sealed`; return it and its arrays. Raises BadRecord."""
    content, arrays = _split_body(unseal(key, sealed, _context(event.envelope)))
    document = json.loads(_inflate(content, "content"))
    data = event.data
    if document["head"]:
        stored = json.loads(data.model_dump_json()) | document["head"]
        data = type(data).model_validate_json(json.dumps(stored))
    if document["content"] is not None:
        parsed = _content_model(type(data)).model_validate(document["content"])
        data = data.model_copy(update={"content": parsed})
    envelope = replace(event.envelope, person=key.person)
    return Event(envelope, data, event.blob), _unpack_arrays(arrays) if arrays else {}


def attach(event: Event, body: bytes) -> tuple[Event, dict[str, "array.array[Any]"]]:
    """Return `event` with the content from `body`, the bytes of its blob, and the blob's arrays.
    Raises BlobError for wrong bytes or a sealed event."""
    check_blob(event, body)
    if event.sealed:
        raise BlobError(f"the blob of event {event.envelope.id} is sealed; open it with its key")
    content, arrays = _split_body(body)
    data = _with_content(event.data, content) if content else event.data
    return Event(event.envelope, data, event.blob), _unpack_arrays(arrays) if arrays else {}


def check_blob(event: Event, body: bytes) -> None:
    """Raise BlobError if `body` does not have the sha256 that the event names for its blob."""
    if event.blob is None:
        raise BlobError(f"event {event.envelope.id} names no blob; its body is in its record")
    digest = sha256(body).hexdigest()
    if digest != event.blob.sha256:
        raise BlobError(
            f"blob {event.blob.sha256} of event {event.envelope.id} holds other bytes ({digest}); "
            "restore it from a copy"
        )


def _split_body(body: bytes) -> tuple[bytes, bytes]:
    begin = _LENGTH.size
    end = begin + _LENGTH.unpack_from(body)[0]
    return body[begin:end], body[end:]


def _context(envelope: Envelope) -> str:
    return f"{envelope.type} {envelope.id}"


def _frame(
    data: EventData, arrays: Arrays, sealing: Callable[[bytes], bytes] | None = None
) -> tuple[bytes, bytes | None]:
    content_model: BaseModel | None = getattr(data, "content", None)
    private = {name: getattr(data, name) for name in data.PRIVATE}
    packed = _deflate(_pack_arrays(arrays), data) if arrays else b""
    if sealing is not None and (content_model is not None or packed or any(private.values())):
        return _seal_frame(data, content_model, packed, sealing)
    head = _deflate(_write_json(data), data)
    content = (
        _deflate(_write_json(content_model, exclude_defaults=True), data)
        if content_model is not None
        else b""
    )
    if len(content) + len(packed) <= MAX_INLINE_BODY_BYTES - len(head):
        frame = _FRAME.pack(_MAGIC, _LAYOUT, 0, len(head), len(content), len(packed))
        return frame + head + content + packed, None
    body = _LENGTH.pack(len(content)) + content + packed
    frame = _FRAME.pack(_MAGIC, _LAYOUT, _BLOB, len(head), 0, 0)
    return frame + head + _BLOB_REFERENCE.pack(sha256(body).digest(), len(body)), body


def _sealing(owner: Key | None, context: str) -> Callable[[bytes], bytes] | None:
    return None if owner is None else lambda body: seal(owner, body, context)


def _seal_frame(
    data: EventData,
    content_model: BaseModel | None,
    packed: bytes,
    sealing: Callable[[bytes], bytes],
) -> tuple[bytes, bytes | None]:
    private = set(data.PRIVATE)
    head = _deflate(_write_json(data, exclude=private), data)
    kept = _write_json(data, include=private, exclude_defaults=True)
    content_json = (
        b"null" if content_model is None else _write_json(content_model, exclude_defaults=True)
    )
    content = _deflate(b'{"head":%b,"content":%b}' % (kept, content_json), data)
    body = sealing(_LENGTH.pack(len(content)) + content + packed)
    if len(body) <= MAX_INLINE_BODY_BYTES - len(head):
        frame = _FRAME.pack(_MAGIC, _LAYOUT, _SEALED, len(head), len(body), 0)
        return frame + head + body, None
    frame = _FRAME.pack(_MAGIC, _LAYOUT, _SEALED | _BLOB, len(head), 0, 0)
    return frame + head + _BLOB_REFERENCE.pack(sha256(body).digest(), len(body)), body


def _write_json(
    model: BaseModel,
    *,
    include: set[str] | None = None,
    exclude: set[str] | None = None,
    exclude_defaults: bool = False,
) -> bytes:
    """Return the bytes of `model_dump_json`, without making a str first."""
    return model.__pydantic_serializer__.to_json(
        model, include=include, exclude=exclude, exclude_defaults=exclude_defaults
    )


def _split(value: bytes) -> _Sections:
    if len(value) < _FRAME.size:
        raise BadRecord(f"value of {len(value)} bytes is shorter than a frame's {_FRAME.size}")
    magic, layout, flags, head, content, arrays = _FRAME.unpack_from(value)
    if magic != _MAGIC or layout != _LAYOUT or flags & ~(_BLOB | _SEALED):
        raise BadRecord(f"value does not start with a frame of layout {_LAYOUT}: {value[:4]!r}")
    at, sealed = _FRAME.size, bool(flags & _SEALED)
    expected = at + head + (_BLOB_REFERENCE.size if flags & _BLOB else content + arrays)
    if len(value) != expected:
        raise BadRecord(f"value of {len(value)} bytes, its frame announces {expected}")
    if flags & _BLOB:
        digest, size = _BLOB_REFERENCE.unpack_from(value, at + head)
        reference = BlobReference(digest.hex(), size)
        return _Sections(value[at : at + head], blob=reference, sealed=sealed)
    middle = at + head + content
    return _Sections(
        value[at : at + head], value[at + head : middle], value[middle:], sealed=sealed
    )


class _Zstd(threading.local):
    """A compressor and a decompressor per thread: shared by threads they would corrupt data."""

    def __init__(self) -> None:
        self.compress = zstandard.ZstdCompressor(level=3).compress
        self.decompress = zstandard.ZstdDecompressor().decompress


_zstd = _Zstd()


def _deflate(section: bytes, data: EventData) -> bytes:
    if len(section) > MAX_DECODED_BYTES:
        raise TooLarge(
            f"{data.TYPE} {data.key()} has a section of {len(section):,} bytes, and at most "
            f"{MAX_DECODED_BYTES:,} are read back; say less"
        )
    return _zstd.compress(section)


def _inflate(section: bytes, name: str) -> bytes:
    try:
        size = zstandard.frame_content_size(section)
        if size < 0 or size > MAX_DECODED_BYTES:
            raise BadRecord(f"{name} announces {size:,} bytes, the limit is {MAX_DECODED_BYTES:,}")
        return _zstd.decompress(section, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise BadRecord(f"{name} is no whole zstd frame: {error}") from error


def _with_content(data: EventData, section: bytes) -> EventData:
    annotation = type(data).model_fields.get("content")
    if annotation is None:
        raise BadRecord(f"{data.TYPE} carries a content section, its type has none")
    model = _content_model(type(data))
    try:
        parsed = model.model_validate_json(_inflate(section, "content"))
    except ValidationError as error:
        raise BadRecord(f"content of {data.TYPE}: {first_problem(error)}") from error
    # model_copy does not validate, but `parsed` is validated already.
    return data.model_copy(update={"content": parsed})


@cache
def _content_model(data_type: type[EventData]) -> type[BaseModel]:
    annotation = data_type.model_fields["content"].annotation
    for candidate in getattr(annotation, "__args__", ()):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    raise TypeError(f"{data_type.__name__}.content must be annotated as MODEL | None")


def _pack_arrays(arrays: Arrays) -> bytes:
    directory: dict[str, list[str | int]] = {}
    raw = bytearray()
    typecodes = {code: dtype for dtype, code in _DTYPES.items()}
    for name, values in sorted(arrays.items()):
        dtype = typecodes.get(values.typecode)
        if dtype is None:
            raise TypeError(f"array {name!r} is of type {values.typecode!r}; use 'i' or 'f'")
        # A float too large for float32 became infinite there, and then the sum is not finite.
        if values.typecode == "f" and not math.isfinite(sum(values)):
            raise ValueError(f"array {name!r} holds what is no finite number; leave the array out")
        directory[name] = [dtype, len(raw), len(values)]
        raw += _little_endian(values).tobytes()
    listing = json.dumps(directory, separators=(",", ":")).encode()
    return _LENGTH.pack(len(listing)) + listing + bytes(raw)


def _unpack_arrays(section: bytes) -> dict[str, "array.array[Any]"]:
    packed = _inflate(section, "arrays")
    try:
        length = _LENGTH.unpack_from(packed)[0]
        (listing,) = struct.unpack_from(f"{length}s", packed, _LENGTH.size)
        directory = json.loads(listing)
        raw = memoryview(packed)[_LENGTH.size + length :]
        return {
            name: _unpack_array(raw, offset, _DTYPES[dtype], count)
            for name, (dtype, offset, count) in directory.items()
        }
    except (struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadRecord(f"arrays have a broken directory: {error}") from error


def _unpack_array(raw: memoryview, begin: int, typecode: str, count: int) -> "array.array[Any]":
    values: array.array[Any] = array.array(typecode)
    end = begin + count * values.itemsize
    if not 0 <= begin <= end <= len(raw):
        raise ValueError(f"bytes {begin} to {end} are not inside of {len(raw)}")
    values.frombytes(raw[begin:end])
    return _little_endian(values)


def _little_endian(values: "array.array[Any]") -> "array.array[Any]":
    if sys.byteorder == "little":
        return values
    swapped = values[:]
    swapped.byteswap()
    return swapped
