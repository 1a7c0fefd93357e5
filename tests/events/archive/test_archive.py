"""Archives: bit for bit, chained, resumable, and never quiet about damage."""

import json
import struct
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import pairwise, product
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from events.archive import segments
from events.archive.archive import MANIFEST, Archive, Cut, Manifest, Segment, ends
from events.archive.export import export
from events.archive.restore_sqlite import restore
from events.archive.views import ArchiveWithLog, Span, cut_at, in_time, starts
from events.blobs import BlobStore
from events.errors import LogCorrupt, LogError, LogReadOnly, LogTruncated
from events.log import Entry, EventLog, Record, read_all
from events.sqlite.log import SqliteLog
from events.streams import STREAMS
from ops.mix import mix
from tests.consumers.folding import Broker


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SqliteLog]:
    """A log with something in every partition."""
    log = SqliteLog(tmp_path / "log.db", durability="process")
    log.append(list(mix(400)))
    log.append([decision(number) for number in range(3)])
    yield log
    log.close()


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "blobs")


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments that a few records fill."""
    monkeypatch.setattr(segments, "RECORDS", 40)


def decision(number: int) -> Entry:
    recorded = next(iter(mix(1))).recorded_ms
    return Entry(
        "learning", 0, "control", (("h", b"\xff"),), b"%d" % number, recorded + 100 * number
    )


def records(log: EventLog) -> dict[tuple[str, int], list[Record]]:
    until = ends(log)
    return {
        at: [one for page in read_all(log, *at, first, until[at]) for one in page]
        for at, first in starts(log).items()
    }


def test_an_archive_holds_what_the_log_holds(
    log: SqliteLog, blobs: BlobStore, tmp_path: Path
) -> None:
    done = export(log, blobs, tmp_path / "kept")
    archive = Archive(tmp_path / "kept")
    assert done.events == 403
    assert records(archive) == records(log)
    assert [archive.end(stream) for stream in STREAMS] == [log.end(stream) for stream in STREAMS]
    assert archive.read("learning", 0, 1, limit=1) == log.read("learning", 0, 1, limit=1)
    assert archive.manifest.head == done.head
    with pytest.raises(LogReadOnly, match="is an archive"):
        archive.append([decision(0)])


def test_a_restored_log_is_the_log_bit_for_bit(
    log: SqliteLog, blobs: BlobStore, tmp_path: Path
) -> None:
    log.trim("rollouts", 3, 7)
    export(log, blobs, tmp_path / "kept")
    restore(Archive(tmp_path / "kept"), tmp_path / "back.db", blobs)
    back = SqliteLog(tmp_path / "back.db")
    assert (back.source, records(back), back.stats()) == (log.source, records(log), log.stats())
    assert back.check() == []
    again = export(back, blobs, tmp_path / "again")
    assert (tmp_path / "again" / MANIFEST).read_bytes() == (
        tmp_path / "kept" / MANIFEST
    ).read_bytes()
    places = [log.append([decision(9)]), back.append([decision(9)])]
    assert places[0] == places[1]
    back.close()
    assert again.head


def test_bodies_outside_the_log_are_kept_with_it(
    log: SqliteLog, blobs: BlobStore, tmp_path: Path
) -> None:
    body = b"a body that was too large"
    digest = blobs.put(body)
    value = b"kg\x01\x01" + b"\0" * 12 + bytes.fromhex(digest) + len(body).to_bytes(8, "little")
    log.append([Entry("rollouts", 0, "k", (), value, 1)])
    assert export(log, blobs, tmp_path / "kept").blobs == 1
    there = BlobStore(tmp_path / "elsewhere" / "blobs")
    (tmp_path / "elsewhere").mkdir()
    done = restore(Archive(tmp_path / "kept"), tmp_path / "elsewhere" / "log.db", there)
    assert (done.blobs, there.get(digest)) == (1, body)


def test_an_export_goes_on_where_it_ended(log: SqliteLog, blobs: BlobStore, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    first = export(log, blobs, kept)
    assert export(log, blobs, kept) == replace(first, events=0, segments=0)
    log.append(list(mix(50, start=400)))
    second = export(log, blobs, kept)
    assert (second.events, second.head != first.head) == (50, True)
    assert records(Archive(kept)) == records(log)


def test_another_logs_archive_is_left_alone(
    log: SqliteLog, blobs: BlobStore, tmp_path: Path
) -> None:
    export(log, blobs, tmp_path / "kept")
    other = SqliteLog(tmp_path / "other.db", durability="process")
    other.append(list(mix(500, seed=1)))
    other.append([decision(number) for number in range(4)])
    before = (tmp_path / "kept" / MANIFEST).read_bytes()
    with pytest.raises(LogError, match="another log"):
        export(other, blobs, tmp_path / "kept")
    with pytest.raises(LogError, match="another log"):
        ArchiveWithLog(Archive(tmp_path / "kept"), other)
    assert (tmp_path / "kept" / MANIFEST).read_bytes() == before
    other.close()


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_no_changed_byte_changes_a_record_unnoticed(
    data: st.DataObject, log: SqliteLog, blobs: BlobStore, tmp_path_factory: pytest.TempPathFactory
) -> None:
    kept = tmp_path_factory.mktemp("kept") / "archive"
    export(log, blobs, kept)
    files = [kept / MANIFEST, *sorted((kept / "segments").iterdir())]
    file = data.draw(st.sampled_from(files), label="file")
    content = bytearray(file.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1), label="place")
    content[place] ^= 1 << data.draw(st.integers(0, 7), label="bit")
    file.write_bytes(bytes(content))
    found = None
    with suppress(LogError):
        found = records(Archive(kept))
    # White space of a manifest says nothing, and a frame can say the same in several ways.
    assert found is None or found == records(log)


def test_a_missing_and_an_exchanged_segment_are_named(
    log: SqliteLog, blobs: BlobStore, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    export(log, blobs, kept)
    one, other = sorted((kept / "segments").iterdir())[:2]
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    with pytest.raises(LogCorrupt, match=one.name):
        records(Archive(kept))
    with pytest.raises(LogCorrupt, match=one.name):
        restore(Archive(kept), tmp_path / "back.db", blobs)
    assert not (tmp_path / "back.db").exists()
    one.write_bytes(content)
    other.unlink()
    with pytest.raises(LogCorrupt, match=other.name):
        records(Archive(kept))


def test_a_manifest_without_its_last_entry_is_noticed(
    log: SqliteLog, blobs: BlobStore, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    export(log, blobs, kept)
    document = json.loads((kept / MANIFEST).read_text())
    document["segments"].pop()
    (kept / MANIFEST).write_text(json.dumps(document))
    with pytest.raises(LogCorrupt, match="and not at"):
        Archive(kept)


def test_what_was_trimmed_is_read_from_the_archive(
    log: SqliteLog, blobs: BlobStore, tmp_path: Path
) -> None:
    whole = records(log)
    export(log, blobs, tmp_path / "kept")
    added = list(mix(60, start=400))
    log.append(added)
    for partition in range(8):
        log.trim("rollouts", partition, 30)
    both = ArchiveWithLog(Archive(tmp_path / "kept"), log)
    found = records(both)
    assert sum(map(len, found.values())) == 463
    assert all(found[at][: len(of)] == of for at, of in whole.items())
    for partition, end in enumerate(log.end("rollouts")):
        log.trim("rollouts", partition, end)
    with pytest.raises(LogTruncated, match="in neither"):
        ArchiveWithLog(Archive(tmp_path / "kept"), log)


def test_a_brokers_log_with_several_sources_becomes_a_log_of_copies(
    log: SqliteLog, blobs: BlobStore, tmp_path: Path
) -> None:
    broker = Broker()
    broker.deliver([replace(one, source="a") for one in log.read("rollouts", 0, 0, limit=3)])
    broker.deliver([replace(one, source="b") for one in log.read("rollouts", 0, 0, limit=3)])
    export(broker, blobs, tmp_path / "kept")
    assert records(Archive(tmp_path / "kept")) == records(broker)
    restore(Archive(tmp_path / "kept"), tmp_path / "back.db", blobs)
    back = SqliteLog(tmp_path / "back.db")
    assert (records(back), back.check(), back.only_source) == (records(broker), [], None)
    back.append([replace(next(iter(mix(1))), partition=0), decision(0)])
    back.close()

    back = SqliteLog(tmp_path / "back.db")
    (own,) = back.read("rollouts", 0, 6)
    assert (own.source, own.sequence) == (back.source, 0)
    assert back.source not in {"a", "b", log.source}
    export(back, blobs, tmp_path / "again")
    restore(Archive(tmp_path / "again"), tmp_path / "third.db", blobs)
    third = SqliteLog(tmp_path / "third.db")
    assert (records(third), third.source != back.source) == (records(back), True)
    back.close()
    third.close()


def test_an_archive_with_a_hole_is_not_brought_back(
    log: SqliteLog, blobs: BlobStore, tmp_path: Path
) -> None:
    export(log, blobs, tmp_path / "kept")
    holed = Archive(tmp_path / "kept")
    # As of a broker on which somebody else's transaction left markers between our records.
    kept = holed.manifest.segments
    lost = next(
        one
        for one, after in pairwise(kept)
        if (one.stream, one.partition) == (after.stream, after.partition)
    )
    holed.manifest = replace(holed.manifest, segments=tuple(one for one in kept if one is not lost))
    where = f"lacks offsets of {lost.stream}/{lost.partition} between {lost.first} and"
    with pytest.raises(LogError, match=where):
        restore(holed, tmp_path / "back.db", blobs)
    assert not (tmp_path / "back.db").exists()


def test_a_cut_at_a_moment_has_all_until_then_and_nothing_later(log: SqliteLog) -> None:
    until = ends(log)
    ordered = list(in_time(log, starts(log), until))
    assert len(ordered) == 403
    assert [one.recorded_ms for one in ordered] == sorted(one.recorded_ms for one in ordered)
    for moment in {one.recorded_ms for one in ordered[::37]}:
        cut = cut_at(log, moment)
        assert sum(cut.values()) == sum(one.recorded_ms <= moment for one in ordered)
        assert sum(map(len, records(Span(log, cut)).values())) == sum(cut.values())


def test_a_part_of_a_log_is_exported_with_its_offsets(
    log: SqliteLog, blobs: BlobStore, tmp_path: Path
) -> None:
    middle: Cut = {at: end // 2 for at, end in ends(log).items()}
    export(log, blobs, tmp_path / "late", start=middle)
    export(log, blobs, tmp_path / "early", end=middle)
    late, early = records(Archive(tmp_path / "late")), records(Archive(tmp_path / "early"))
    assert {at: early[at] + late[at] for at in late} == records(log)


MIB = 1 << 20


def bombs(size: int) -> Iterator[tuple[str, bytes]]:
    """Frames of a few kilobytes that become `size` bytes."""
    for known in (size, -1):
        writer = zstandard.ZstdCompressor(level=19).compressobj(size=known)
        pieces = [writer.compress(bytes(MIB)) for _ in range(size // MIB)]
        yield ("announced" if known > 0 else "not announced"), b"".join((*pieces, writer.flush()))


def test_a_small_file_that_becomes_a_large_one_is_refused_at_the_size_of_a_segment() -> None:
    for how, stored in bombs(512 * MIB):
        assert len(stored) < 128 * 1024
        tracemalloc.start()
        try:
            with pytest.raises(LogCorrupt, match=r"bomb\.segment"):
                segments.unpack_segment("learning", 0, stored, "0" * 64, "bomb.segment")
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 3 * segments.MAX_BYTES, how


def test_a_frame_that_announces_no_size_is_read(log: SqliteLog, tmp_path: Path) -> None:
    export(log, BlobStore(tmp_path / "blobs"), tmp_path / "archive")
    archive = Archive(tmp_path / "archive")
    whole = records(archive)
    for file in (tmp_path / "archive" / "segments").iterdir():
        writer = zstandard.ZstdCompressor().compressobj()
        content = zstandard.ZstdDecompressor().decompress(file.read_bytes())
        file.write_bytes(writer.compress(content) + writer.flush())
    assert records(Archive(tmp_path / "archive")) == whole


def test_bytes_after_a_segments_frame_are_damage(
    log: SqliteLog, blobs: BlobStore, tmp_path: Path
) -> None:
    export(log, blobs, tmp_path / "kept")
    file = min((tmp_path / "kept" / "segments").iterdir())
    announced = file.read_bytes()
    writer = zstandard.ZstdCompressor(write_checksum=True).compressobj()
    content = zstandard.ZstdDecompressor().decompress(announced)
    frames = {"announced": announced, "not": writer.compress(content) + writer.flush()}
    more = {
        "a byte": b"\0",
        "text": b"x" * 1000,
        "a frame of nothing": zstandard.ZstdCompressor().compress(b""),
        "a frame to skip": struct.pack("<II", 0x184D2A50, 4) + b"abcd",
        "the same again": announced,
    }
    for frame, what in product(frames, more):
        file.write_bytes(frames[frame] + more[what])
        with pytest.raises(LogCorrupt, match=file.name):
            records(Archive(tmp_path / "kept"))
    with pytest.raises(LogCorrupt, match=file.name):
        restore(Archive(tmp_path / "kept"), tmp_path / "back.db", blobs)
    assert not (tmp_path / "back.db").exists()
    for whole in frames.values():
        file.write_bytes(whole[:-1])
        with pytest.raises(LogCorrupt, match=file.name):
            records(Archive(tmp_path / "kept"))


@pytest.mark.parametrize(
    "frames",
    [
        b"",
        b"too short",
        struct.pack("<QqQIIII", 0, 0, 0, 1, 1, 0, 2**31),
        struct.pack("<QqQIIII", 0, 0, 0, 1, 0, 0, 0) + b"\xff",
        struct.pack("<QqQIIII", 0, 0, 0, 0, 0, 1, 0) + b"\x00",
    ],
)
def test_what_holds_no_records_is_damaged_whatever_its_hash(frames: bytes, tmp_path: Path) -> None:
    packed = segments.pack_segment("learning", 0, [frames])
    (tmp_path / "segments").mkdir()
    (tmp_path / "segments" / "a.segment").write_bytes(packed.stored)
    starts = {stream.name: [0] * stream.partitions for stream in STREAMS.values()}
    entry = Segment("learning", 0, 0, 0, 1, packed.size, packed.sha256, "a.segment", "0" * 64)
    written(tmp_path, Manifest(None, starts, (entry,)))
    with pytest.raises(LogCorrupt):
        Archive(tmp_path).read("learning", 0, 0)


def written(folder: Path, manifest: Manifest) -> None:
    """Put a manifest whose chain holds."""
    chained: list[Segment] = []
    for entry in manifest.segments:
        previous = chained[-1].hash if chained else manifest.root
        chained.append(replace(entry, previous=previous))
    whole = replace(manifest, segments=tuple(chained))
    document = {
        "format": 1, "head": whole.head, "source": whole.source, "starts": whole.starts,
        "segments": [asdict(entry) for entry in whole.segments],
    }  # fmt: skip
    (folder / MANIFEST).write_text(json.dumps(document))


@pytest.mark.parametrize("file", ["../secret", "/etc/passwd", "a/b.segment", "..", "", "a\0b"])
def test_a_manifest_names_files_of_its_own_folder_alone(file: str, tmp_path: Path) -> None:
    starts = {stream.name: [0] * stream.partitions for stream in STREAMS.values()}
    entry = Segment("learning", 0, 0, 0, 1, 1, "0" * 64, file, "0" * 64)
    written(tmp_path, Manifest(None, starts, (entry,)))
    with pytest.raises(LogCorrupt, match="its own folder"):
        Archive(tmp_path)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        (("format",), "1", "format"),
        (("format",), 2, "has format 2"),
        (("source",), 7, "source"),
        (("starts",), {}, "starts"),
        (("starts", "learning"), [], "starts"),
        (("starts", "learning", 0), float("nan"), "starts.learning.0"),
        (("segments",), {}, "segments"),
        (("segments", 0), [], "segments.0"),
        (("segments", 0, "stream"), "unknown", "unknown/0, which no log has"),
        (("segments", 0, "partition"), 99, "learning/99, which no log has"),
        (("segments", 0, "first"), "0", "segments.0.first"),
        (("segments", 0, "count"), -1, "segments.0.count"),
        (("segments", 0, "last"), 10**400, "segments.0.last"),
        (("segments", 0, "file"), 3, "segments.0.file"),
        (("segments", 0, "surplus"), 1, "segments.0.surplus"),
        (("surplus",), None, "surplus"),
    ],
)
def test_a_manifest_with_another_value_is_refused_by_file_and_field(
    field: tuple[str | int, ...], value: object, words: str, log: SqliteLog, tmp_path: Path
) -> None:
    folder = tmp_path / "kept"
    export(log, BlobStore(tmp_path / "blobs"), folder)
    document = json.loads((folder / MANIFEST).read_bytes())
    document["segments"].sort(key=lambda entry: entry["stream"] != "learning")
    at = document
    for step in field[:-1]:
        at = at[step]
    at[field[-1]] = value
    (folder / MANIFEST).write_text(json.dumps(document))
    with pytest.raises(LogError) as refused:
        Archive(folder)
    assert str(folder / MANIFEST) in str(refused.value)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.text(max_size=5) | st.floats()
    | st.integers(-(2**80), 2**80) | st.sampled_from(["learning", "rollouts", "a.segment", ".."]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=3,
)  # fmt: skip


def list_places(value: object, at: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Every place in a document, the document itself among them."""
    keys: list[str | int] = []
    if isinstance(value, dict):
        keys = [*value]
    elif isinstance(value, list):
        keys = [*range(len(value))]
    inner = [place for key in keys for place in list_places(value[key], (*at, key))]  # type: ignore[index]
    return [at, *inner]


def chain(document: object) -> object:
    """The document with a chain of hashes that holds, where its form allows for one."""
    with suppress(Exception):  # another form is left as it is
        entries = [Segment(**entry) for entry in document["segments"]]  # type: ignore[index]
        manifest = Manifest(document["source"], document["starts"], ())  # type: ignore[index]
        chained: list[Segment] = []
        for entry in entries:
            previous = chained[-1].hash if chained else manifest.root
            chained.append(replace(entry, previous=previous))
        whole = replace(manifest, segments=tuple(chained))
        return {
            **document, "head": whole.head, "segments": [asdict(entry) for entry in chained],  # type: ignore[dict-item]
        }  # fmt: skip
    return document


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), holds=st.booleans(), drop=st.booleans())
def test_whatever_a_manifest_says_an_import_is_whole_or_refused_in_one_sentence(
    data: st.DataObject, holds: bool, drop: bool, log: SqliteLog, tmp_path: Path
) -> None:
    folder = tmp_path / "kept"
    if not (folder / "original").exists():
        export(log, BlobStore(tmp_path / "blobs"), folder)
        (folder / "original").write_bytes((folder / MANIFEST).read_bytes())
    document = json.loads((folder / "original").read_bytes())
    place = data.draw(st.sampled_from(list_places(document)))
    at = {"": document}
    for step in ("", *place)[:-1]:
        at = at[step]  # type: ignore[index]
    last = ("", *place)[-1]
    if drop and place:
        del at[last]  # type: ignore[arg-type]
    else:
        at[last] = data.draw(JSON)  # type: ignore[index]
    changed = document if place else at[""]
    (folder / MANIFEST).write_text(json.dumps(chain(changed) if holds else changed))
    target = tmp_path / "restored.db"
    refusal = try_restore(folder, target)
    if refusal is None:
        target.unlink()
    else:
        assert str(folder) in refusal
        assert "\n" not in refusal
        assert not target.exists()


def try_restore(folder: Path, target: Path) -> str | None:
    """Restore an archive; why it was refused, or None."""
    try:
        restore(Archive(folder), target, BlobStore(target.with_suffix(".blobs")))
    except LogError as refused:
        return str(refused)
    return None
