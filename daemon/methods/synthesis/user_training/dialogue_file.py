"""Recorded dialogues that a user's model learns from, as a file in the job's directory.

    content = write_dialogues(dialogues)       the same bytes for the same dialogues
    dialogues = read_dialogues(folder, spec)   those that a spec names by the file's sha256

Who requests a job makes the file from the log (users/dialogues.py), so a retry shows the
same.
"""

from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from daemon.solver.journal import BadJournal
from events.jobs import JobSpec
from events.messages import Message, StrictModel
from events.registry import first_problem

DIALOGUES: Final = "dialogues.jsonl"
"""The file of dialogues, in the job's directory."""


class DialogueRecord(StrictModel):
    """A rollout that passed, and whose user has no fault."""

    rollout: str
    task: str
    policy: str
    """Policy version that played the agent."""
    messages: tuple[Message, ...]
    """Without system prompt."""


def write_dialogues(dialogues: Iterable[DialogueRecord]) -> bytes:
    """Return the content of a file of dialogues: a line each, ordered by rollout."""
    ordered = sorted(dialogues, key=lambda item: item.rollout)
    return "".join(item.model_dump_json(exclude_none=True) + "\n" for item in ordered).encode()


def read_dialogues(folder: Path, spec: JobSpec) -> list[DialogueRecord]:
    """Return the dialogues that a spec names; none where it names none. Raises BadJournal for a
    file that is missing, or other than the spec says."""
    if spec.dialogues is None:
        return []
    path = folder / DIALOGUES
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise BadJournal(
            f"{path} is missing, and the spec shows recorded dialogues; request the job anew"
        ) from None
    if (actual := sha256(content).hexdigest()) != spec.dialogues:
        raise BadJournal(
            f"{path} has sha256 {actual[:12]}, and the spec names {spec.dialogues[:12]}: it was "
            "changed; request the job anew"
        )
    try:
        return [DialogueRecord.model_validate_json(line) for line in content.splitlines()]
    except ValidationError as error:
        raise BadJournal(f"{path}: {first_problem(error)}; request the job anew") from None
