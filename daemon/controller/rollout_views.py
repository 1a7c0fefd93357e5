"""A rollout in the form that the analyzer model sees: request, expected calls, verdict and
conversation. A rollout with personal data is never shown: the model's words about it would stand
unencrypted in the log. A view has none of the environment's labels."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from consumers.reads.evidence import RoundRollout
from daemon.controller.sampling import CHARACTERS, Excerpt, shorten
from daemon.sessions import transcript
from events.canonical import exact_json
from events.errors import LogTruncated
from events.messages import Action, Message

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from daemon.core.app import App


@dataclass(frozen=True, slots=True)
class RolloutView:
    """A rollout in the form that the analyzer model sees."""

    seen: RoundRollout
    task: str | None
    """Instruction of the task; None if the rollout has no task."""
    gold: tuple[Action, ...] | None
    conversation: Excerpt
    parts: dict[str, float | None]
    """Name of a part of the reward -> its value."""
    evidence: Any
    """Evidence that the deterministic detectors found."""

    def item(self, name: str) -> str:
        """Return the rollout as JSON with the short id `name`."""
        found = {
            "detected": self.seen.pattern,
            "evidence": self.evidence,
            "reward": self.seen.reward,
            "reward_parts": self.parts,
        }
        return exact_json({**self._describe(name), **found})

    def plain_item(self, name: str) -> str:
        """Return the rollout as JSON without the detectors' findings, for models that label it."""
        return exact_json(self._describe(name))

    def _describe(self, name: str) -> dict[str, Any]:
        gold = (
            None if self.gold is None else [[action.name, action.arguments] for action in self.gold]
        )
        return {
            "id": name,
            "passed": self.seen.category is None,
            "task": self.task,
            "expected_calls": gold,
            "messages": [format_message(message) for message in self.conversation.messages],
            "messages_left_out": self.conversation.left_out,
        }


def build_view(
    app: "App", connection: "Connection", seen: RoundRollout, characters: int = CHARACTERS
) -> RolloutView | None:
    """Return a rollout's view with at most `characters` of its conversation, more only if its
    calls' arguments need them. Return None if its event was trimmed or holds personal data."""
    row = transcript.find(connection, seen.rollout)
    try:
        # Checked before the rollout is read: its key may be on another machine.
        if transcript.is_sealed(row, app.log):
            return None
        record = transcript.read(row, app.log, app.bodies)
    except LogTruncated:
        return None
    task = record.data.task
    return RolloutView(
        seen=seen,
        task=task.instruction if task else None,
        gold=record.gold,
        conversation=shorten(record.messages, characters=characters),
        parts=record.data.reward_parts,
        evidence=record.row.evidence,
    )


def format_message(message: Message) -> dict[str, Any]:
    """Return a message as a dictionary with its role, its text and any calls."""
    calls = [[call.name, call.arguments] for call in message.tool_calls]
    document: dict[str, Any] = {"role": message.role, "text": message.text}
    return {**document, "calls": calls} if calls else document
