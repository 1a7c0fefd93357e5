"""Segments: records of one partition as bytes, exactly as a log holds them.

    "kintsugi segment 1 STREAM/PARTITION\\n"
    per record    offset u64 | recorded_ms i64 | sequence u64 | lengths u32 of source, key, headers,
                  value | source | key | headers (as events/sqlite/file.py packs them) | value

All little-endian. On disk a segment is one zstd frame; its hash is of the bytes before compression.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

import zstandard

from events.errors import LogCorrupt
from events.log import Record
from events.sqlite.file import pack_headers, unpack_headers

RECORDS: Final = 10_000
"""Most records of one segment."""

BYTES: Final = 8 << 20
"""Uncompressed bytes at which a segment is closed; small, because readers hold several at once."""

_FRAME: Final = struct.Struct("<QqQIIII")

MAX_BYTES: Final = BYTES + (16 << 20)
"""Largest segment in uncompressed bytes, because the record that exceeds `BYTES` is the last."""

_MOST_WINDOW: Final = 1 << 25
"""Largest zstd window in bytes: as much as a whole segment."""

_PIECE: Final = 256
"""Compressed bytes per step where a frame announces no size: 4 bytes may become 128 KiB."""


@dataclass(frozen=True, slots=True)
class SegmentBytes:
    """A segment to be written."""

    stored: bytes
    size: int
    """Bytes before compression."""
    sha256: str


def frame_record(record: Record) -> bytes:
    """Return one record in the layout of a segment."""
    source, key = record.source.encode(), record.key.encode()
    headers = pack_headers(record.headers)
    lengths = (len(source), len(key), len(headers), len(record.value))
    head = _FRAME.pack(record.offset, record.recorded_ms, record.sequence, *lengths)
    return b"".join((head, source, key, headers, record.value))


def digest(record: Record) -> str:
    """Return the hash of all fields of a record."""
    return sha256(frame_record(record)).hexdigest()


def pack_segment(stream: str, partition: int, frames: Iterable[bytes]) -> SegmentBytes:
    """Return a segment of framed records."""
    content = b"".join((_title(stream, partition), *frames))
    # The frame holds the content's length, so a reader knows the size in advance.
    stored = zstandard.ZstdCompressor(level=3, write_checksum=True).compress(content)
    return SegmentBytes(stored, len(content), sha256(content).hexdigest())


def unpack_segment(
    stream: str, partition: int, stored: bytes, expected: str, name: str
) -> list[Record]:
    """Return a segment's records. Raises LogCorrupt with `name` if the hash is not `expected`."""
    try:
        content = _inflate(stored)
    except zstandard.ZstdError as error:
        raise _corruption_error(name, str(error)) from error
    if len(content) > MAX_BYTES:
        raise _corruption_error(
            name, f"it holds more than {MAX_BYTES:,} bytes, which no export writes"
        )
    actual = sha256(content).hexdigest()
    if actual != expected:
        raise _corruption_error(name, f"its sha256 is {actual}, and not {expected}")
    title = _title(stream, partition)
    if not content.startswith(title):
        raise _corruption_error(name, f"it is not of {stream}/{partition}")
    try:
        return _records(stream, partition, content, len(title))
    except (struct.error, UnicodeDecodeError) as error:
        raise _corruption_error(name, f"its records are none ({error})") from error


def _inflate(stored: bytes) -> bytes:
    """Return the only frame's content, of which at most about `MAX_BYTES`. Raises ZstdError."""
    size = zstandard.frame_content_size(stored)
    if 0 <= size <= MAX_BYTES:
        return zstandard.ZstdDecompressor().decompress(stored, allow_extra_data=False)
    # An announced size may be wrong or absent, so it does not decide how much memory is used.
    inflater = zstandard.ZstdDecompressor(max_window_size=_MOST_WINDOW).decompressobj()
    pieces: list[bytes] = []
    at = length = 0
    while at < len(stored) and length <= MAX_BYTES and not inflater.eof:
        pieces.append(inflater.decompress(stored[at : at + _PIECE]))
        at, length = at + _PIECE, length + len(pieces[-1])
    if length <= MAX_BYTES and not inflater.eof:
        raise zstandard.ZstdError("its frame is cut off")
    after = len(inflater.unused_data) + max(0, len(stored) - at)
    if inflater.eof and after:
        raise zstandard.ZstdError(f"{after} bytes follow its frame")
    return b"".join(pieces)


def _records(stream: str, partition: int, content: bytes, at: int) -> list[Record]:
    records: list[Record] = []
    while at < len(content):
        offset, recorded_ms, sequence, *lengths = _FRAME.unpack_from(content, at)
        at += _FRAME.size
        if at + sum(lengths) > len(content):
            raise struct.error(f"offset {offset} ends behind the segment")
        parts: list[bytes] = []
        for length in lengths:
            parts.append(content[at : at + length])
            at += length
        source, key, headers, value = parts
        records.append(
            Record(
                stream, partition, offset, source.decode(), sequence, key.decode(),
                unpack_headers(headers), value, recorded_ms,
            )
        )  # fmt: skip
    return records


def _title(stream: str, partition: int) -> bytes:
    return f"kintsugi segment 1 {stream}/{partition}\n".encode()


def _corruption_error(name: str, why: str) -> LogCorrupt:
    return LogCorrupt(f"segment {name} is damaged: {why}; restore it from another copy")
