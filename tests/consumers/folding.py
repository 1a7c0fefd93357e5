"""What the tests of the folds share: building events, folding a log, reading its hash."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import Engine

from consumers import database
from consumers.digest import digest
from consumers.position import position
from consumers.runner import Runner
from events.codec import encode
from events.envelope import Envelope, derive_id
from events.learning import PatternsDiagnosed
from events.log import Cursor, Entry, EventLog, Place, Record
from events.memory import MemoryLog
from events.messages import Message
from events.position import Position
from events.rollouts import EventData, RolloutContent, RolloutEnded, Task
from events.streams import ROLLOUTS
from migrations.upgrade import upgrade


def entry(data: EventData, name: str, at: datetime | None = None) -> Entry:
    """An event with an id made from `name`."""
    envelope = Envelope(
        id=derive_id("test", name),
        type=data.TYPE,
        version=data.VERSION,
        subject=data.key(),
        time=at,
    )
    return encode(envelope, data, recorded_ms=1).entry


def rollout(name: str, **fields: object) -> RolloutEnded:
    """A judged failure of a generated task unless `fields` say otherwise."""
    given: dict[str, object] = {
        "rollout": name,
        "alias": "agent",
        "base": "base",
        "policy": fields.get("base", "base"),
        "source": "test",
        "task": Task(id="shop/cancel/1"),
        "success": False,
        "reward": 0.0,
        "content": RolloutContent(messages=(Message(role="user", content=name),)),
    }
    return RolloutEnded.model_validate({**given, **fields})


def ended(name: str, at: datetime | None = None, **fields: object) -> Entry:
    """The event of `rollout`."""
    return entry(rollout(name, **fields), name, at)


def at(second: int) -> datetime:
    """A moment."""
    return datetime.fromtimestamp(1_700_000_000 + second, UTC)


def fold(log: EventLog, engine: Engine, until: Cursor | None = None) -> Runner:
    """Fold all of `log`."""
    runner = Runner(log, engine, patience_seconds=5)
    runner.catch_up(until)
    return runner


def folded_position(engine: Engine) -> Position:
    """The rollouts folded so far."""
    with database.read_transaction(engine) as connection:
        return {ROLLOUTS.name: position(connection).get(ROLLOUTS.name, {})}


def diagnosed(position: Position, name: str = "round") -> Entry:
    """A round that closes at `position`."""
    return entry(PatternsDiagnosed(trigger="diagnose", position=position), name, at(0))


def close_round(log: EventLog, engine: Engine, name: str = "round") -> None:
    """Fold, close a round over everything, fold again."""
    fold(log, engine)
    log.append([diagnosed(folded_position(engine), name)])
    fold(log, engine)


def hash_of(engine: Engine) -> str:
    """The hash of everything that was folded."""
    with database.read_transaction(engine) as connection:
        return digest(connection)


def fresh(folder: Path, name: str) -> Engine:
    """Another empty SQLite database."""
    engine = database.open_database(f"sqlite:///{folder / name}.db")
    upgrade(engine)
    return engine


def log_of(entries: Sequence[Entry]) -> MemoryLog:
    """A memory log that holds `entries`."""
    log = MemoryLog()
    log.append(entries)
    return log


class Broker(MemoryLog):
    """A log of copies, as a broker holds them: offsets of its own, the sources' sequences kept."""

    def deliver(self, records: Sequence[Record]) -> None:
        """Append copies of `records`, repeated or out of order as they come."""
        for record in records:
            place: Place = super().append(
                [
                    Entry(
                        record.stream,
                        record.partition,
                        record.key,
                        record.headers,
                        record.value,
                        record.recorded_ms,
                    )
                ]
            )[0]
            copies = self._records[record.stream, record.partition]
            copies[-1] = replace(record, offset=place.offset)
