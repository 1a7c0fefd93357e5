"""Inspect dead letters and test whether the present code can process them.

An event that could not be folded is folded on trial, in a transaction that is rolled back: only a
rebuild can add its rows in log order. A session that could not become a rollout (`ClosingFailed`)
is tried again, and its rollout is appended if that succeeds.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError

from consumers.batch import Batch
from consumers.database import is_permanent
from consumers.folds.rollouts import fold_decision
from consumers.preparation import prepare, why
from consumers.storage import sanitize_record
from events.codec import decode
from events.errors import AheadOfLog, KintsugiError
from events.log import EventLog, Record
from events.registry import REGISTRY
from events.rollouts import ClosingFailed

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from consumers.reads.rollouts import DeadLetterLine
    from daemon.core.app import App


class NoSuchDeadLetter(KintsugiError):
    """No dead letter is at this place."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """Result of trying a dead letter again."""

    letter: "DeadLetterLine"
    foldable: bool
    reason: str | None
    """Reason it cannot be folded; None if it can."""
    recorded: bool = False
    """Whether the dead letter is a session that is now recorded as a rollout."""


def at(letters: "list[DeadLetterLine]", stream: str, place: str) -> "DeadLetterLine":
    """Return the dead letter at `place` (PARTITION:OFFSET) of a stream. Raise NoSuchDeadLetter."""
    for letter in letters:
        if letter.stream == stream and f"{letter.partition}:{letter.offset}" == place:
            return letter
    raise NoSuchDeadLetter(
        f"no dead letter is at {stream} {place}; kintsugi dlq list names them as STREAM P:N"
    )


def record_of(letter: "DeadLetterLine", log: EventLog) -> Record:
    """Return the record that could not be folded."""
    for record in log.read(letter.stream, letter.partition, letter.offset, limit=1):
        if record.offset == letter.offset:
            return record
    raise AheadOfLog(
        f"{letter.stream}/{letter.partition} holds nothing at offset {letter.offset}; this is "
        "another log than the one that was folded"
    )


def attempt(letter: "DeadLetterLine", app: "App") -> Attempt:
    """Process a dead letter again. Raise LogError, DatabaseError."""
    if letter.type == ClosingFailed.TYPE:
        return _close_again(letter, app)
    return _fold_again(letter, app.readable_log, app.engine)


def _close_again(letter: "DeadLetterLine", app: "App") -> Attempt:
    from daemon.sessions.closing import STOPS, WAITS, retry

    data = decode(record_of(letter, app.readable_log)).data
    assert isinstance(data, ClosingFailed), "the letter says so"
    try:
        retry(app, data)
    except WAITS as error:
        return Attempt(letter, False, str(error) or type(error).__name__)
    except STOPS:
        raise
    except Exception as error:  # as in the first attempt: any other error is this session's own
        return Attempt(letter, False, f"{type(error).__name__}: {error}")
    return Attempt(letter, True, None, recorded=True)


def _fold_again(letter: "DeadLetterLine", log: EventLog, engine: "Engine") -> Attempt:
    record = record_of(letter, log)
    item = prepare(sanitize_record(record), REGISTRY)
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
            if not is_permanent(error):
                raise  # the database failed, not the event
            return Attempt(letter, False, why(error))
        except Exception as error:  # as in the runner: a fold raises the same error each time
            return Attempt(letter, False, why(error))
        finally:
            transaction.rollback()
    return Attempt(letter, True, None)
