"""Copies an adapter's files into the home, where they are checked and never change again.

Engines know names and paths alone, so neither may ever mean other files: a name ends with the first
eight digits of a hash over configuration and weights. `fingerprint.json` (the adapter's answers to
probes) comes from its provenance, or from another process here, because it needs torch.

Guarantees: an adopted adapter fits the base (compatibility.py) and is whole or absent. A source
that changes meanwhile is refused. An existing copy is used again if it is the same, byte for byte.
"""

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from daemon.adapters.compatibility import fit
from daemon.adapters.directory import (
    CARD,
    CONFIG,
    PROVENANCE,
    WEIGHTS,
    BadAdapter,
    Provenance,
    has_provenance,
    read_file,
    verify,
    write_directory,
)
from daemon.adapters.fingerprint import Expectation
from events.errors import KintsugiError
from events.registry import first_problem

FINGERPRINT: Final = "fingerprint.json"

_DIGITS: Final = 8
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_TAKEN: Final = (CONFIG, WEIGHTS, PROVENANCE, CARD)
"""Files that are copied; other files in the trainer's directory are left out."""
_COMPUTE_SECONDS: Final = 1800


class NoFingerprint(KintsugiError):
    """The adapter's answers to the probes are unknown and cannot be computed here."""


class BadName(KintsugiError):
    """The name is not allowed for an adapter."""


@dataclass(frozen=True, slots=True)
class HomeAdapter:
    """An adapter whose files are in the home."""

    name: str
    folder: Path
    sha256: str
    """SHA-256 of the adapter's weights."""


def adopt(
    source: Path,
    store: Path,
    checkpoint: Path | None,
    *,
    kind: str = "adapter",
    name: str | None = None,
    max_rank: int | None = None,
) -> HomeAdapter:
    """Copy an adapter into `store`; without `name`, its name begins with `kind`. Raises BadAdapter,
    BadBase, BadName, NoFingerprint, AdapterWriteError."""
    source = source.absolute()
    fit(source, checkpoint, max_rank)
    contents = _contents(source)
    digits = _digest(contents)[:_DIGITS]
    called = _check_name(name or _build_name(kind, contents, digits))
    folder = store / (called if called.endswith(digits) else f"{called}-{digits}")
    if not _is_there(folder, contents):
        expected = _fingerprint(source, checkpoint)
        if _contents(source) != contents:
            raise BadAdapter(f"{source} changed while it was read; wait until it is written")
        document = expected.model_dump_json().encode()
        write_directory(folder, {**contents, FINGERPRINT: document})
    return HomeAdapter(called, folder, hashlib.sha256(contents[WEIGHTS]).hexdigest())


def read_expectation(folder: Path) -> Expectation:
    """Return an adapter's expected answers to probes. Raises NoFingerprint, BadAdapter."""
    path = folder / FINGERPRINT
    try:
        if os.path.lexists(path):
            return Expectation.model_validate_json(read_file(path))
    except ValidationError as error:
        raise BadAdapter(f"{path}: {first_problem(error)}") from None
    expected = verify(folder).fingerprint
    if expected is None:
        raise NoFingerprint(f"{folder} says nothing of what it answers; push it once more")
    return expected


def intact(folder: Path, sha256: str, checkpoint: Path | None, max_rank: int | None) -> None:
    """Check that an adapter's files are still those that were adopted. Raises BadAdapter,
    BadBase."""
    fit(folder, checkpoint, max_rank)
    digest = hashlib.sha256(read_file(folder / WEIGHTS)).hexdigest()
    if digest != sha256:
        raise BadAdapter(
            f"{folder / WEIGHTS} is not what was produced: its sha256 is {digest}, not {sha256}; "
            "restore it, or push the adapter under another name"
        )


def _contents(folder: Path) -> dict[str, bytes]:
    names = [name for name in _TAKEN if os.path.lexists(folder / name)]
    return {name: read_file(folder / name) for name in names}


def _digest(contents: Mapping[str, bytes]) -> str:
    whole = hashlib.sha256()
    for name in (CONFIG, WEIGHTS):
        whole.update(hashlib.sha256(contents[name]).digest())
    return whole.hexdigest()


def _build_name(kind: str, contents: Mapping[str, bytes], digits: str) -> str:
    steps = _provenance(contents)
    middle = "" if steps is None else f"-{steps.steps}"
    return f"{re.sub('[^A-Za-z0-9._-]+', '-', kind)[:64]}{middle}-{digits}"


def _provenance(contents: Mapping[str, bytes]) -> Provenance | None:
    document = contents.get(PROVENANCE)
    return None if document is None else Provenance.model_validate_json(document)


def _check_name(name: str) -> str:
    if _NAME.fullmatch(name) is None:
        raise BadName(
            f"{name[:120]!r} is no name of an adapter: up to 100 letters, digits, dots, dashes and "
            "underscores, a letter or digit first"
        )
    return name


def _is_there(folder: Path, contents: Mapping[str, bytes]) -> bool:
    if not folder.exists():
        return False
    if _contents(folder) != contents or not (folder / FINGERPRINT).exists():
        raise BadAdapter(
            f"{folder} holds something else than it should; remove it if nothing serves from it "
            "(kintsugi adapters ls), then push again"
        )
    return True


def _fingerprint(source: Path, checkpoint: Path | None) -> Expectation:
    if has_provenance(source):
        expectation = verify(source).fingerprint
        if expectation is not None:
            return expectation
    if checkpoint is None:
        raise NoFingerprint(
            f"{source} says nothing of what it answers, and the folder of its base is not known "
            "here: name it with --checkpoint or upstreams[].checkpoint, and it is computed"
        )
    if find_spec("torch") is None:
        raise NoFingerprint(
            f"{source} says nothing of what it answers, and computing it needs torch: install "
            "kintsugi[train] here, or push a directory whose provenance.json has a fingerprint"
        )
    return _compute_fingerprint(source, checkpoint)


def _compute_fingerprint(source: Path, checkpoint: Path) -> Expectation:
    command = [sys.executable, "-m", "daemon.engine.fingerprint", str(checkpoint), str(source)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_COMPUTE_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise NoFingerprint(
            f"what {source} answers was not computed within {_COMPUTE_SECONDS:,} s; push a "
            "directory whose provenance.json has a fingerprint, computed where there is a GPU"
        ) from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise NoFingerprint(
            f"what {source} answers could not be computed: "
            f"{lines[-1] if lines else f'exit code {done.returncode}'}"
        )
    return Expectation.model_validate_json(done.stdout)
