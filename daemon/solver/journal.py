"""Store the rollouts of a job on disk, each batch before the update that uses it.

    {"format": 1, "spec": sha256}     first line; `lost` names sealed tasks whose keys are gone
    [trajectory, ...]                 then one line per batch, in order

A job that was killed reads its journal, repeats the updates and continues. Turns on a person's task
are sealed (sampling/seals.py). If a key of an earlier attempt is gone, the journal begins anew.
Guarantees: `append` returns when the batch is on disk; a batch that was only partly written when
the process died is ignored; a batch that the disk refused is removed. Not covered: two processes
with one journal.

Before a job begins, two files are put beside the journal, so that a retry uses the same tasks and
examples. `definitions.jsonl` has the bodies of the spec's tasks by content (envs/task.py); bodies
with a person's words are ciphertext. `successes.json` has the recorded successes of a warm start
(daemon/jobs/own_successes.py); the spec names its sha256.
"""

import json
import os
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from daemon.solver.sampling.seals import NO_SEALS, Seals
from daemon.solver.trajectory import Trajectory
from events.envelope import derive_id
from events.errors import KintsugiError
from events.files import replace_file
from events.jobs import JobSpec, Sha256
from events.messages import StrictModel
from events.registry import first_problem

SUCCESSES: Final = "successes.json"
DEFINITIONS: Final = "definitions.jsonl"

# The learner refuses -inf, so the journal must be able to hold it.
_BATCH: TypeAdapter[Any] = TypeAdapter(
    tuple[Trajectory, ...], config=ConfigDict(ser_json_inf_nan="constants")
)


class BadJournal(KintsugiError):
    """The file is no journal of this job, or is damaged."""


class JournalWriteError(KintsugiError):
    """The disk refused a batch; the journal is as it was before."""


class _Head(StrictModel):
    format: Literal[1] = 1
    spec: Sha256
    lost: Annotated[tuple[str, ...], Field(exclude_if=lambda value: not value)] = ()


class _Definition(StrictModel):
    task: str
    body: str


class Journal:
    """The batches of one job, in order."""

    def __init__(self, path: Path, spec: str, seals: Seals = NO_SEALS) -> None:
        """Open the journal of the spec with sha256 `spec`, or begin one. Begin anew if the key of a
        sealed task has been lost since. Raise BadJournal, BadSeal, JournalWriteError, OSError."""
        self.path = path
        self._seals = seals
        stored, end = read(path, spec)
        if end and _read_head(path).lost != seals.lost:
            stored, end = [], 0
        self.batches = [seals.open(batch) for batch in stored]
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")
        self._file.truncate(end)
        self._end = end
        if not end:
            self._write(_Head(spec=spec, lost=seals.lost).model_dump_json().encode())

    def append(self, batch: tuple[Trajectory, ...]) -> None:
        """Write a batch to disk before returning. Raise JournalWriteError."""
        self._write(_BATCH.dump_json(self._seals.close(batch)))
        self.batches.append(batch)

    def close(self) -> None:
        """Close the file; every batch is already on disk."""
        self._file.close()

    def _write(self, line: bytes) -> None:
        try:
            self._file.write(line + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            self._take_back()
            raise JournalWriteError(
                f"{self.path} did not take {len(line):,} bytes: {error.strerror}; see to the disk, "
                "then run the same command to go on"
            ) from error
        self._end += len(line) + 1

    def _take_back(self) -> None:
        """Cut the file back to its whole batches; drop buffered bytes with the file object."""
        os.truncate(self.path, self._end)
        self._file.detach().close()
        self._file = self.path.open("ab")


def read(path: Path, spec: str) -> tuple[list[tuple[Trajectory, ...]], int]:
    """Return the whole batches in this spec's journal, still sealed, and the byte offset of their
    end. Return no batches and 0 without a file. Raise BadJournal."""
    content = path.read_bytes() if path.exists() else b""
    end = content.rfind(b"\n") + 1
    lines = content[:end].splitlines()
    if lines:
        _check_head(path, lines[0], spec)
    return [_batch(path, number, line) for number, line in enumerate(lines[1:])], end


def rename(path: Path, spec: str, other: str) -> None:
    """Make a spec's journal that of `other`, a spec of the same job with new endpoints. A second
    call changes nothing, nor does a call without a file. Raise BadJournal, OSError."""
    head, end, rest = path.read_bytes().partition(b"\n") if path.exists() else (b"", b"", b"")
    if not end:
        return
    known = _parse_head(path, head)
    if known.spec == other:
        return
    _check_head(path, head, spec)
    renamed = known.model_copy(update={"spec": other})
    replace_file(path, renamed.model_dump_json().encode() + end + rest, is_durable=True)


def _check_head(path: Path, line: bytes, spec: str) -> None:
    head = _parse_head(path, line)
    if head.spec != spec:
        raise BadJournal(
            f"{path} holds the rollouts of another spec ({head.spec[:12]}, not "
            f"{spec[:12]}); choose another directory, or remove it to begin again"
        )


def _parse_head(path: Path, line: bytes) -> _Head:
    try:
        return _Head.model_validate_json(line)
    except ValidationError as error:
        raise BadJournal(f"{path} is no journal: {first_problem(error)}") from None


def _read_head(path: Path) -> _Head:
    with path.open("rb") as file:
        return _Head.model_validate_json(file.readline())


def _batch(path: Path, number: int, line: bytes) -> tuple[Trajectory, ...]:
    try:
        batch: tuple[Trajectory, ...] = _BATCH.validate_json(line)
    except ValidationError as error:
        raise BadJournal(
            f"{path}, batch {number}: {first_problem(error)}; the file was damaged: "
            "remove it to begin again"
        ) from None
    return batch


def rollout_id(job: str, rollout: str) -> str:
    """Return the log's id of the rollout that `job` names by batch, group and member."""
    return derive_id(job, "rollout", rollout)


def write_successes(trajectories: Sequence[Trajectory]) -> bytes:
    """Return the bytes of `successes.json`: equal trajectories give equal bytes."""
    return _BATCH.dump_json(tuple(trajectories))


def read_successes(folder: Path, spec: JobSpec) -> dict[str, Trajectory]:
    """Return rollout -> trajectory of a spec's successes. Raise BadJournal for a wrong file."""
    wanted = None if spec.warm_start is None else spec.warm_start.successes
    if wanted is None:
        return {}
    path = folder / SUCCESSES
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise BadJournal(
            f"{path} is missing, and the spec shows successes; request the job anew"
        ) from None
    if (actual := sha256(content).hexdigest()) != wanted:
        raise BadJournal(
            f"{path} has sha256 {actual[:12]}, and the spec names {wanted[:12]}: it was changed; "
            "request the job anew"
        )
    shown = {item.rollout: item for item in _BATCH.validate_json(content)}
    missing = [name for pool in spec.pools for name in pool.successes if name not in shown]
    if missing:
        raise BadJournal(f"{path} lacks rollout {missing[0]}, which the spec shows")
    return shown


def write_definitions(bodies: Mapping[str, str]) -> bytes:
    """Return the bytes of `definitions.jsonl` for task id -> body, equal for equal bodies."""
    lines = (json.dumps({"task": task, "body": bodies[task]}) + "\n" for task in sorted(bodies))
    return "".join(lines).encode()


def read_definitions(folder: Path) -> dict[str, str]:
    """Return task id -> body from the folder's `definitions.jsonl`, or {} without that file. Bodies
    are not checked; lines that are no definitions are skipped. Raise OSError."""
    path = folder / DEFINITIONS
    return parse_definitions(path.read_bytes()) if path.exists() else {}


def parse_definitions(content: bytes) -> dict[str, str]:
    """Return task id -> body from the bytes of `definitions.jsonl`, like `read_definitions`."""
    bodies: dict[str, str] = {}
    for line in content.splitlines():
        try:
            definition = _Definition.model_validate_json(line)
        except ValidationError:
            continue
        bodies[definition.task] = definition.body
    return bodies
