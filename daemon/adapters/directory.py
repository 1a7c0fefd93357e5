"""An adapter's directory: its layout, its writing and its check.

    DIR/adapter_config.json        PEFT's; vLLM and transformers read it
    DIR/adapter_model.safetensors  the weights
    DIR/provenance.json            base, parent, seed, spec, rollouts, hashes, answers to probes
    DIR/README.md                  the model card

Guarantees: the directory appears by a rename after every file was flushed to disk, so a kill or a
full disk leaves none, or a `tmp-` directory that the next write removes. `verify` accepts no
changed file. A reader follows no link, waits for no pipe and takes no file beyond its limit. Needs
no torch. Not covered: whether it fits a base (compatibility.py, daemon/engine/lora.py).
"""

import errno
import hashlib
import json
import os
import shutil
import stat
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

from pydantic import Field, ValidationError, field_validator
from safetensors import SafetensorError, deserialize

from daemon.adapters.fingerprint import Expectation
from events.errors import KintsugiError
from events.files import UNFINISHED, sync_folder
from events.jobs import LoraSettings
from events.messages import StrictModel
from events.registry import first_problem

WEIGHTS: Final = "adapter_model.safetensors"
CONFIG: Final = "adapter_config.json"
PROVENANCE: Final = "provenance.json"
CARD: Final = "README.md"


_MOST_BYTES: Final[Mapping[str, int]] = {CONFIG: 1 << 20, WEIGHTS: 16 << 30}
"""Maximum size of a file; 16 GiB are rank 512 on every layer of a model of 70 billion weights."""
_MOST_OTHER_BYTES: Final = 64 << 20
_MOST_FILES: Final = 100
"""Maximum number of hashed files; the learner writes three beside the provenance."""
_MOST_LEVELS: Final = 16
"""Maximum nesting of a configuration; PEFT writes three levels."""


class BadAdapter(KintsugiError):
    """An adapter that cannot be attached, or a directory without one."""


class WrongBase(BadAdapter):
    """An adapter for other base weights."""


class AdapterWriteError(KintsugiError):
    """The disk refused; nothing was left behind."""


class Base(StrictModel):
    """The model under an adapter."""

    name: str
    sha256: str
    """SHA-256 of its weights (`weights_sha256`), however they are split into files."""


class Provenance(StrictModel):
    """The origin of an adapter."""

    format: int = 1
    base: Base
    parent: str | None = None
    """sha256 of the weights of the adapter that training began with."""
    lora: LoraSettings
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)]
    steps: Annotated[int, Field(ge=0, lt=2**63)]
    rollouts: tuple[str, ...]
    """Every rollout that an update used."""
    spec: dict[str, Any]
    versions: dict[str, str] = {}
    """Library -> its version in the job."""
    files: dict[str, str] = {}
    """Name -> sha256 of the other files of the directory."""
    fingerprint: Expectation | None = None
    """Answers to probes; None where an earlier version wrote it."""

    @field_validator("files")
    @classmethod
    def _check_file_names(cls, files: dict[str, str]) -> dict[str, str]:
        if len(files) > _MOST_FILES:
            raise ValueError(f"{len(files):,} files are named; at most {_MOST_FILES} are read")
        for name in files:
            if not name or name in (".", "..") or "/" in name or "\\" in name or "\0" in name:
                raise ValueError(f"{name!r} is no name of a file in the directory")
        return files


def card(provenance: Provenance) -> str:
    """Return the model card."""
    lora, base = provenance.lora, provenance.base
    parent = f"the adapter {provenance.parent}" if provenance.parent else "a fresh adapter"
    return f"""---
base_model: {base.name}
library_name: peft
tags: [lora, kintsugi]
---

# A LoRA adapter of {base.name}

Trained by kintsugi's learner from {parent}: {provenance.steps:,} optimizer steps on
{len(provenance.rollouts):,} rollouts, seed {provenance.seed}.

| | |
|---|---|
| base weights (sha256) | `{base.sha256}` |
| weights (sha256) | `{provenance.files[WEIGHTS]}` |
| rank, alpha | {lora.rank}, {lora.alpha:g} |
| layers | {", ".join(lora.targets)} |

It belongs to these base weights and to no others. Where it came from, rollout by rollout, is in
`{PROVENANCE}`. That it is better than its base is shown by a gate and not by this card.
"""


def format_json(document: Mapping[str, Any]) -> bytes:
    """Return the bytes of a JSON file of an adapter. Equal documents give equal bytes."""
    return (json.dumps(document, indent=2, sort_keys=True) + "\n").encode()


def write_directory(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write files into a new directory that is whole or absent. Raises AdapterWriteError."""
    unfinished = folder.with_name(UNFINISHED + folder.name)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        for name, content in contents.items():
            _write(unfinished / name, content)
        sync_folder(unfinished)
        unfinished.rename(folder)
        sync_folder(folder.parent)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise AdapterWriteError(
            f"{folder} could not be written: {error.strerror or error}; nothing of it was left "
            "behind: see to the disk, then run the same command again"
        ) from error


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def has_provenance(folder: Path) -> bool:
    """Return whether a directory has a provenance."""
    return os.path.lexists(folder / PROVENANCE)


def verify(folder: Path, weights_limit: int | None = None) -> Provenance:
    """Check an adapter's files by its provenance, and the weights' size. Raises BadAdapter."""
    provenance = _provenance(folder)
    for name, expected in provenance.files.items():
        limit = weights_limit if name == WEIGHTS else None
        digest = hashlib.sha256(read_file(folder / name, limit)).hexdigest()
        if digest != expected:
            raise BadAdapter(f"{folder / name} is not what was saved: its sha256 is {digest}")
    _check_config(folder)
    _check_weights(folder, weights_limit)
    return provenance


def _provenance(folder: Path) -> Provenance:
    try:
        provenance = Provenance.model_validate_json(read_file(folder / PROVENANCE))
    except ValidationError as error:
        raise BadAdapter(f"{folder / PROVENANCE}: {first_problem(error)}") from None
    if missing := {WEIGHTS, CONFIG} - provenance.files.keys():
        raise BadAdapter(f"{folder / PROVENANCE} names no hash of {', '.join(sorted(missing))}")
    return provenance


def read_file(path: Path, limit: int | None = None) -> bytes:
    """Return a file's content. Raises BadAdapter for a missing file, a link, a pipe, a device, and
    a file above `limit` bytes (default: the limit for its name)."""
    most = limit or _MOST_BYTES.get(path.name, _MOST_OTHER_BYTES)
    try:
        # Without O_NONBLOCK, a pipe would block.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise BadAdapter(f"{path} is no file; put a regular file there")
            if found.st_size > most:
                raise BadAdapter(
                    f"{path} has {found.st_size:,} bytes; a file of this name has at most {most:,}"
                )
            return file.read(found.st_size)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise BadAdapter(f"{path} is a link; copy what it leads to (cp -L)") from error
        raise BadAdapter(f"{path} cannot be read: {error.strerror}") from error


def read_config(folder: Path) -> dict[str, Any]:
    """Return an adapter's configuration as written. Raises BadAdapter."""
    path = folder / CONFIG
    try:
        text = read_file(path).decode()
        config = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_build_object)
        # JSON can hold half a surrogate pair, which UTF-8 cannot encode.
        json.dumps(config, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise BadAdapter(f"{path} is no JSON that can be used: {error}") from error
    if not isinstance(config, dict):
        raise BadAdapter(f"{path} holds {text[:40]!r}; it must be a JSON object")
    _check_depth(path, config)
    return config


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


def _build_object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(members)
    if len(document) < len(members):
        (twice, _), *_ = Counter(name for name, _ in members).most_common(1)
        raise ValueError(f"the name {twice[:80]!r} is written twice; keep one of the two")
    return document


def _check_depth(path: Path, config: dict[str, Any]) -> None:
    level: list[Any] = [config]
    for _ in range(_MOST_LEVELS):
        below = (item.values() if isinstance(item, dict) else item for item in level)
        level = [part for parts in below for part in parts if isinstance(part, dict | list)]
    if level:
        raise BadAdapter(f"{path} is nested deeper than {_MOST_LEVELS} levels")


def _check_config(folder: Path) -> None:
    config = read_config(folder)
    if config.get("modules_to_save"):
        raise BadAdapter(f"{folder} replaces whole modules: {config['modules_to_save']}")
    if config.get("lora_dropout"):
        raise BadAdapter(f"{folder} drops out {config['lora_dropout']}; it must be 0")


def _check_weights(folder: Path, limit: int | None) -> None:
    for name, tensor in parse_weights(folder, read_file(folder / WEIGHTS, limit)).items():
        if "lora_" not in name:
            raise BadAdapter(f"{folder / WEIGHTS} holds {name}, which is no LoRA weight")
        if not tensor.finite:
            raise BadAdapter(f"{folder / WEIGHTS}: {name} is not finite (in half precision)")


@dataclass(frozen=True, slots=True)
class TensorData:
    """A tensor of a safetensors file."""

    dtype: str
    """Type as safetensors names it: F32, BF16, F16, ..."""
    shape: tuple[int, ...]
    data: bytes

    @property
    def finite(self) -> bool:
        """Whether every number is finite in half precision (< 65,536); False for other dtypes."""
        if self.dtype not in _BEYOND:
            return False
        width, last, before = _BEYOND[self.dtype]
        # Without their sign, numbers are ordered as their bits, before infinity and NaN (IEEE 754).
        # A large adapter has a hundred million numbers, so one fast pass checks their top bytes.
        tops = self.data[width - 1 :: width]
        if not tops.translate(None, bytes(byte for byte in range(256) if byte & _SIZE < last)):
            return True
        return not any(
            (top & _SIZE, below) >= (last, before)
            for top, below in zip(tops, self.data[width - 2 :: width], strict=True)
        )


_SIZE: Final = 0x7F
"""Mask of all bits of a byte except the sign bit."""
_BEYOND: Final = {
    "F64": (8, 0x40, 0xF0),
    "F32": (4, 0x47, 0x80),
    "F16": (2, 0x7C, 0x00),
    "BF16": (2, 0x47, 0x80),
}
"""dtype -> size of a number in bytes (little-endian), and the two highest bytes of 65,536."""


def parse_weights(folder: Path, content: bytes) -> dict[str, TensorData]:
    """Return tensor name -> tensor from a file of weights. Raises BadAdapter for other formats."""
    try:
        tensors = deserialize(content)  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        raise BadAdapter(f"{folder / WEIGHTS} is no safetensors file: {error}") from error
    return {
        name: TensorData(tensor["dtype"], tuple(tensor["shape"]), bytes(tensor["data"]))
        for name, tensor in tensors
    }
