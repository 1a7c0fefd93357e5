"""Read a rollout back from the log: its messages, and its calls beside the expected ones."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from consumers.diagnosis.labels import label_rollout
from events.bodies import Bodies
from events.canonical import canonical_json, exact_json
from events.codec import decode
from events.errors import BadRecord, KintsugiError
from events.log import EventLog
from events.messages import Action, ExecutedCall, Message, executed_calls
from events.rollouts import RolloutEnded
from events.streams import ROLLOUTS

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from consumers.reads.rollouts import RolloutRow

ERASED: Final = "what was said, or what it went on from, is of a person who was erased"
"""Reason shown for a rollout whose messages were erased before it was made."""

_TURNS: Final = frozenset({"turn", "refused", "transferred"})
"""Keys of the evidence whose numbers are indices of messages (diagnosis/rules.py)."""


class NoSuchRollout(KintsugiError):
    """No rollout has this id, or several begin with it."""


@dataclass(frozen=True, slots=True)
class Transcript:
    """A whole rollout, read from the log."""

    row: "RolloutRow"
    data: RolloutEnded
    keyid: str | None = None
    """Id of the key that seals the rollout, if any; texts about it must then be sealed too."""
    person: str | None = None
    """Person that it belongs to, if any is known."""
    erased: bool = False
    """Whether it is unreadable: its person, or the author of its first messages, was erased."""

    @property
    def sealed(self) -> bool:
        """Return whether the rollout is sealed with a person's key."""
        return self.keyid is not None

    @property
    def messages(self) -> tuple[Message, ...]:
        return self.data.content.messages if self.data.content else ()

    @property
    def gold(self) -> tuple[Action, ...] | None:
        """Return the calls of a perfect agent from the rollout's own task; None if unknown."""
        return self.data.task.gold_actions if self.data.task else None

    @property
    def tool_calls(self) -> list[ExecutedCall]:
        return executed_calls(self.messages)

    @property
    def evidence_turns(self) -> set[int]:
        """Return the indices of the messages that the evidence names."""
        return set(_turns(self.row.evidence))


def find(connection: "Connection", id_or_prefix: str) -> "RolloutRow":
    """Return the row of a rollout by its id or a unique prefix. Raise NoSuchRollout."""
    from consumers.reads.rollouts import find_rollouts_by_prefix, rollout_row

    row = rollout_row(connection, id_or_prefix)
    if row is not None:
        return row
    candidates = find_rollouts_by_prefix(connection, id_or_prefix) if id_or_prefix else []
    if len(candidates) > 1:
        raise NoSuchRollout(
            f"rollout {id_or_prefix!r} is ambiguous, {', '.join(candidates)} begin with it; write "
            "more"
        )
    match = rollout_row(connection, candidates[0]) if candidates else None
    if match is None:
        raise NoSuchRollout(
            f"rollout {id_or_prefix!r} does not exist; kintsugi rollouts ls lists them"
        )
    return match


def read(row: "RolloutRow", log: EventLog, bodies: Bodies) -> Transcript:
    """Read the rollout's event from the log. Evidence that no table holds, because no fold could
    read the rollout, is computed again."""
    place = f"{ROLLOUTS.name}/{row.partition}@{row.offset}"
    records = log.read(ROLLOUTS.name, row.partition, row.offset, limit=1)
    if not records or records[0].offset != row.offset:
        raise BadRecord(f"{place} holds no event, rollout {row.line.rollout} should be there")
    whole = bodies.whole(records[0], arrays=False)
    event = whole.event
    if not isinstance(event.data, RolloutEnded) or event.data.rollout != row.line.rollout:
        raise BadRecord(
            f"{place} holds {event.envelope.type} {event.envelope.id}, rollout {row.line.rollout} "
            "should be there; this is another log than the one that was folded"
        )
    if whole.key is not None or event.blob is not None:
        labels = label_rollout(event.data).evidence
        evidence = None if labels is None else json.loads(exact_json(labels))
        row = replace(row, evidence=evidence)
    erased = whole.is_unreadable or event.data.reason == ERASED
    envelope = event.envelope
    return Transcript(row, event.data, envelope.keyid, envelope.person, erased)


def is_sealed(row: "RolloutRow", log: EventLog) -> bool:
    """Return whether a rollout is sealed, without using a key. Raise LogTruncated, BadRecord."""
    records = log.read(ROLLOUTS.name, row.partition, row.offset, limit=1)
    return bool(records) and decode(records[0], content=False).sealed


def same_call(action: Action, call: ExecutedCall) -> bool:
    """Return whether a call equals the gold action in name and compared arguments."""
    arguments = call.call.arguments
    if action.name != call.call.name or not isinstance(arguments, dict):
        return False
    if action.compare is None:
        return canonical_json(action.arguments) == canonical_json(arguments)
    return all(
        canonical_json(action.arguments.get(name)) == canonical_json(arguments.get(name))
        for name in action.compare
    )


def _turns(evidence: Any) -> Iterator[int]:
    if isinstance(evidence, list):
        for item in evidence:
            yield from _turns(item)
    elif isinstance(evidence, dict):
        for name, value in evidence.items():
            if name in _TURNS:
                for turn in value if isinstance(value, list) else [value]:
                    if isinstance(turn, int) and not isinstance(turn, bool):
                        yield turn
            elif name != "arguments":
                yield from _turns(value)
