"""The outcome of one record of an imported file: a rollout, or a rejection.

Guarantee: a record gets the same event id in any file, order or indentation, and at any time. The
id follows from format, alias, base model and the record's canonical JSON. In stored text U+FFFD
replaces half of a surrogate pair (legal in JSON, not in UTF-8).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from events.canonical import exact_json
from events.envelope import Envelope, derive_id
from events.json_text.guard import has_half_pair
from events.registry import first_problem
from events.rollouts import RolloutEnded
from producers.importers.documents import Damage, RawRecord
from producers.storable import Unusable, check_storable, readable

TEXT_CHARACTERS: Final = 4_000_000
"""Longest text outside of the conversation, such as a task's instruction; a limit of tables."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """A record, or a whole file, that was not imported."""

    file: str
    position: str
    """Position for a person: `[17]`, `simulations[3]`, `line 12`, or `file`."""
    reason: str


@dataclass(frozen=True, slots=True)
class Skip:
    """A file of a folder without rollouts."""

    file: str
    reason: str


@dataclass(frozen=True, slots=True)
class FileWarning:
    """A contradiction in records of one file, named once."""

    file: str
    warning: str
    count: int
    position: str
    """Position of the first record with this finding, or `file`."""


@dataclass(frozen=True, slots=True)
class Notes:
    """Remarks of an import: skipped files and warnings."""

    skips: list[Skip] = field(default_factory=list)
    warnings: list[FileWarning] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RolloutImport:
    """A record as an event that is ready to be encoded."""

    file: str
    position: str
    envelope: Envelope
    data: RolloutEnded
    record: str
    """Canonical JSON of the record, from which the id is made."""
    warnings: tuple[str, ...] = ()
    """Contradictions in the record; equal ones have equal texts."""


@dataclass(frozen=True, slots=True)
class Record:
    """A readable value and its canonical text."""

    position: str
    value: Any
    text: str

    @staticmethod
    def of(position: str, value: Any) -> "Record":
        """Return the record of a value. Raises Unusable if it is nested too deeply."""
        try:
            text = exact_json(value)
        except RecursionError as error:
            raise Unusable("is nested too deeply to be stored; flatten it") from error
        if has_half_pair(text):
            value = readable(value)
            # In JSON text a lone surrogate and its escape are the same character.
            text = text.encode("utf-8", "backslashreplace").decode()
        return Record(position, value, text)


@dataclass(frozen=True, slots=True)
class Source:
    """A file to read, and the caller's settings for it."""

    path: Path
    alias: str = "agent"
    base: str | None = None
    """Base model that the caller named; it overrides the file's."""
    advance: Callable[[int], None] = lambda _: None
    """Callback with the number of bytes read since the last call."""
    notes: Notes = field(default_factory=Notes)
    siblings: frozenset[Path] = frozenset()
    """All files of the same import."""
    may_skip: bool = False
    """Whether the file was found in a folder, where files without rollouts are skipped."""

    def rejection(self, position: str, reason: str) -> Rejection:
        return Rejection(str(self.path), position, reason)

    def leave(self, reason: str) -> Iterator[Rejection]:
        """Note the file as skipped if it was found in a folder; else yield its rejection."""
        if self.may_skip:
            self.notes.skips.append(Skip(str(self.path), reason))
        else:
            yield self.rejection("file", reason)

    def track_progress(self, items: Iterable[RawRecord | Damage]) -> Iterator[RawRecord | Damage]:
        """Yield the records; `advance` is called for each after it was used."""
        done = 0
        for item in items:
            yield item
            self.advance(item.end - done)
            done = item.end

    def attempt(
        self, item: RawRecord | Damage, parse: Callable[[Record], RolloutImport]
    ) -> RolloutImport | Rejection:
        """Return the record's rollout, or a rejection if it is damaged or unusable."""
        if isinstance(item, Damage):
            return self.rejection(item.position, item.reason)
        try:
            return parse(Record.of(item.position, item.value))
        except ValidationError as error:
            return self.rejection(item.position, first_problem(error))
        except Unusable as error:
            return self.rejection(item.position, str(error))

    def identity(self, format_name: str, record: Record, named_base: str | None) -> "Identity":
        """Return the rollout's id, alias and base model."""
        base = self.base or named_base or "unknown"
        return Identity(
            derive_id("import", format_name, self.alias, base, record.text), self.alias, base
        )

    def rollout(
        self,
        record: Record,
        data: RolloutEnded,
        time: datetime | None,
        warnings: tuple[str, ...],
    ) -> RolloutImport:
        """Return the event. Raises Unusable if it could not be read back or folded."""
        longest = max(map(len, _texts(data)), default=0)
        if longest > TEXT_CHARACTERS:
            raise Unusable(
                f"a text beside the conversation has {longest:,} characters; a record holds at "
                f"most {TEXT_CHARACTERS:,}"
            )
        for message in data.content.messages if data.content else ():
            if isinstance(message.content, list):  # arguments were checked when they were parsed
                check_storable(message.content, f"content parts of a {message.role} message")
        for action in (data.task.gold_actions or ()) if data.task else ():
            check_storable(action.arguments, f"arguments of the gold action {action.name}")
        envelope = Envelope(
            id=data.rollout, type=data.TYPE, version=data.VERSION, subject=data.key(), time=time
        )
        return RolloutImport(str(self.path), record.position, envelope, data, record.text, warnings)


@dataclass(frozen=True, slots=True)
class Identity:
    """The id, alias and base model of a rollout."""

    id: str
    alias: str
    base: str


def _texts(data: RolloutEnded) -> Iterator[str]:
    """Yield the texts of a record that become table columns."""
    task = data.task
    of_task = (task.environment, task.capability, task.instruction) if task else ()
    for text in (data.termination, data.grader, data.simulator, *of_task):
        if text is not None:
            yield text


def parse_time(text: str) -> datetime:
    """Parse an ISO 8601 time; one without an offset is UTC. Raises ValueError."""
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def is_success(reward: float | None) -> bool | None:
    """Return whether a reward is 1; None without a reward."""
    return None if reward is None else abs(reward - 1) <= 1e-6


def task_id(environment: str | None, source_id: str) -> str:
    """Return a task id with its environment, so that ids of two environments differ."""
    return f"{environment}/{source_id}" if environment else source_id
