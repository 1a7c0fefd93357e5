"""The file of recorded dialogues for a user's model, in the job's directory.

It is made from the log when a job is requested (users/dialogues.py), so a retry shows the same. The
same dialogues have the same bytes, and a spec names the file's sha256.
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
    """Without system prompt."""


def write_dialogues(dialogues: Iterable[DialogueRecord]) -> bytes:
    """Return the content of a file of dialogues: a line each, ordered by rollout."""
    ordered = sorted(dialogues, key=lambda item: item.rollout)
    return "".join(item.model_dump_json(exclude_none=True) + "\n" for item in ordered).encode()


def read_dialogues(folder: Path, spec: JobSpec) -> list[DialogueRecord]:
    """Return the dialogues of a spec, if any. Raise BadJournal for a missing or changed file."""
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
