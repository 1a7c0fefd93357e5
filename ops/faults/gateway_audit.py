"""Compare a home's log with the answers that clients of its gateway got. It checks offsets, ids,
calls, requests rebuilt from their deltas, and every word of the answers.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from consumers.database import sqlite_url
from events.blobs import BlobStore
from events.bodies import Bodies
from events.errors import BadRecord
from events.json_text.guard import parse_arguments
from events.log import Record, read_stream
from events.messages import Message
from events.privacy.keys import KeyStore
from events.rollouts import CallEnded, CallStarted, FeedbackReceived
from events.sqlite.log import SqliteLog
from events.streams import STREAMS
from ops.faults.gateway_load import Answer, CallAttempt, Ledger
from producers.conversation import parse_messages


@dataclass(slots=True)
class Book:
    """The calls in a log, by id."""

    ids: Counter[str] = field(default_factory=Counter)
    started: dict[str, list[CallStarted]] = field(default_factory=dict)
    ended: dict[str, list[CallEnded]] = field(default_factory=dict)
    feedback: Counter[str] = field(default_factory=Counter)
    places: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    """Id -> (stream, partition, offset) of its first event."""
    unreadable: int = 0
    problems: list[str] = field(default_factory=list)

    def request(self, call: str) -> tuple[Message, ...]:
        """Return all messages of a call's request, rebuilt from its parent calls."""
        started = self.started[call][0]
        own = started.content.messages if started.content else ()
        if started.parent is None:
            return own
        before = self.request(started.parent)
        if len(before) < started.parent_messages:
            before += self.answer(started.parent)[:1]
        return before[: started.parent_messages] + own

    def answer(self, call: str) -> tuple[Message, ...]:
        """Return the answer of a completed call. Raise KeyError for another call."""
        (ended,) = self.ended[call]
        if ended.outcome != "completed" or ended.content is None:
            raise KeyError(call)
        return ended.content.messages

    def has_completion(self, call: str) -> bool:
        """Return whether the call is completed."""
        return any(ended.outcome == "completed" for ended in self.ended.get(call, ()))

    def question(self, call: str) -> str:
        """Return the text of the last message in the request of the call with this id."""
        content = self.started[call][0].content
        return content.messages[-1].text if content and content.messages else ""


@dataclass(slots=True)
class Audit:
    """Counts of traffic, and counts of errors, which must all be 0."""

    attempts: int = 0
    acknowledged: int = 0
    ended: int = 0
    evidence: int = 0
    """Calls with a start and no end, as a killed gateway leaves them."""
    replayed: int = 0
    feedback: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    lost_evidence: int = 0
    """Streams that began with `x-kintsugi-recorded: yes` but have no start in the log."""
    lost_feedback: int = 0
    doubled_ids: int = 0
    ended_twice: int = 0
    """Calls with two starts or two ends."""
    answered_twice: int = 0
    """Idempotency keys with more than one completed call."""
    ended_without_start: int = 0
    unequal_answers: int = 0
    unequal_requests: int = 0
    unreadable: int = 0
    problems: list[str] = field(default_factory=list)
    first: str | None = None

    @property
    def sound(self) -> bool:
        """Return whether no error was found."""
        return self.first is None

    def wrong(self, what: str, detail: str) -> None:
        """Count an error of the kind `what`, and keep the text of the first error."""
        setattr(self, what, getattr(self, what) + 1)
        self.first = self.first or f"{what}: {detail}"[:1000]

    def report(self) -> dict[str, Any]:
        """Return the driver's figures."""
        figures = {name: getattr(self, name) for name in self.__slots__}
        return {**figures, "outcomes": dict(self.outcomes)}


def read(home: Path) -> Book:
    """Read the whole log of a home."""
    book = Book()
    with open_log(home) as (log, bodies):
        book.problems = log.check()
        for stream in STREAMS:
            for record in read_stream(log, stream):
                _enter(book, bodies, record)
    return book


@contextmanager
def open_log(home: Path) -> Iterator[tuple[SqliteLog, Bodies]]:
    """Yield a home's log, and a reader of its records' bodies."""
    with (
        closing(SqliteLog(home / "log.db", read_only=True)) as log,
        closing(KeyStore(sqlite_url(home / "keys.db"))) as keys,
    ):
        yield log, Bodies(BlobStore(home / "blobs"), keys.find)


def audit(home: Path, ledger: Ledger) -> Audit:
    """Compare a home's log with the clients' ledger. No gateway of the home may run."""
    book = read(home)
    result = Audit(attempts=len(ledger.seen), ended=len(book.ended), feedback=len(ledger.feedback))
    result.evidence = len(book.started.keys() - book.ended.keys())
    result.outcomes.update(ended[0].outcome for ended in book.ended.values())
    result.replayed = sum(seen.replayed for seen in ledger.seen)
    _audit_log(book, result)
    _audit_keys(book, ledger, result)
    for seen in ledger.seen:
        _audit_attempt(book, seen, result)
    for feedback in set(ledger.feedback) - set(book.feedback):
        result.wrong("lost_feedback", feedback)
    return result


def _enter(book: Book, bodies: Bodies, record: Record) -> None:
    try:
        event = bodies.whole(record).event
    except BadRecord:
        book.unreadable += 1
        return
    book.ids[event.envelope.id] += 1
    place = (record.stream, record.partition, record.offset)
    book.places.setdefault(event.envelope.id, place)
    data = event.data
    if isinstance(data, CallStarted):
        book.started.setdefault(data.call, []).append(data)
    elif isinstance(data, CallEnded):
        book.ended.setdefault(data.call, []).append(data)
    elif isinstance(data, FeedbackReceived):
        book.feedback[event.envelope.id] += 1


def _audit_log(book: Book, result: Audit) -> None:
    for problem in book.problems:
        result.problems.append(problem)
        result.first = result.first or problem
    for _ in range(book.unreadable):
        result.wrong("unreadable", "an event cannot be decoded")
    for event, count in book.ids.items():
        if count > 1:
            result.wrong("doubled_ids", f"event {event} {count} times, first {book.places[event]}")
    for call in book.started.keys() | book.ended.keys():
        counts = len(book.started.get(call, ())), len(book.ended.get(call, ()))
        if max(counts) > 1:
            result.wrong("ended_twice", f"call {call}: {counts} starts and ends")
        if not counts[0]:
            result.wrong("ended_without_start", call)


def _audit_keys(book: Book, ledger: Ledger, result: Audit) -> None:
    """Count keys with several completed calls, found by their unique questions."""
    asked: dict[str, list[str]] = {}
    for call in book.started:
        if book.has_completion(call):
            asked.setdefault(book.question(call), []).append(call)
    for key, question in {(seen.key, seen.messages[-1]["content"]) for seen in ledger.seen}:
        if key is not None and len(calls := asked.get(question, [])) > 1:
            result.wrong("answered_twice", f"key {key}: calls {calls}")


def _audit_attempt(book: Book, seen: CallAttempt, result: Audit) -> None:
    began = seen.recorded == "yes" and not seen.taken_back
    if began and seen.stream and seen.call not in book.started:
        result.wrong("lost_evidence", f"call {seen.call}")
    ended = book.ended.get(seen.call or "", [])
    if seen.has_ack:
        result.acknowledged += 1
        if not ended:
            result.wrong("lost", f"call {seen.call}, status {seen.status}")
    if seen.call in book.started:
        _audit_request(book, seen, result)
    if ended and seen.answers and not any(_is_answer(seen, end) for end in ended):
        result.wrong("unequal_answers", f"call {seen.call}: {seen.answers}, stored {ended}")


def _audit_request(book: Book, seen: CallAttempt, result: Audit) -> None:
    assert seen.call is not None, "looked up by it"
    try:
        stored = book.request(seen.call)
    except KeyError as missing:
        result.wrong("unequal_requests", f"call {seen.call}: its parent {missing} is not there")
        return
    if _plain(stored) != _plain(parse_messages(seen.messages)):
        result.wrong("unequal_requests", f"call {seen.call}")


def _plain(messages: tuple[Message, ...]) -> list[Any]:
    return [
        (m.role, m.text, [(c.id, c.name, c.arguments) for c in m.tool_calls], m.tool_call_id)
        for m in messages
    ]


def _is_answer(seen: CallAttempt, ended: CallEnded) -> bool:
    stored = ended.content.messages if ended.content else ()
    numbers = set(range(len(stored)))
    known = numbers == set(seen.answers) if seen.whole else numbers >= set(seen.answers)
    return known and all(
        _holds(stored[number], answer, seen.whole) for number, answer in seen.answers.items()
    )


def _holds(stored: Message, read: Answer, whole: bool) -> bool:
    """Return whether a stored message equals what was read, or begins with it if not `whole`."""
    if not whole:
        return stored.text.startswith(read.text) and len(stored.tool_calls) >= len(read.calls)
    calls = [(c["id"], c["name"], parse_arguments(c["arguments"])) for c in read.calls.values()]
    return stored.text == read.text and calls == [
        (call.id, call.name, call.arguments) for call in stored.tool_calls
    ]
