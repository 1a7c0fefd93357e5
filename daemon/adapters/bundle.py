"""A bundle of an adapter for use elsewhere: files, evidence, lineage, probes, card.

    NAME/adapter/          the directory of PEFT, as it is in the home
    NAME/gate.json         the gate's last report, every measurement, and the settings in force
    NAME/lineage.json      the lineage down to the ids of rollouts; its base and its parents
    NAME/probes.json       answers of base and adapter to fixed prompts, with log-probabilities
    NAME/README.md         the model card, made from the above
    NAME/MANIFEST.json     the sha256 of every other file

Guarantees: the same files, tables and settings give the same bytes; a file or folder is whole or
absent; of rollouts it has only ids. Not covered: a signature, so the manifest proves no origin.
"""

import gzip
import hashlib
import json
import os
import shutil
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Final

from daemon.adapters.directory import PROVENANCE, BadAdapter, Provenance, has_provenance, read_file
from daemon.adapters.fingerprint import Expectation
from daemon.adapters.model_card import CardFacts, build_card
from events.errors import KintsugiError

ADAPTER: Final = "adapter"
MANIFEST: Final = "MANIFEST.json"
FORMAT: Final = 1
ARCHIVE_SUFFIXES: Final = (".tar.gz", ".tgz")
"""File name endings that make the bundle an archive; with any other name it is a folder."""
_OTHER_ARCHIVES: Final = (".tar", ".tar.bz2", ".tar.xz", ".tar.zst", ".zip")
"""Ends of names that are refused, because no folder has such a name by intention."""
_LEVEL: Final = 6
_UNFINISHED: Final = ".unfinished"


class BundleRefusal(KintsugiError):
    """The adapter cannot be exported, or the target may not be overwritten."""


@dataclass(frozen=True, slots=True)
class BundleFacts:
    """Facts about an adapter, as JSON values where a file holds them unchanged."""

    card: CardFacts
    folder: Path
    gate: Mapping[str, Any]
    lineage: Mapping[str, Any]
    probes: Expectation


def read_provenance(folder: Path) -> Provenance | None:
    """Return the learner's record of an adapter; None for an adapter of another trainer."""
    if not has_provenance(folder):
        return None
    return Provenance.model_validate_json(read_file(folder / PROVENANCE))


def build_bundle(name: str, contents: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the files of a bundle (path -> content), its manifest included."""
    digests = {path: hashlib.sha256(contents[path]).hexdigest() for path in sorted(contents)}
    manifest = {"format": FORMAT, "adapter": name, "files": digests}
    return {**contents, MANIFEST: as_json(manifest)}


def read_contents(facts: BundleFacts) -> dict[str, bytes]:
    """Return the files of an adapter's bundle without the manifest. Raises BadAdapter."""
    contents = {
        "README.md": build_card(facts.card).encode(),
        "gate.json": as_json(facts.gate),
        "lineage.json": as_json(facts.lineage),
        "probes.json": as_json(facts.probes.model_dump(mode="json")),
    }
    try:
        for path in sorted(facts.folder.iterdir()):
            contents[f"{ADAPTER}/{path.name}"] = read_file(path)
    except OSError as error:
        raise BadAdapter(f"{error.filename} cannot be read: {error.strerror}") from error
    return contents


def write_bundle(contents: Mapping[str, bytes], name: str, place: Path, *, force: bool) -> None:
    """Write a bundle into an archive, or into the folder `place` if its name is not an archive's.
    Raises BundleRefusal if `place` exists without `force`, or exists and is no bundle."""
    place = Path(os.path.abspath(place))
    archive = place.name.endswith(ARCHIVE_SUFFIXES)
    if place.name.endswith(_OTHER_ARCHIVES):
        raise BundleRefusal(f"{place} is no kind of archive that is written; name it .tar.gz")
    if place.exists() or place.is_symlink():
        _check_replaceable(place, archive, force)
    unfinished = place.with_name(place.name + _UNFINISHED)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        _remove(unfinished)
        if archive:
            unfinished.write_bytes(pack(contents, name))
        else:
            for path, content in contents.items():
                file = unfinished / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
            _remove(place)
        unfinished.rename(place)
    except OSError as error:
        _remove(unfinished)
        raise BundleRefusal(
            f"{place} could not be written: {error.strerror or error}; nothing of it was left "
            "behind: see to the disk, or name another place with --out"
        ) from error


def pack(contents: Mapping[str, bytes], name: str) -> bytes:
    """Return a gzipped tar of the folder `name`: entries in order, without times and owners."""
    packed = BytesIO()
    with (
        gzip.GzipFile(
            filename="", mode="wb", fileobj=packed, compresslevel=_LEVEL, mtime=0
        ) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in sorted(contents):
            entry = tarfile.TarInfo(f"{name}/{path}")
            entry.size, entry.mode, entry.mtime = len(contents[path]), 0o644, 0
            archive.addfile(entry, BytesIO(contents[path]))
    return packed.getvalue()


def _check_replaceable(place: Path, archive: bool, force: bool) -> None:
    if not force:
        raise BundleRefusal(f"{place} exists; name another with --out, or replace it with --force")
    if archive and place.is_dir():
        raise BundleRefusal(f"{place} is a folder; name a file with --out")
    if archive:
        return
    if (files := _read_manifest(place)) is None:
        raise BundleRefusal(
            f"{place} is no bundle, and is not replaced; name another folder with --out"
        )
    files.add(MANIFEST)
    paths = (path.relative_to(place).as_posix() for path in place.rglob("*") if not path.is_dir())
    foreign = sorted(path for path in paths if path not in files)
    if foreign:
        raise BundleRefusal(
            f"{place / foreign[0]} is no file of a bundle, and {place} is not replaced; move it "
            "away, or name another folder with --out"
        )


def _read_manifest(place: Path) -> set[str] | None:
    try:
        manifest = json.loads((place / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(manifest, dict) or not {"format", "adapter", "files"} <= manifest.keys():
        return None
    return set(manifest["files"]) if isinstance(manifest["files"], dict) else None


def _remove(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    elif place.exists() or place.is_symlink():
        os.unlink(place)


def as_json(document: Any) -> bytes:
    """Return a JSON file of a bundle: keys are sorted, so equal documents give equal bytes."""
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, indent=1, sort_keys=True)
    return f"{text}\n".encode()
