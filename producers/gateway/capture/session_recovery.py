"""Restores a gateway's sessions from its own spool after a restart.

The newest records of each partition are read. Conversations are rebuilt call by call from their
parents. Only a call's session is known if redaction replaced text, or if its parent, body (in a
blob) or key cannot be read. The same holds for calls that continue it, and the next is stored
whole.

Guarantee: bounded in records and seconds. A call that is not found leads to a longer record or, for
unnamed sessions, an additional session, never to a wrong parent. Records from before a certain time
were not read in all partitions. Until an hour after that time, no unnamed call continues another
(`Sessions.forget_before`). Blocks; raises LogError.
"""

import heapq
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Final

from events.codec import Event, ciphertext_of, decode, unseal_event
from events.errors import BadRecord, SchemaAhead
from events.log import Record, now_ms
from events.messages import Message
from events.privacy.sealing import Keys
from events.rollouts import CallEnded, CallStarted, SessionEnded
from events.sqlite.log import SqliteLog
from events.streams import ROLLOUTS
from producers.gateway.capture.digests import Conversation, Digest
from producers.gateway.capture.sessions import Claim, Scope, Sessions
from producers.gateway.routing.routes import is_shadow

MAX_RECORDS: Final = 1_250
"""Records read per partition: about 5,000 calls in all partitions, read in two seconds."""

MAX_SECONDS: Final = 20.0

_PORTION: Final = 250

_BY_CLIENTS: Final = ("asked", "feedback")
"""Reasons of final session ends. A session that ended as idle may continue."""

_UNSURE_MS: Final = 10_000
"""Answers in the last so many milliseconds before the newest record may not have been delivered."""

_REPLACED: Final = "[redacted:"
"""Prefix of the text that replaces a match of a rule (producers/gateway/privacy/redaction.py)."""


def recover_sessions(
    spool: SqliteLog,
    given_up: Callable[[], bool] = lambda: False,
    most: int = MAX_RECORDS,
    seconds: float = MAX_SECONDS,
    also: Callable[[Event], None] = lambda _: None,
    keys: Keys | None = None,
) -> Sessions:
    """Return the sessions of the newest calls, read until `given_up()`. `also` gets each event."""
    deadline = time.monotonic() + seconds
    memory = _Memory(also, keys)
    starts, ends = spool.start(ROLLOUTS.name), spool.end(ROLLOUTS.name)
    partitions, floor = list[Iterator[Record]](), 0
    for partition, (start, end) in enumerate(zip(starts, ends, strict=True)):
        first = max(start, end - most)
        records = _newest(spool, partition, first, end)
        oldest = next(records, None)
        if first > 0:
            # Older records of this partition are not read, so nothing older is certain.
            floor = max(floor, now_ms() if oldest is None else oldest.recorded_ms)
        if oldest is not None:
            partitions.append(chain([oldest], records))
    # Replay in the order of recording, because each call's doubts depend on earlier calls.
    for record in heapq.merge(*partitions, key=_moment):
        if given_up() or time.monotonic() > deadline:
            floor = now_ms()
            break
        memory.take(record)
    if floor:
        memory.sessions.forget_before(floor)
    memory.finish()
    return memory.sessions


def _moment(record: Record) -> tuple[int, str]:
    """Return a sort key: the time of recording, then the id, which begins with its time."""
    id = next((value for name, value in record.headers if name == "ce_id"), b"")
    return record.recorded_ms, id.decode()


def _newest(spool: SqliteLog, partition: int, offset: int, end: int) -> Iterator[Record]:
    while offset < end:
        records = spool.read(ROLLOUTS.name, partition, offset, limit=min(_PORTION, end - offset))
        if not records:
            return
        yield from records
        offset = records[-1].offset + 1


@dataclass(frozen=True, slots=True)
class _CallState:
    scope: Scope
    conversation: Conversation
    keyid: str | None
    answer: dict[str, Any] | None = None

    def beginning(self, messages: int) -> Conversation | None:
        """Return the call's first messages; its answer is included if one more is asked for."""
        whole = self.conversation
        if messages == len(whole) + 1 and self.answer is not None:
            return whole.extend([self.answer])
        return whole.first(messages) if messages <= len(whole) else None


class _Memory:
    def __init__(self, also: Callable[[Event], None], keys: Keys | None) -> None:
        self.sessions = Sessions()
        self._also = also
        self._keys = keys
        self._calls: dict[str, _CallState] = {}
        self._now = 0
        self._claims: dict[str, Claim | None] = {}
        """Call that has not ended -> its claim."""
        self._last: deque[tuple[int, Claim, Digest]] = deque()
        """Time of an answer, its call's claim, and the conversation with the answer."""

    def take(self, record: Record) -> None:
        try:
            event = self._unseal(decode(record), record)
        except (BadRecord, SchemaAhead):
            return  # a dead letter of the fold, and none of ours
        self._also(event)
        self._now = record.recorded_ms
        while self._last and self._last[0][0] < self._now - _UNSURE_MS:
            self._last.popleft()
        if isinstance(event.data, CallStarted) and not is_shadow(event.data.session):
            self._take_start(event, event.data)
        elif isinstance(event.data, CallEnded):
            self._take_end(event, event.data)
        elif isinstance(event.data, SessionEnded) and event.data.because in _BY_CLIENTS:
            self.sessions.end_session(event.data.session)

    def finish(self) -> None:
        """Release claims of unfinished calls, and mark the last answers as maybe undelivered."""
        for claim in self._claims.values():
            self.sessions.settle(claim, completed=False)
        self._claims.clear()
        for _, claim, answer in reversed(self._last):
            self.sessions.doubt_delivery(claim, answer)
        self._last.clear()

    def _unseal(self, event: Event, record: Record) -> Event:
        if not event.sealed or event.blob or self._keys is None:
            return event
        key = self._keys.find(event.envelope.keyid or "")
        return event if key is None else unseal_event(event, ciphertext_of(record.value), key)[0]

    def _take_start(self, event: Event, data: CallStarted) -> None:
        self.sessions.remember_call(data.call, data.session)
        conversation = None if event.blob or event.sealed else self._conversation(data)
        if conversation is None or not len(conversation):
            return
        person, keyid = event.envelope.person, event.envelope.keyid
        scope = data.client, person
        self._calls[data.call] = _CallState(scope, conversation, keyid)
        self._claims[data.call] = self.sessions.claim(data.session, scope, conversation)
        self.sessions.remember_request(data.session, data.call, conversation, person, keyid)

    def _take_end(self, event: Event, data: CallEnded) -> None:
        completed, claim = data.outcome == "completed", self._claims.pop(data.call, None)
        self.sessions.settle(claim, completed)
        known = self._calls.get(data.call)
        messages = data.content.messages if data.content else ()
        if known is None or event.blob or event.sealed:
            return
        for place, message in enumerate(messages):
            if _has_redaction([message]):
                continue
            scope, conversation, answer = (
                known.scope,
                known.conversation,
                to_client_message(message),
            )
            digests = conversation.digest_answer(answer)
            if completed and place == 0:
                self._calls[data.call] = replace(known, answer=answer)
                self.sessions.remember_answer(
                    data.session, data.call, scope, conversation, digests, known.keyid
                )
                if claim is not None:
                    self._last.append((self._now, claim, digests.loose))
            else:
                self.sessions.remember_possible_answer(data.session, scope, conversation, digests)

    def _conversation(self, data: CallStarted) -> Conversation | None:
        """Return the call's whole conversation; None if a part of it is not known exactly."""
        content = data.content
        messages, tools = (content.messages, content.tools) if content else ((), ())
        if _has_redaction(messages) or _REPLACED in repr(tools):
            return None
        own = [to_client_message(message) for message in messages]
        if data.parent is None:
            return Conversation.of(own, tools)
        parent = self._calls.get(data.parent)
        beginning = parent.beginning(data.parent_messages) if parent else None
        if beginning is None:
            return None
        if not data.parent_tools:
            beginning = replace(beginning, tools=Conversation.of((), tools).tools)
        return beginning.extend(own)


def _has_redaction(messages: Sequence[Message]) -> bool:
    return any(_REPLACED in message.model_dump_json() for message in messages)


def to_client_message(message: Message) -> dict[str, Any]:
    """Return a stored message as a client sends it."""
    if message.role != "assistant":
        return message.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    calls = [
        {"id": call.id, "function": {"name": call.name, "arguments": call.arguments}}
        for call in message.tool_calls
    ]
    return {"role": "assistant", "content": message.content, "tool_calls": calls}
