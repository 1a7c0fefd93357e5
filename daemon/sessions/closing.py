"""Close sessions: idle ones end, and ended ones become rollouts (role `work`).

Both steps are events, so a replay repeats them. An ended session's rollout has the conversation of
its main line: the longest chain of calls that each continue the one before. The other calls are its
forks. The event names its calls without their tokens; if they are too many, `CallsGathered` events
before it name them. A session with a task of a known environment is graded by replay, any other has
no verdict. The task's name comes from a client: it selects an environment and never opens a file.
The rollout belongs to the policy that answered last; if none did, to `NOBODY`, without a verdict.

Only loose calls, which no rollout names, are read, so the cost depends on open sessions. A late
call belongs to the next end that has no rollout; without such an end, the session ends once more.

A session that cannot become a rollout stops no other one. It waits if time may help (an absent key
store or blob folder). Else `ClosingFailed` makes it a dead letter until `retry` has made the
rollout. A rollout that cannot be folded is a dead letter of its own, and is not made again.

Guarantee: ids follow from the closed data. So two processes at once, or a killed one, do the work
once, and no call is in two rollouts. The rollout of a person's session is sealed; its labels stay
in the readable head. An erased person's rollout has no messages and no task. Words of others in the
session stay readable. Memory grows with the words. Not covered: sessions trimmed from the log.
"""

import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, TypeVar

from sqlalchemy.exc import SQLAlchemyError

from consumers.database import DatabaseError
from consumers.diagnosis.labels import label_rollout
from consumers.reads.rollouts import filter_rollout_ids
from consumers.reads.sessions import (
    CallRow,
    IdleSession,
    SessionEndRow,
    filter_dead_letter_rollouts,
    find_session_end,
    read_calls_of_end,
    read_calls_of_session,
    read_closable_ends,
    read_idle_sessions,
)
from daemon.core.span_contexts import of_session
from daemon.sessions.conversations import (
    History,
    Node,
    SessionIncomplete,
    answerer,
    find_last_answer,
    main_line,
    sum_tokens,
)
from daemon.sessions.transcript import ERASED
from daemon.sessions.verdict import EnvironmentsAway, add_verdict
from envs.registry import EnvironmentBroken
from events.bodies import Bodies
from events.codec import encode
from events.envelope import Envelope, derive_id, parse_timestamp, utc_now
from events.errors import (
    AheadOfLog,
    BlobError,
    BlobUnavailable,
    KintsugiError,
    LogError,
    LogFull,
    LogReadOnly,
    LogUnavailable,
    SchemaAhead,
    TooLarge,
)
from events.log import Entry, now_ms
from events.privacy.keys import KeysUnavailable
from events.privacy.sealing import Key, KeyMissing, digest_with_key
from events.rollouts import (
    CallsGathered,
    ClosingFailed,
    EventData,
    Labels,
    RolloutContent,
    RolloutEnded,
    SessionEnded,
    clip_reason,
)
from producers.spans.trace_context import parse_traceparent

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from daemon.core.app import App

T = TypeVar("T")

SOURCE = "live"
MOST_CALLS: Final = 10_000
"""Most calls that one event names; their ids take a fifth of the largest record."""


class NoSuchEnd(KintsugiError):
    """The tables lack the session's end that a dead letter names."""


WAITS: Final = (KeysUnavailable, BlobUnavailable, EnvironmentsAway, SchemaAhead, MemoryError)
"""Errors of single sessions that may be gone in a minute, or after an upgrade."""
STOPS: Final = (
    LogUnavailable, LogFull, LogReadOnly, AheadOfLog, DatabaseError, SQLAlchemyError,
)  # fmt: skip
"""Errors that would also hit the next session, so that closing stops."""
_QUOTES_NOTHING: Final = (
    SessionIncomplete, EnvironmentBroken, BlobError, KeyMissing, LogError, TooLarge,
)  # fmt: skip
"""Errors whose text quotes nothing from a session."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A session that cannot become a rollout and is a dead letter."""

    session: str
    error: str
    """Class of the error."""
    reason: str


@dataclass(frozen=True, slots=True)
class CloseResult:
    """The result of closing sessions."""

    ended: int
    rollouts: int
    failures: tuple[Failure, ...] = ()
    """New dead letters."""
    troubles: tuple[str, ...] = ()
    """Why other sessions wait, as sentences; they are tried again."""


def close_sessions(app: "App", now: datetime, lost: set[str] | None = None) -> CloseResult:
    """End sessions that were idle until `now`, and make ended ones into rollouts. `lost` collects,
    over several calls, rollouts that were appended and are not in the tables. They are not appended
    again. Raise LogError, DatabaseUnavailable."""
    app.settle()
    idle = now - timedelta(seconds=app.settings.sessions.idle_seconds)
    with app.reading() as connection:
        ends = [_idle_end(app, session, now) for session in read_idle_sessions(connection, idle)]
    if ends:
        app.append(ends)
        app.settle()
    closing = _CloseRound(app, set() if lost is None else lost)
    closing.run()
    return CloseResult(len(ends), closing.rollouts, tuple(closing.failures), closing.troubles)


def retry(app: "App", failed: ClosingFailed) -> None:
    """Make the rollout of a session whose closing failed, after the cause was mended. Raise
    NoSuchEnd, or the error that still prevents it."""
    with app.reading() as connection:
        if filter_rollout_ids(connection, [failed.rollout]):
            return
        end = find_session_end(connection, failed.end)
        if end is None:
            raise NoSuchEnd(
                f"session {failed.session} has no end {failed.end} in the tables; its event is a "
                "dead letter itself, see kintsugi dlq list"
            )
        session = _Session.read(connection, end)
    app.append(_RolloutBuilder(app, _Keys(app)).rollout(session))
    app.settle()


class _Keys:
    """The persons' keys for one round, in which an absent store is asked once."""

    def __init__(self, app: "App") -> None:
        self._app = app
        self._away: KeysUnavailable | None = None

    def find(self, keyid: str) -> Key | None:
        """Return the key with an id; None if its person was erased. Raise KeysUnavailable."""
        return self._ask(lambda: self._app.find_key(keyid))

    def of(self, person: str) -> Key | None:
        """Return the key that seals a person's new events, if any."""
        if not self._app.settings.privacy.seal:
            return None
        return self._ask(lambda: self._app.keys.of(person))

    def _ask(self, question: Callable[[], T]) -> T:
        if self._away is not None:
            raise self._away
        try:
            return question()
        except KeysUnavailable as error:
            self._away = error
            raise


class _CloseRound:
    def __init__(self, app: "App", lost: set[str]) -> None:
        self._app = app
        self._keys = _Keys(app)
        self._lost = lost
        self._held: set[str] = set()
        """Sessions whose ends all wait: a later end must not get the calls of an earlier one."""
        self.rollouts = 0
        self.failures: list[Failure] = []
        self._waits: dict[str, tuple[str, int]] = {}
        """Class of an error -> its first message, and the number of waiting sessions."""

    def run(self) -> None:
        while self._pass():
            pass

    def _pass(self) -> bool:
        """Process every waiting end, oldest first; return whether any was closed."""
        closed, after = False, ("", "")
        while True:
            with self._app.reading() as connection:
                ends = read_closable_ends(connection, after)
                first: dict[str, SessionEndRow] = {}
                for end in ends:
                    # A later end of the session gets the calls that the earlier one leaves.
                    first.setdefault(end.session, end)
                sessions = [
                    _Session.read(connection, end)
                    for end in first.values()
                    if end.session not in self._held
                ]
            if not ends:
                return closed
            after = (ends[-1].time, ends[-1].session_end)
            # Slow work runs without a transaction, which a server would end.
            results = self._build_rollouts(sessions)
            if results:
                self._append(results)
                closed = True

    def _build_rollouts(
        self, sessions: "Sequence[_Session]"
    ) -> dict[str, tuple[SessionEndRow, list[Entry], Failure | None]]:
        results: dict[str, tuple[SessionEndRow, list[Entry], Failure | None]] = {}
        for session in sessions:
            end = session.end
            if end.rollout in self._lost:
                self._hold_absent(end)
                continue
            try:
                entries = _RolloutBuilder(self._app, self._keys).rollout(session)
            except WAITS as error:
                self._hold(end, type(error).__name__, str(error) or type(error).__name__)
            except STOPS:
                raise
            except Exception as error:  # this session alone becomes a dead letter
                failed = failure(end.session, error)
                results[end.session] = end, [_build_failure(self._app, end, failed)], failed
            else:
                results[end.session] = end, entries, None
        return results

    def _append(
        self, results: dict[str, tuple[SessionEndRow, list[Entry], Failure | None]]
    ) -> None:
        self._app.append([entry for _, entries, _ in results.values() for entry in entries])
        self._app.settle()
        wanted = {end.rollout for end, _, _ in results.values()}
        with self._app.reading() as connection:
            known = filter_rollout_ids(connection, sorted(wanted))
            aside = filter_dead_letter_rollouts(connection, sorted(wanted - known))
        self.rollouts += len(known)
        for end, _, failed in results.values():
            if failed is not None:
                self.failures.append(failed)
            if end.rollout in known or end.rollout in aside:
                continue
            self._lost.add(end.rollout)
            self._hold_absent(end)

    def _hold_absent(self, end: SessionEndRow) -> None:
        why = f"rollout {end.rollout} was appended, and is not in the tables; see kintsugi doctor"
        self._hold(end, "", why)

    @property
    def troubles(self) -> tuple[str, ...]:
        """Return why sessions wait, one sentence for each class of error."""
        return tuple(f"{count:,} sessions wait: {why}" for why, count in self._waits.values())

    def _hold(self, end: SessionEndRow, kind: str, why: str) -> None:
        self._held.add(end.session)
        first, count = self._waits.get(kind, (why, 0))
        self._waits[kind] = first, count + 1


def failure(session: str, error: Exception) -> Failure:
    """Return an error as it may be stored: without its text if that could quote the session."""
    name = type(error).__name__
    if isinstance(error, _QUOTES_NOTHING):
        reason = str(error)
    else:
        frames = traceback.extract_tb(error.__traceback__)
        where = f" in {frames[-1].filename}, line {frames[-1].lineno}" if frames else ""
        reason = f"{name}{where}; kintsugi dlq retry says what it says"
    return Failure(session, name[:128], clip_reason(reason))


def _idle_end(app: "App", idle: IdleSession, now: datetime) -> Entry:
    data = SessionEnded(session=idle.session, because="idle")
    return _entry(app, data, derive_id("idle", idle.session, idle.last), now)


@dataclass(frozen=True, slots=True)
class _Session:
    end: SessionEndRow
    rows: Sequence[CallRow]
    """The calls that this end closes."""
    others: Sequence[CallRow]
    """All calls of the session if `rows` continue calls of an earlier end, else none."""

    @staticmethod
    def read(connection: "Connection", end: SessionEndRow) -> "_Session":
        rows = read_calls_of_end(connection, end)
        own = {row.call for row in rows}
        others: Sequence[CallRow] = ()
        if any(row.parent is not None and row.parent not in own for row in rows):
            others = read_calls_of_session(connection, end.session)
        return _Session(end, rows, others)


class _RolloutBuilder:
    def __init__(self, app: "App", keys: _Keys) -> None:
        self._app = app
        self._keys = keys

    def rollout(self, session: _Session) -> list[Entry]:
        """Return a session's rollout event, after the events that name calls beyond its limit."""
        end, rows = session.end, session.rows
        if not rows:
            raise SessionIncomplete(
                f"no call that its end {end.session_end} closes is in the tables and in no other "
                "rollout; there is nothing to make a rollout of"
            )
        history = History(self._app, None, Bodies(self._app.blobs, self._keys.find))
        history.learn([*session.others, *rows])
        line, forks = main_line([Node(row.call, row.parent, history.length(row)) for row in rows])
        by_call = {row.call: row for row in rows}
        leaf = by_call[line[-1]]
        calls = [by_call[call] for call in line]
        base, policy = answerer(calls)
        last = find_last_answer(calls)
        owner = history.owner(leaf)
        first = parse_traceparent(history.traceparent(by_call[line[0]]))
        erased = history.is_unreadable(leaf)
        messages = () if erased else history.whole(leaf)
        tools = history.tools(leaf)
        data = RolloutEnded(
            rollout=end.rollout,
            alias=leaf.alias,
            base=base,
            policy=policy,
            source=SOURCE,
            purpose=leaf.purpose,
            session=end.session,
            termination=end.because,
            known_tools=tools or None,
            reason=ERASED if erased else None,
            member=None if last is None else history.read_member(last),
            content=RolloutContent(messages=messages),
        )
        task = next((row.task for row in rows if row.task is not None), None)
        if task is not None and not erased:
            tokens = sum_tokens(leaf, [*session.others, *rows])
            data = add_verdict(self._app, data, task, tokens)
        within = of_session(end.session, end.since, first).header
        return [*self._build_entries(end, data, line, forks, owner, within)]

    def _build_entries(
        self,
        end: SessionEndRow,
        data: RolloutEnded,
        line: tuple[str, ...],
        forks: tuple[str, ...],
        owner: Key | str | None,
        traceparent: str | None,
    ) -> Iterator[Entry]:
        """Yield the rollout with its calls, which are in events of their own if they are many."""
        moment = parse_timestamp(end.time)
        count = len(line) + len(forks)
        if count > MOST_CALLS:
            for gathered in _split_calls(data.rollout, end.session, line, forks):
                name = derive_id(data.rollout, "calls", str(gathered.number))
                yield _entry(self._app, gathered, name, moment, end.session_end)
            data = data.model_copy(update={"gathered": count})
        else:
            data = data.model_copy(update={"calls": line, "forks": forks})
        key = self._keys.of(owner) if isinstance(owner, str) else owner
        if key is not None:
            data = data.model_copy(update={"labels": _labels(data, key)})
        person = owner if isinstance(owner, str) else None
        yield _entry(
            self._app, data, end.rollout, moment, end.session_end, key, person, traceparent
        )


def _split_calls(
    rollout: str, session: str, line: Sequence[str], forks: Sequence[str]
) -> Iterator[CallsGathered]:
    parts: list[dict[str, tuple[str, ...]]] = [
        {name: tuple(ids[start : start + MOST_CALLS])}
        for name, ids in (("calls", line), ("forks", forks))
        for start in range(0, len(ids), MOST_CALLS)
    ]
    for number, part in enumerate(parts):
        yield CallsGathered(rollout=rollout, session=session, number=number).model_copy(update=part)


def _build_failure(app: "App", end: SessionEndRow, failed: Failure) -> Entry:
    data = ClosingFailed(
        session=end.session,
        end=end.session_end,
        rollout=end.rollout,
        error=failed.error,
        reason=failed.reason,
    )
    return _entry(
        app, data, derive_id(end.session_end, "closing failed"), utc_now(), end.session_end
    )


def _entry(
    app: "App",
    data: EventData,
    event_id: str,
    time: datetime,
    cause: str | None = None,
    key: Key | None = None,
    person: str | None = None,
    traceparent: str | None = None,
) -> Entry:
    envelope = Envelope(
        id=event_id,
        type=data.TYPE,
        version=data.VERSION,
        subject=data.key(),
        time=time,
        cause=cause,
        person=person,
        traceparent=traceparent,
    )
    encoded = encode(envelope, data, now_ms(), owner=key)
    if encoded.blob is not None and isinstance(data, RolloutEnded) and data.labels is None:
        # The fold opens no blob, so the head needs the labels.
        data = data.model_copy(update={"labels": label_rollout(data).labels})
        encoded = encode(envelope, data, now_ms(), owner=key)
    if encoded.blob is not None:
        app.blobs.put(encoded.blob)
    return encoded.entry


def _labels(data: RolloutEnded, key: Key) -> Labels:
    """Return a sealed rollout's labels, without the person's words and with offered tools only."""
    labels = label_rollout(data).labels
    offered = frozenset(data.known_tools or ())
    return labels.model_copy(
        update={
            "trace_key": digest_with_key(key, labels.trace_key),
            "tools": tuple(tool for tool in labels.tools if tool in offered),
            "words": None,
        }
    )
