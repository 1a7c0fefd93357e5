"""Closing sessions: idle ones end, and ended ones become rollouts (role `work`).

Both are events, so a replay repeats them and no fold asks a clock. An ended session's rollout holds
the conversation of its main line, which is the longest chain of calls that each go on from the one
before; the other calls are its forks. It names its calls and repeats no tokens.

A session that names a task of an environment that is known here is graded by replay, as an
evaluation is; any other has no verdict. What was posted as feedback is none.

The rollout is of who answered last. Where no engine answered any call of its main line, it is of
nobody and has no verdict: consumers count it for no agent.

Sought are loose calls, which no rollout names yet: a look costs what is open, whatever was closed
before it, and a call that comes late is not left behind. It is in the rollout of the first end at
or after it that has none; where all have one, the session ends once more.

Guarantee: ids follow from what is closed, so two of these at once, or one that was killed, do the
work once, and no call is in two rollouts. The rollout of a person's session is sealed as its calls
are, with its labels in the head; one whose person was erased says that there was a rollout, and
nothing else. Not covered: a session whose events were trimmed from the log.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import Exists, Row, func, select

from consumers.labelling import labelled
from consumers.tables import Call, Rollout, SessionEnd
from daemon.tracing.contexts import of_session
from envs.environment import Environment, UnknownTask
from envs.episode import Termination
from envs.grading import VERSION, grade
from envs.registry import UnknownEnvironment, open_environment
from envs.task import TaskDefinition
from events.bodies import Whole
from events.codec import Event, encode
from events.envelope import Envelope, derived_id, parse_timestamp, timestamp
from events.errors import KintsugiError
from events.log import Entry, now_ms
from events.messages import Message
from events.rollouts import (
    NOBODY,
    CallEnded,
    CallStarted,
    EventData,
    Labels,
    RolloutContent,
    RolloutEnded,
    SessionEnded,
    Task,
)
from events.sealing import Key, keyed_digest
from events.streams import ROLLOUTS
from events.tracecontext import parsed

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from daemon.app import App

SOURCE = "live"
_UNNAMED = "unnamed"
"""Base and policy of a rollout that a model answered whose name nobody said."""
_AT_ONCE = 100
"""Sessions that are closed before their rollouts are appended."""


class SessionIncomplete(KintsugiError):
    """A call goes on from one that the tables do not hold."""


@dataclass(frozen=True, slots=True)
class Closed:
    """What was done."""

    ended: int
    rollouts: int


def close_sessions(app: "App", now: datetime) -> Closed:
    """End what was idle until `now`, and make everything that ended into rollouts."""
    app.settle()
    idle = now - timedelta(seconds=app.settings.sessions.idle_seconds)
    with app.reading() as connection:
        ends = [_idle_end(app, session, last, now) for session, last in _idle(connection, idle)]
    if ends:
        app.append(ends)
        app.settle()
    rollouts = 0
    while made := _rollouts(app):
        app.append(made)
        app.settle()
        rollouts += len(made)
    return Closed(len(ends), rollouts)


def _idle(connection: "Connection", before: datetime) -> list[tuple[str, str]]:
    """Sessions whose last loose call lies before a moment and that are not about to be made into a
    rollout, with the time of that call."""
    calls, ends = Call.table().c, SessionEnd.table().c
    last = func.max(func.coalesce(calls.ended, calls.started)).label("last")
    lasts = select(calls.session, last).where(Call.loose()).group_by(calls.session).subquery()
    ended = (
        select(ends.session_end)
        .where(ends.session == lasts.c.session, ends.time >= lasts.c.last, ~_is_done())
        .exists()
    )
    query = select(lasts.c.session, lasts.c.last).where(lasts.c.last < timestamp(before), ~ended)
    return [(row.session, row.last) for row in connection.execute(query.order_by(lasts.c.session))]


def waiting(connection: "Connection", before: datetime) -> int:
    """How many sessions were over before a moment, idle or ended, and are no rollouts yet; of
    those that ended, so many at most as become rollouts at once."""
    ended = [end for end in _pending(connection) if parse_timestamp(end.time) < before]
    return len(_idle(connection, before)) + len(ended)


def _idle_end(app: "App", session: str, last: str, now: datetime) -> Entry:
    data = SessionEnded(session=session, because="idle")
    return _entry(app, data, derived_id("idle", session, last), now)


def _rollouts(app: "App") -> list[Entry]:
    """The rollouts of sessions that ended, oldest first; some of them."""
    with app.reading() as connection:
        first: dict[str, Row[Any]] = {}
        for end in _pending(connection):
            # A later end of the session has what the earlier one leaves.
            first.setdefault(end.session, end)
        return [_rollout(app, connection, end) for end in first.values()]


def _pending(connection: "Connection") -> Sequence[Row[Any]]:
    """Ends with loose calls and without a rollout, each with the time of the end before it."""
    ends, calls = SessionEnd.table().c, Call.table().c
    earlier = SessionEnd.table().alias("earlier")
    since = func.coalesce(
        select(func.max(earlier.c.time))
        .where(earlier.c.session == ends.session, earlier.c.time < ends.time)
        .scalar_subquery(),
        "",
    )
    has_calls = (
        select(calls.call)
        .where(calls.session == ends.session, Call.loose(), calls.started <= ends.time)
        .exists()
    )
    # Said beside it, for it is what the ends are found by.
    of_loose = ends.session.in_(select(calls.session).where(Call.loose()))
    query = select(SessionEnd.table(), since.label("since")).where(of_loose, has_calls, ~_is_done())
    return connection.execute(query.order_by(ends.time, ends.session_end).limit(_AT_ONCE)).all()


def _is_done() -> Exists:
    """Whether an end has its rollout."""
    rollouts = Rollout.table().c
    return select(rollouts.rollout).where(rollouts.rollout == SessionEnd.table().c.rollout).exists()


def _rollout(app: "App", connection: "Connection", end: Row[Any]) -> Entry:
    calls = Call.table().c
    query = select(Call.table()).where(
        calls.session == end.session, Call.loose(), calls.started <= end.time
    )
    rows = connection.execute(query.order_by(calls.started, calls.call)).all()
    history = History(app, connection)
    line, forks = main_line([Node(row.call, row.parent, history.length(row)) for row in rows])
    leaf = next(row for row in rows if row.call == line[-1])
    base, policy = answerer([row for row in rows if row.call in set(line)])
    owner = history.owner(leaf)
    first = parsed(history.traceparent(next(row for row in rows if row.call == line[0])))
    messages = () if history.erased else history.whole(leaf)
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
        calls=line,
        forks=forks,
        content=RolloutContent(messages=messages),
    )
    task = next((row.task for row in rows if row.task is not None), None)
    if task is not None and not history.erased:
        data = _judged(app, data, task)
    within = of_session(end.session, end.since, first)
    moment = parse_timestamp(end.time)
    return _entry(app, data, end.rollout, moment, end.session_end, owner, within.header)


@dataclass(frozen=True, slots=True)
class Node:
    """A call in its session."""

    call: str
    parent: str | None
    length: int
    """Messages of its conversation."""


def main_line(nodes: Sequence[Node]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The calls of the longest chain, first to last, and all the others in order of time.

    The longest is the one that ends with the most messages, of equal ones the latest: a title that
    was asked for on the side is a fork, and so is what came after a compaction until it has grown
    beyond what was compacted.
    """
    by_call = {node.call: node for node in nodes}
    leaf = max(enumerate(nodes), key=lambda item: (item[1].length, item[0]))[1]
    line: list[str] = []
    at: Node | None = leaf
    while at is not None:
        line.append(at.call)
        at = by_call.get(at.parent) if at.parent is not None else None
    line.reverse()
    taken = set(line)
    return tuple(line), tuple(node.call for node in nodes if node.call not in taken)


def answerer(calls: Sequence[Row[Any]]) -> tuple[str, str]:
    """Base and policy that answered a line of calls, given first to last: those of the last call
    that an engine answered; `NOBODY` where there is none."""
    for call in reversed(calls):
        if call.base != NOBODY and (call.outcome != "failed" or call.upstream is not None):
            return call.base, call.policy
        if call.outcome == "completed":
            # By a model that its engine does not list.
            name = _UNNAMED if call.policy == NOBODY else call.policy
            return name, name
    return NOBODY, NOBODY


class History:
    """Conversations of calls, put together from the log."""

    def __init__(self, app: "App", connection: "Connection") -> None:
        self._app = app
        self._connection = connection
        self._asked: dict[str, tuple[Message, ...]] = {}
        self._tools: dict[str, tuple[str, ...]] = {}
        self._answers: dict[str, tuple[Message, ...]] = {}
        self._headers: dict[str, str | None] = {}
        self.erased = False
        """Whether something that was read is of an erased person: the conversation is not whole."""

    def length(self, row: Row[Any]) -> int:
        """Messages of a call's conversation, its answer included."""
        return len(self.whole(row))

    def whole(self, row: Row[Any]) -> tuple[Message, ...]:
        """What was said up to a call, and its answer."""
        return self._conversation(row) + self._answer(row)[:1]

    def tools(self, row: Row[Any]) -> tuple[str, ...]:
        """Names of the tools that a call offered."""
        self._conversation(row)
        return self._tools[row.call]

    def asked(self, row: Row[Any]) -> tuple[Message, ...]:
        """What was said up to a call."""
        return self._conversation(row)

    def answered(self, row: Row[Any]) -> tuple[Message, ...]:
        """What was answered to it, one message per choice."""
        return self._answer(row)

    def owner(self, row: Row[Any]) -> Key | str | None:
        """Whose data a call is: by the key that sealed it, or by name where none did."""
        found = self._whole(row, row.started_offset)
        return None if self.erased else found.key or found.event.envelope.person

    def traceparent(self, row: Row[Any]) -> str | None:
        """The header of the client's span."""
        self._conversation(row)
        return self._headers[row.call]

    def _conversation(self, row: Row[Any]) -> tuple[Message, ...]:
        """The messages of a call's request; its ancestors' first, without recursion."""
        waiting = [row]
        while waiting:
            last = waiting[-1]
            if last.call in self._asked:
                waiting.pop()
                continue
            if last.parent is not None and last.parent not in self._asked:
                waiting.append(self._row(last.parent, last.call))
                continue
            self._read(waiting.pop())
        return self._asked[row.call]

    def _read(self, row: Row[Any]) -> None:
        event = self._event(row, row.started_offset)
        self._headers[row.call] = event.envelope.traceparent
        data = event.data
        assert isinstance(data, CallStarted), "the row says where its start lies"
        content = data.content
        own = content.messages if content else ()
        prompts = content.prompts if content else ()
        own += tuple(Message(role="user", content=p) for p in prompts if isinstance(p, str))
        names = tuple(name for tool in (content.tools if content else ()) if (name := _name(tool)))
        before: tuple[Message, ...] = ()
        if data.parent is not None:
            parent = self._row(data.parent, data.call)
            known = self._asked[data.parent] + self._answer(parent)[:1]
            before = known[: data.parent_messages]
            names = self._tools[data.parent] if data.parent_tools else names
        self._asked[row.call] = before + own
        self._tools[row.call] = names

    def _answer(self, row: Row[Any]) -> tuple[Message, ...]:
        if row.call not in self._answers:
            self._answers[row.call] = self._answered(row)
        return self._answers[row.call]

    def _answered(self, row: Row[Any]) -> tuple[Message, ...]:
        if row.ended_offset is None:
            return ()
        data = self._event(row, row.ended_offset).data
        assert isinstance(data, CallEnded), "the row says where its end lies"
        return data.content.messages if data.content else ()

    def _row(self, call: str, child: str) -> Row[Any]:
        calls = Call.table().c
        row = self._connection.execute(select(Call.table()).where(calls.call == call)).first()
        if row is None or row.started_offset is None:
            raise SessionIncomplete(
                f"call {child} goes on from call {call}, whose start is not in the tables; look "
                "for it with kintsugi dlq list"
            )
        return row

    def _event(self, row: Row[Any], offset: int) -> Event:
        return self._whole(row, offset).event

    def _whole(self, row: Row[Any], offset: int) -> Whole:
        (record,) = self._app.log.read(ROLLOUTS.name, row.partition, offset, limit=1)
        found = self._app.bodies.whole(record, arrays=False)
        self.erased = self.erased or found.erased
        return found


def _judged(app: "App", data: RolloutEnded, task_id: str) -> RolloutEnded:
    """With the task, and the verdict of a replay where its environment is known here."""
    # A task that no engine was there for says nothing of the agent.
    found = None if data.base == NOBODY else _definition(app, task_id)
    if found is None:
        return data.model_copy(update={"task": Task(id=task_id)})
    environment, task = found
    messages = data.content.messages if data.content else ()
    spoken = [message for message in messages if message.role not in ("system", "developer")]
    grading = grade(environment, task, spoken, Termination.USER_STOP)
    parts: dict[str, float | None] = {str(basis): value for basis, value in grading.parts.items()}
    return data.model_copy(
        update={
            "task": task.record(),
            "success": grading.success,
            "reward": grading.reward,
            "reward_parts": {**parts, "task": grading.reward},
            "grader": f"{environment.name}/{VERSION}",
        }
    )


def _definition(app: "App", task_id: str) -> tuple[Environment, TaskDefinition] | None:
    """A task of an environment; None where either is not known here."""
    settings = app.settings
    try:
        environment = open_environment(
            task_id.partition("/")[0] or task_id,
            benchmarks=settings.benchmarks,
            paths=settings.environments.paths,
        )
        task = environment.task(task_id)
    except (UnknownEnvironment, UnknownTask):
        return None
    return environment, task


def _name(tool: dict[str, Any]) -> str | None:
    function = tool.get("function")
    name = function.get("name") if isinstance(function, dict) else tool.get("name")
    return name if isinstance(name, str) else None


def _entry(
    app: "App",
    data: EventData,
    event_id: str,
    time: datetime,
    cause: str | None = None,
    owner: Key | str | None = None,
    traceparent: str | None = None,
) -> Entry:
    key = owner if isinstance(owner, Key) or owner is None else _key_of(app, owner)
    if key is not None and isinstance(data, RolloutEnded):
        data = data.model_copy(update={"labels": _labels(data, key)})
    envelope = Envelope(
        id=event_id,
        type=data.TYPE,
        version=data.VERSION,
        subject=data.key(),
        time=time,
        cause=cause,
        person=owner if isinstance(owner, str) else None,
        traceparent=traceparent,
    )
    encoded = encode(envelope, data, now_ms(), owner=key)
    if encoded.blob is not None:
        app.blobs.put(encoded.blob)
    return encoded.entry


def _key_of(app: "App", person: str) -> Key | None:
    return app.keys.of(person) if app.settings.privacy.seal else None


def _labels(data: RolloutEnded, key: Key) -> Labels:
    """What a fold needs to know of a rollout that it cannot read."""
    labels = labelled(data).labels
    return labels.model_copy(update={"trace_key": keyed_digest(key, labels.trace_key)})
