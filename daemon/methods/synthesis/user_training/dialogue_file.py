"""The file of recorded dialogues in the directory of a job that trains a user's model.

It is made from the log when a job is requested (users/dialogues.py), so a retry reads the same
dialogues. The same dialogues give the same bytes, and a spec names the file's sha256.
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


class DialogueRecord(StrictModel):
    """A rollout that passed and whose user has no fault."""

    rollout: str
    task: str
    policy: str
    """Policy version that played the agent."""
    messages: tuple[Message, ...]
    """The messages without the system prompt."""


def write_dialogues(dialogues: Iterable[DialogueRecord]) -> bytes:
    """Return the content of a file of dialogues: one line each, ordered by rollout."""
    ordered = sorted(dialogues, key=lambda item: item.rollout)
    return "".join(item.model_dump_json(exclude_none=True) + "\n" for item in ordered).encode()


def read_dialogues(folder: Path, spec: JobSpec) -> list[DialogueRecord]:
    """Return the dialogues of a spec, or []. Raise BadJournal if the file is missing or changed."""
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
