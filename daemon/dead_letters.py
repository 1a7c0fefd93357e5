"""Dead letters looked at again: the event itself, and whether the present code can fold it.

Trying again changes nothing: the fold runs in a transaction that is rolled back. An event that was
passed over can only enter the tables where it belongs, in the order of the log, so the remedy is a
rebuild.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError

from consumers.batch import Batch
from consumers.database import is_lasting
from consumers.folds import fold_decision
from consumers.prepared import prepare, why
from consumers.storage import as_stored
from events.errors import AheadOfLog, KintsugiError
from events.log import EventLog, Record
from events.registry import REGISTRY

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from consumers.reads import DeadLetterLine


class NoSuchDeadLetter(KintsugiError):
    """No dead letter is at this place."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What became of folding a dead letter again."""

    letter: "DeadLetterLine"
    foldable: bool
    reason: str | None
    """Why not; None where it can be folded."""


def at(letters: "list[DeadLetterLine]", stream: str, place: str) -> "DeadLetterLine":
    """The dead letter of STREAM P:N."""
    for letter in letters:
        if letter.stream == stream and f"{letter.partition}:{letter.offset}" == place:
            return letter
    raise NoSuchDeadLetter(
        f"no dead letter is at {stream} {place}; kintsugi dlq list names them as STREAM P:N"
    )


def record_of(letter: "DeadLetterLine", log: EventLog) -> Record:
    """The record that could not be folded."""
    for record in log.read(letter.stream, letter.partition, letter.offset, limit=1):
        if record.offset == letter.offset:
            return record
    raise AheadOfLog(
        f"{letter.stream}/{letter.partition} holds nothing at offset {letter.offset}; this is "
        "another log than the one that was folded"
    )


def attempt(letter: "DeadLetterLine", log: EventLog, engine: "Engine") -> Attempt:
    """Fold it again and roll back."""
    record = record_of(letter, log)
    item = prepare(as_stored(record), REGISTRY)
    if item.error is not None:
        return Attempt(letter, False, why(item.error))
    with engine.connect().execution_options(kintsugi_writes=True) as connection:
        transaction = connection.begin()
        try:
            batch = Batch(connection)
            batch.add(item.rows)
            if item.folding is not None:
                fold_decision(item.folding, batch)
                batch.keep()
            batch.flush()
        except SQLAlchemyError as error:
            if not is_lasting(error):
                raise  # the database's trouble, not the event's
            return Attempt(letter, False, why(error))
        except Exception as error:  # as in the runner: whatever a fold raises, it raises again
            return Attempt(letter, False, why(error))
        finally:
            transaction.rollback()
    return Attempt(letter, True, None)
