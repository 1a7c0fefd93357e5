"""Importing: files of rollouts -> `RolloutEnded` events in the log. A folder is walked recursively
in sorted order for *.json and *.jsonl, without hidden files. A tau2 folder of `results.json` and
`simulations/` is one source. Other files, and whole ones of no known format, are skipped with a
note. Formats: docs/formats.md.

Guarantees: a damaged record never stops the others, and everything that was not imported is named;
importing again appends nothing twice. A blob is stored before its event.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from events.blobs import BlobStore
from events.codec import WireEvent, encode
from events.errors import TooLarge
from events.log import EventLog, now_ms
from producers.importers import bfcl, openai_chat, tau2, tau_bench
from producers.importers.documents import (
    Damage,
    RawRecord,
    Shape,
    members,
    read_text,
    records,
    shape_of,
    skip_blank,
)
from producers.importers.records import (
    FileWarning,
    Notes,
    Rejection,
    RolloutImport,
    Skip,
    Source,
)

__all__ = [
    "FORMATS",
    "FileWarning",
    "ImportResult",
    "Notes",
    "Rejection",
    "RolloutImport",
    "Skip",
    "append_rollouts",
    "read_rollouts",
    "total_bytes",
]

BATCH_ROLLOUTS: Final = 128
BATCH_BYTES: Final = 16 << 20
"""Bytes at which a batch ends, if it has not ended after `BATCH_ROLLOUTS`. Both bound memory."""

_DISPLAYS: Final = "messages_display"
_SAMPLE_RECORDS: Final = 100
"""Most damaged records that are skipped to find a readable one for the file's format."""


class Format(Protocol):
    """The interface of a format's module."""

    NAME: str

    def recognises(self, shape: Shape, keys: frozenset[str]) -> bool: ...

    def is_record(self, value: Any) -> bool: ...

    def read(self, source: Source, shape: Shape) -> Iterator[RolloutImport | Rejection]: ...


_MODULES: Final[tuple[Format, ...]] = (tau_bench, tau2, openai_chat, bfcl)

FORMATS: Final[dict[str, Format]] = {module.NAME: module for module in _MODULES}


@dataclass(slots=True)
class ImportResult:
    """The result of an import."""

    imported: int = 0
    duplicates: int = 0
    rejected: list[Rejection] = field(default_factory=list)
    warnings: list[FileWarning] = field(default_factory=list)
    skips: list[Skip] = field(default_factory=list)


def read_rollouts(
    paths: Iterable[Path],
    *,
    alias: str = "agent",
    base: str | None = None,
    format: str = "auto",
    progress: Callable[[int], None] = lambda _: None,
    notes: Notes | None = None,
) -> Iterator[RolloutImport | Rejection]:
    """Yield every record of the files and folders. `progress` is called with the bytes read since
    its last call, in total `total_bytes(paths)`. `notes` gets remarks. Raises ValueError for an
    unknown format."""
    if format != "auto" and format not in FORMATS:
        raise ValueError(f"format {format!r} is not one of auto, {', '.join(FORMATS)}")
    notes = Notes() if notes is None else notes
    paths = list(paths)
    files = list(_sources(paths, notes.skips))
    siblings = frozenset(files)
    explicit = siblings.intersection(paths)
    for path in files:
        bytes_read = 0

        def advance(count: int) -> None:
            nonlocal bytes_read
            bytes_read += count
            progress(count)

        may_skip = format == "auto" and path not in explicit
        source = Source(path, alias, base, advance, notes, siblings, may_skip)
        try:
            yield from _read_file(source, format)
        except OSError as error:
            yield source.rejection("file", f"cannot be read: {error.strerror or error}")
        progress(_size(path) - bytes_read)


def append_rollouts(
    log: EventLog,
    blobs: BlobStore,
    rollouts: Iterable[RolloutImport | Rejection],
    known: Callable[[list[str]], set[str]],
) -> ImportResult:
    """Append new events in batches. `known` returns which of some event ids are in the log."""
    result = ImportResult()
    warned: dict[tuple[str, str], FileWarning] = {}
    batch: list[RolloutImport] = []
    batch_bytes = 0
    seen: set[str] = set()

    for item in rollouts:
        if isinstance(item, Rejection):
            result.rejected.append(item)
            continue
        for warning in item.warnings:
            first = warned.get(
                (item.file, warning), FileWarning(item.file, warning, 0, item.position)
            )
            warned[item.file, warning] = FileWarning(
                first.file, first.warning, first.count + 1, first.position
            )
        if item.envelope.id in seen:
            result.duplicates += 1
            continue
        seen.add(item.envelope.id)
        batch.append(item)
        batch_bytes += len(item.record)
        if len(batch) >= BATCH_ROLLOUTS or batch_bytes >= BATCH_BYTES:
            _append_batch(log, blobs, batch, known, result)
            batch, batch_bytes = [], 0
    _append_batch(log, blobs, batch, known, result)
    result.warnings = list(warned.values())
    return result


def total_bytes(paths: Iterable[Path]) -> int:
    """Return the bytes that `read_rollouts` will report as read."""
    return sum(_size(path) for path in _sources(paths, []))


def _append_batch(
    log: EventLog,
    blobs: BlobStore,
    batch: Sequence[RolloutImport],
    known: Callable[[list[str]], set[str]],
    result: ImportResult,
) -> None:
    old = known([item.envelope.id for item in batch]) if batch else set()
    result.duplicates += len(old)
    encoded: list[WireEvent] = []
    for item in batch:
        if item.envelope.id in old:
            continue
        try:
            encoded.append(encode(item.envelope, item.data, now_ms()))
        except TooLarge as error:
            result.rejected.append(Rejection(item.file, item.position, str(error)))
    for event in encoded:
        if event.blob is not None:
            blobs.put(event.blob)
    if encoded:
        log.append([event.entry for event in encoded])
    result.imported += len(encoded)


def _read_file(source: Source, format: str) -> Iterator[RolloutImport | Rejection]:
    shape = shape_of(source.path)
    if format != "auto":
        yield from FORMATS[format].read(source, shape)
        return
    keys = _first_keys(source.path, shape)
    for module in FORMATS.values():
        if module.recognises(shape, keys):
            yield from module.read(source, shape)
            return
    reason = _unknown(source.path, keys)
    # Reject rollouts for display, as there is a remedy; skip documents of other programs.
    if source.may_skip and _DISPLAYS not in keys and _is_whole(source.path, shape):
        yield from source.leave(reason)
    else:
        yield source.rejection("file", reason)


def _first_keys(path: Path, shape: Shape) -> frozenset[str]:
    """Return the keys of the first readable record, else of the object at the file's start."""
    record: RawRecord | Damage
    for number, record in enumerate(records(path, shape, _is_any_record)):
        if isinstance(record, RawRecord) and isinstance(record.value, dict):
            return frozenset(record.value)
        if number >= _SAMPLE_RECORDS:
            break
    text = read_text(path)
    start = _first_object(text)
    return frozenset(key for key, _ in members(text, start)) if start is not None else frozenset()


def _is_whole(path: Path, shape: Shape) -> bool:
    items = list(records(path, shape, _is_any_record))
    return bool(items) and all(isinstance(item, RawRecord) for item in items)


def _is_any_record(value: Any) -> bool:
    return any(module.is_record(value) for module in FORMATS.values())


def _first_object(text: str) -> int | None:
    start = skip_blank(text, 0)
    if text[start : start + 1] == "[":
        start = skip_blank(text, start + 1)
    return start if text[start : start + 1] == "{" else None


def _unknown(path: Path, keys: frozenset[str]) -> str:
    if not path.stat().st_size:
        return "is empty"
    if _DISPLAYS in keys:
        return (
            "holds few-shot displays: text for a prompt, without the names of the tools; import "
            "the rollouts they were made from"
        )
    seen = ", ".join(sorted(key[:40] for key in keys)[:8]) or "no JSON object"
    return (
        f"is in none of the formats {', '.join(FORMATS)}: its first record has {seen}; name the "
        "format if it is one of them, else write OpenAI chat JSON Lines (docs/formats.md)"
    )


def _sources(paths: Iterable[Path], skips: list[Skip]) -> Iterator[Path]:
    """Yield the files to read; add a folder's other files to `skips`."""
    for path in paths:
        if path.is_dir():
            yield from _walk(path, skips)
        else:
            yield path


def _walk(folder: Path, skips: list[Skip]) -> Iterator[Path]:
    for root, folders, files in os.walk(folder):
        is_tau2 = tau2.RESULTS in files
        hidden = sorted(name for name in folders if name.startswith("."))
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".") and not (is_tau2 and name == tau2.SIMULATIONS)
        )
        links = [name for name in folders if Path(root, name).is_symlink()]
        skips += [Skip(str(Path(root, name)), "is a hidden folder") for name in hidden]
        skips += [
            Skip(str(Path(root, name)), "is a link to a folder; name that folder to import it")
            for name in links
        ]
        for name in sorted(files):
            path = Path(root, name)
            if (reason := _reason_to_skip(path)) is None:
                yield path
            else:
                skips.append(Skip(str(path), reason))


def _reason_to_skip(path: Path) -> str | None:
    if path.name.startswith("."):
        return "is a hidden file"
    if not path.name.lower().endswith((".json", ".jsonl")):
        return "is not named *.json or *.jsonl"
    # Do not skip a broken link: reading it gives a rejection with its name.
    if path.exists() and not path.is_file():
        return "is no regular file"
    return None


def _size(path: Path) -> int:
    """Return a source's size in bytes; 0 if unreadable, which reading it reports later."""
    files = [path]
    if path.name == tau2.RESULTS:
        files += (path.parent / tau2.SIMULATIONS).glob("*.json")
    try:
        return sum(file.stat().st_size for file in files)
    except OSError:
        return 0
