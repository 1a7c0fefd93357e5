"""Conversations of calls: their main line, its last answer, and its messages, read from the log.

    history = History(app, connection)
    history.length(row)      messages of a call's conversation
    history.whole(row)       the messages themselves

A call's event, like `History`, holds only the messages that the conversation of its parent (the
call that it continues) lacks. So memory and time grow only with the session's words.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from consumers.reads.sessions import CallRow, find_call
from events.bodies import Bodies, Whole
from events.errors import KintsugiError
from events.messages import Message
from events.privacy.sealing import Key
from events.rollouts import NOBODY, CallEnded, CallStarted, MemberChoice
from events.streams import ROLLOUTS

if TYPE_CHECKING:
    from sqlalchemy import Connection, Row

    from daemon.core.app import App

StoredCall: TypeAlias = "CallRow | Row[Any]"
"""A call whose start was folded: a row of `consumers.reads.sessions`, or of the table itself."""

_UNNAMED: Final = "unnamed"
"""Base and policy of a rollout that a model without a known name answered."""


class SessionIncomplete(KintsugiError):
    """The log or the tables lack a call that another call of the conversation continues."""


@dataclass(frozen=True, slots=True)
class _Start:
    parent: str | None
    kept: int
    """Number of leading messages that it shares with its parent's conversation."""
    own: tuple[Message, ...]
    tools: tuple[str, ...]
    parent_tools: bool
    traceparent: str | None
    member: MemberChoice | None


class History:
    """Reads conversations of calls at one moment of the tables."""

    def __init__(
        self, app: "App", connection: "Connection | None", bodies: Bodies | None = None
    ) -> None:
        """Set up a history. `connection` reads rows not given to `learn`, None if all are given.
        `bodies` reads the message bodies, by default the application's."""
        self._log = app.log
        self._bodies = app.bodies if bodies is None else bodies
        self._connection = connection
        self._rows: dict[str, CallRow] = {}
        self._starts: dict[str, _Start] = {}
        self._lengths: dict[str, int] = {}
        self._answers: dict[str, tuple[Message, ...]] = {}
        self._erased: set[str] = set()
        """Calls whose request is partly an erased person's."""
        self._erased_answers: set[str] = set()

    def learn(self, rows: Iterable[CallRow]) -> None:
        """Add rows of calls, which then need not be read from the tables."""
        self._rows.update((row.call, row) for row in rows)

    def is_unreadable(self, row: StoredCall) -> bool:
        """Return whether the request or the answer of a call has been erased."""
        self._request_length(row)
        self._answer(row)
        return row.call in self._erased or row.call in self._erased_answers

    def length(self, row: StoredCall) -> int:
        """Return the number of messages in a call's request and its answer; 0 if erased."""
        return (
            0 if self.is_unreadable(row) else self._request_length(row) + len(self._answer(row)[:1])
        )

    def whole(self, row: StoredCall) -> tuple[Message, ...]:
        """Return the messages of a call's request, then its first answer."""
        return self.read_request(row) + self._answer(row)[:1]

    def tools(self, row: StoredCall) -> tuple[str, ...]:
        """Return the names of the tools that a call offered."""
        start = self._start(row)
        while start.parent_tools and start.parent is not None:
            row = self._row(start.parent, row.call)
            start = self._start(row)
        return start.tools

    def read_request(self, row: StoredCall) -> tuple[Message, ...]:
        """Return the messages of a call's request, with those of the calls that it continues."""
        messages: list[Message] = []
        for call in reversed(self._chain(row)):
            start = self._start(call)
            del messages[start.kept :]
            messages += start.own
            if call.call != row.call:
                messages += self._answer(call)[:1]
        return tuple(messages)

    def read_answer(self, row: StoredCall) -> tuple[Message, ...]:
        """Return the messages of a call's answer, one per choice."""
        return self._answer(row)

    def owner(self, row: StoredCall) -> Key | str | None:
        """Return the key that sealed a call, or the unsealed person's name; None if unreadable."""
        whole = self._whole(row, row.started_offset)
        return None if self.is_unreadable(row) else whole.key or whole.event.envelope.person

    def traceparent(self, row: StoredCall) -> str | None:
        """Return the traceparent header that the client sent."""
        return self._start(row).traceparent

    def read_member(self, row: StoredCall) -> MemberChoice | None:
        """Return the panel's member that answered a call; None if its policy is no panel."""
        return self._start(row).member

    def _chain(self, row: StoredCall) -> list[StoredCall]:
        """Return a call and all calls that it continues, from the newest to the oldest."""
        self._request_length(row)  # raises SessionIncomplete if the calls form a circle
        chain = [row]
        while (parent := self._start(row).parent) is not None:
            row = self._row(parent, row.call)
            chain.append(row)
        return chain

    def _request_length(self, row: StoredCall) -> int:
        unknown: dict[str, StoredCall] = {}
        at: StoredCall | None = row
        while at is not None and at.call not in self._lengths:
            if at.call in unknown:
                raise SessionIncomplete(
                    f"call {at.call} goes on from itself, so its conversation has no beginning; "
                    "no gateway records that, so find who wrote it with kintsugi log cat rollouts"
                )
            unknown[at.call] = at
            parent = self._start(at).parent
            at = None if parent is None else self._row(parent, at.call)
        for call in reversed(unknown.values()):
            start = self._start(call)
            before = 0
            if start.parent is not None:
                answer = self._answer(self._row(start.parent, call.call))[:1]
                before = min(start.kept, self._lengths[start.parent] + len(answer))
                if self._has_unreadable_prefix(start.parent, start.kept):
                    self._erased.add(call.call)
            self._lengths[call.call] = before + len(start.own)
        return self._lengths[row.call]

    def _has_unreadable_prefix(self, parent: str, kept: int) -> bool:
        """Return whether any of the `kept` messages that a call shares with `parent` is erased."""
        is_answered = kept > self._lengths[parent]
        return parent in self._erased or (is_answered and parent in self._erased_answers)

    def _start(self, row: StoredCall) -> _Start:
        if row.call not in self._starts:
            self._starts[row.call] = self._read_start(row)
        return self._starts[row.call]

    def _read_start(self, row: StoredCall) -> _Start:
        whole = self._whole(row, row.started_offset)
        event = whole.event
        data = event.data
        if not isinstance(data, CallStarted):
            raise _elsewhere(row, row.started_offset)
        if whole.is_unreadable:
            self._erased.add(row.call)
        content = data.content
        prompts = content.prompts if content else ()
        own = content.messages if content else ()
        own += tuple(Message(role="user", content=p) for p in prompts if isinstance(p, str))
        offered = content.tools if content else ()
        return _Start(
            parent=data.parent,
            kept=data.parent_messages,
            own=own,
            tools=tuple(name for tool in offered if (name := _name(tool))),
            parent_tools=data.parent_tools,
            traceparent=event.envelope.traceparent,
            member=data.member,
        )

    def _answer(self, row: StoredCall) -> tuple[Message, ...]:
        if row.call not in self._answers:
            self._answers[row.call] = self._read_answer(row)
        return self._answers[row.call]

    def _read_answer(self, row: StoredCall) -> tuple[Message, ...]:
        if row.ended_offset is None:
            return ()
        whole = self._whole(row, row.ended_offset)
        data = whole.event.data
        if not isinstance(data, CallEnded):
            raise _elsewhere(row, row.ended_offset)
        if whole.is_unreadable:
            self._erased_answers.add(row.call)
        return data.content.messages if data.content else ()

    def _row(self, call: str, child: str) -> CallRow:
        row = self._rows.get(call)
        if row is None and self._connection is not None:
            row = find_call(self._connection, call)
        if row is None:
            raise SessionIncomplete(
                f"call {child} goes on from call {call}, whose start is not in the tables; look "
                "for it with kintsugi dlq list"
            )
        return self._rows.setdefault(call, row)

    def _whole(self, row: StoredCall, offset: int) -> Whole:
        records = self._log.read(ROLLOUTS.name, row.partition, offset, limit=1)
        if not records or records[0].offset != offset:
            raise _elsewhere(row, offset)
        return self._bodies.whole(records[0], arrays=False)


def _elsewhere(row: StoredCall, offset: int) -> SessionIncomplete:
    return SessionIncomplete(
        f"{ROLLOUTS.name}/{row.partition}@{offset} should hold call {row.call}, and does not; this "
        "is another log than the one that was folded"
    )


def _name(tool: dict[str, Any]) -> str | None:
    function = tool.get("function")
    name = function.get("name") if isinstance(function, dict) else tool.get("name")
    return name if isinstance(name, str) else None


@dataclass(frozen=True, slots=True)
class Node:
    """A call in its session."""

    call: str
    parent: str | None
    length: int
    """Number of messages of its conversation."""


def main_line(nodes: Sequence[Node]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the calls of the longest chain, first to last, and all other calls (forks) in order of
    time. It ends at the call with the most messages, the latest of equal ones. Forks are, for
    example, a request for a title, and calls whose client has shortened the conversation."""
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


def answerer(calls: Sequence[CallRow]) -> tuple[str, str]:
    """Return (base, policy) of the last call that an engine answered; `NOBODY` twice if none."""
    call = find_last_answer(calls)
    if call is None:
        return NOBODY, NOBODY
    if call.base != NOBODY:
        return call.base, call.policy
    # The call's engine does not list the model that answered.
    name = _UNNAMED if call.policy == NOBODY else call.policy
    return name, name


def find_last_answer(calls: Sequence[CallRow]) -> CallRow | None:
    """Return the last call, given first to last, that an engine answered; None if none."""
    for call in reversed(calls):
        listed = call.base != NOBODY and (call.outcome != "failed" or call.upstream is not None)
        if listed or call.outcome == "completed":
            return call
    return None


def sum_tokens(leaf: CallRow, rows: Iterable[CallRow]) -> int | None:
    """Return the number of tokens that the model wrote in the chain up to `leaf`; None if an engine
    did not report it, or `rows` lacks a call of the chain."""
    by_call = {row.call: row for row in rows}
    total, at = 0, leaf
    while at.completion_tokens is not None:
        total += at.completion_tokens
        if at.parent is None:
            return total
        if at.parent not in by_call:
            return None
        at = by_call[at.parent]
    return None
