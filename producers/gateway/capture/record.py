"""What the log holds of one call (what was asked, who was chosen, what was heard -> two events).

    begin     CallStarted is appended while the engine works
    end       CallEnded is safe before the client has the whole answer
    settle    what has to be known before the next request, and need not hold up this answer

Guarantee: a call that was begun is ended once, whoever stops waiting for that, and its end is safe
after its start. Nothing is written that a rule of redaction matched. Where the disk refuses, `end`
says so and nothing is raised: what the client is told then is up to the exchange (call.py). A
mistake of ours in what makes an end is raised, and the call has ended as failed.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from events.codec import Arrays
from events.envelope import minted_id
from events.errors import KintsugiError
from events.messages import Message
from events.rollouts import (
    CallEnded,
    CallEndedContent,
    CallStarted,
    CallStartedContent,
    EventData,
    Outcome,
    Purpose,
    Routed,
)
from events.sqlite.receipts import Receipt
from producers.gateway.capture.answer import NOTHING, Capture, Captured
from producers.gateway.capture.digests import Conversation
from producers.gateway.capture.idempotency import Keyed, receipt
from producers.gateway.capture.recorder import About, Recorder
from producers.gateway.capture.session_recovery import as_sent
from producers.gateway.capture.sessions import Attributed, Parent, Sessions
from producers.gateway.capture.sessions import Scope as SessionScope
from producers.gateway.http.wire import Asked, storable_tools
from producers.gateway.metrics.registry import Metrics
from producers.gateway.privacy.redaction import Kept, Redaction, unhurried
from producers.gateway.routing.upstreams import Served

_LONGEST_ERROR: Final = 1000

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and what for."""

    client: str | None
    person: str | None = None
    task: str | None = None
    purpose: Purpose = "live"
    traceparent: str | None = None

    @property
    def scope(self) -> SessionScope:
        return self.client, self.person


@dataclass(frozen=True, slots=True)
class Arrived:
    """A request, and all that is known of it before anybody is asked."""

    asked: Asked
    kept: Kept
    """The same as it may be written."""
    conversation: Conversation
    caller: Caller
    attributed: Attributed
    keyed: Keyed | None = None
    """Of a request that may be sent again."""


@dataclass(frozen=True, slots=True)
class Answerer:
    """Who is to answer, and why."""

    alias: str
    routed: Routed | None
    served: Served
    upstream: str
    """URL of the engine that is asked first."""
    shares: Mapping[str, float] | None = None
    """Policy -> its share, where the policy was drawn among several; else None."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A whole answer as the client gets it."""

    headers: Mapping[str, str]
    body: bytes
    """Empty where the call cannot be sent again."""


@dataclass(frozen=True, slots=True)
class _Stored:
    """What was asked, as far as the log can hold it."""

    messages: tuple[Message, ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    parent: Parent | None = None
    """The call that holds the first messages."""


class Record:
    """The two events of one call."""

    def __init__(
        self,
        recorder: Recorder,
        sessions: Sessions,
        metrics: Metrics,
        redaction: Redaction,
        arrived: Arrived,
        began: float | None = None,
    ) -> None:
        """`began` is when the request arrived, by `time.monotonic`; by default now."""
        self.call = minted_id()
        """Its id."""
        self.status: int | None = None
        """HTTP status that the client gets; None until somebody has said one."""
        self.answered_by: str | None = None
        """URL of the engine that answers; None until one does."""
        self._recorder = recorder
        self._sessions = sessions
        self._metrics = metrics
        self._redaction = redaction
        self._arrived = arrived
        self._began = time.monotonic() if began is None else began
        self._start: asyncio.Task[bool] | None = None
        self._end: asyncio.Task[bool] | None = None
        self._started_event: str | None = None
        self._storable = False
        self._keyid: str | None = None
        """The id of the key that seals the events of the call; None where nothing is sealed."""
        self._after: Callable[[], Outcome] | None = None

    def another(self) -> "Record":
        """Of one more call of the same request."""
        return Record(
            self._recorder,
            self._sessions,
            self._metrics,
            self._redaction,
            self._arrived,
            self._began,
        )

    @property
    def seconds(self) -> float:
        """Since the request arrived."""
        return time.monotonic() - self._began

    @property
    def begun(self) -> bool:
        """Whether it is a call already: what was refused before is none."""
        return self._start is not None

    def begin(self, answerer: Answerer) -> None:
        """Append the start; nothing where that was done."""
        if self._start is None:
            self._start = asyncio.create_task(self._append_start(answerer))

    async def started(self) -> bool:
        """Whether the start is in the log."""
        assert self._start is not None, "a call is begun before anything is said"
        return await asyncio.shield(self._start)

    async def end(
        self,
        outcome: Outcome,
        answer: Capture,
        unproven: str | None,
        error: str | None = None,
        sent: Sent | None = None,
    ) -> bool:
        """Record how it ended; whether the whole call is in the log.

        `unproven` is why the engine's calls cannot be trained on. Only the first end counts: a
        deadline may pass while it is being recorded. What was not begun has no end. Raises what
        went wrong in reading the answer; the call is recorded as failed then.
        """
        if self._start is None:
            return False
        if self._end is None:
            ending = self._append_end(outcome, answer, unproven, error, sent)
            self._end = asyncio.create_task(ending)
        return await asyncio.shield(self._end)

    async def ended(self) -> bool:
        """Whether an end was begun; it is over then. Raises as `end` does."""
        if self._end is None:
            return False
        await self._end
        return True

    def settle(self) -> Outcome | None:
        """Let the end be known to whoever asks next; how it ended, the first time."""
        after, self._after = self._after, None
        return None if after is None else after()

    async def _append_start(self, answerer: Answerer) -> bool:
        try:
            self._keyid = await self._recorder.keyid(self._about)
        except KintsugiError as error:
            self._warn(CallStarted.TYPE, error)
            return False
        stored = self._stored()
        data = self._start_of(answerer, stored)
        self._started_event = await self._append(data)
        if self._started_event is None:
            return False
        self._sessions.placed(self.call, data.session)
        if stored.messages:
            person, conversation = self._arrived.caller.person, self._arrived.conversation
            self._sessions.started(data.session, self.call, conversation, person, self._keyid)
        return True

    def _stored(self) -> _Stored:
        kept, parent = self._arrived.kept.asked, self._arrived.attributed.parent
        messages, tools = kept.messages(), storable_tools(kept.tools)
        self._storable = messages is not None
        if messages is None or tools is None:
            return _Stored()
        if len(messages) != len(self._arrived.conversation):
            parent = None  # a rule made other messages of these
        if parent is not None and parent.keyid != self._keyid:
            parent = None  # who was erased since and came back is somebody new
        return _Stored(messages, tools, parent)

    def _start_of(self, answerer: Answerer, stored: _Stored) -> CallStarted:
        kept, caller = self._arrived.kept.asked, self._arrived.caller
        parent, tools = stored.parent, stored.tools
        known = 0 if parent is None else parent.messages
        same_tools = parent is not None and parent.same_tools and bool(tools)
        return CallStarted(
            call=self.call,
            session=self._arrived.attributed.session,
            alias=answerer.alias,
            base=answerer.served.base,
            policy=answerer.served.policy,
            task=caller.task,
            parent=None if parent is None else parent.call,
            parent_messages=known,
            stream=self._arrived.asked.stream,
            sampling=kept.sampling,
            endpoint=self._arrived.asked.endpoint,
            parent_tools=same_tools,
            attribution=self._arrived.attributed.by,
            client=caller.client,
            purpose=caller.purpose,
            upstream=answerer.upstream,
            routed=answerer.routed,
            shares=None if answerer.shares is None else dict(answerer.shares),
            content=CallStartedContent(
                messages=stored.messages[known:],
                tools=() if same_tools else tools,
                prompts=kept.prompts,
            ),
        )

    async def _append_end(
        self,
        outcome: Outcome,
        answer: Capture,
        unproven: str | None,
        error: str | None,
        sent: Sent | None,
    ) -> bool:
        started = await self.started()
        try:
            return await self._append_answer(started, outcome, answer, unproven, error, sent)
        except Exception as mistake:
            await self._append_mistake(started, mistake)
            raise

    async def _append_mistake(self, started: bool, mistake: Exception) -> None:
        """A mistake of ours is no reason for a call without an end."""
        why = f"the gateway failed: {type(mistake).__name__}"
        ended = await self._append(self._end_of("failed", NOTHING, (), why, why))
        self._after = partial(self._known, "failed", started and ended is not None, ())

    async def _append_answer(
        self,
        started: bool,
        outcome: Outcome,
        answer: Capture,
        unproven: str | None,
        error: str | None,
        sent: Sent | None,
    ) -> bool:
        found = answer.captured()
        error = None if error is None else self._redaction.text(error)[:_LONGEST_ERROR]
        messages, redacted = await self._redacted(answer, found.messages, sent)
        redacted = self._arrived.kept.because or redacted
        why = redacted or found.untrainable_because or unproven
        if outcome != "completed":
            why = error or outcome
        elif not self._storable and redacted is None:
            why = "the messages are in a form that the log does not hold"
        data = self._end_of(outcome, found, messages, why, error)
        whole = sent if started and outcome == "completed" else None
        kept = await self._receipt(whole, redacted)
        ended = await self._append(data, found.arrays if why is None else None, kept)
        recorded = started and ended is not None
        self._after = partial(self._known, outcome, recorded, found.messages)
        return recorded

    def _end_of(
        self,
        outcome: Outcome,
        found: Captured,
        messages: tuple[Message, ...],
        why: str | None,
        error: str | None,
    ) -> CallEnded:
        return CallEnded(
            call=self.call,
            session=self._arrived.attributed.session,
            outcome=outcome,
            finish_reason=found.finish_reason and self._redaction.text(found.finish_reason),
            prompt_tokens=found.prompt_tokens,
            completion_tokens=found.completion_tokens,
            duration_ms=int(self.seconds * 1000),
            trainable=why is None,
            untrainable_because=why,
            invalid_tool_calls=found.invalid_tool_calls,
            error=error,
            status=self.status,
            upstream=self.answered_by,
            content=CallEndedContent(messages=messages) if messages else None,
        )

    async def _redacted(
        self, answer: Capture, messages: tuple[Message, ...], sent: Sent | None
    ) -> tuple[tuple[Message, ...], str | None]:
        """An answer as it may be written, and why it may keep no tokens."""
        if not self._redaction.active:
            return messages, None
        spoken = list(answer.spoken())
        if self._arrived.keyed is not None and sent is not None:
            # It is kept as it was sent: fields that nothing else is read of as well.
            spoken.append(sent.body.decode(errors="replace"))
        return await unhurried(sum(map(len, spoken)), self._redaction.answer, messages, spoken)

    async def _receipt(self, whole: Sent | None, redacted: str | None) -> Receipt | None:
        """What answers the call when it is sent again."""
        keyed = self._arrived.keyed
        if keyed is None or whole is None:
            return None
        headers, body = whole.headers, whole.body
        return await unhurried(len(body), receipt, keyed, headers, body, redacted)

    def _known(self, outcome: Outcome, recorded: bool, said: Sequence[Message]) -> Outcome:
        self._metrics.ended(self._arrived.asked.endpoint, outcome, recorded, self.seconds)
        session, scope = self._arrived.attributed.session, self._arrived.caller.scope
        conversation = self._arrived.conversation
        heard = 1 if recorded and outcome == "completed" else 0
        for message in said[:heard]:
            self._sessions.answered(
                session, self.call, scope, conversation, as_sent(message), self._keyid
            )
        for message in said[heard:]:
            self._sessions.may_be_answered(session, scope, conversation, as_sent(message))
        return outcome

    @property
    def _about(self) -> About:
        return About(self._arrived.caller.person, self._arrived.caller.traceparent)

    async def _append(
        self, data: EventData, arrays: Arrays | None = None, kept: Receipt | None = None
    ) -> str | None:
        """The id of the event, which is in the log now; None when it is not."""
        try:
            with self._metrics.appending(data.STREAM, data.TYPE):
                return await self._recorder.append(
                    data, self._about, cause=self._started_event, arrays=arrays, receipt=kept
                )
        except KintsugiError as error:
            self._warn(data.TYPE, error)
            return None

    def _warn(self, event: str, error: KintsugiError) -> None:
        context = {"action": "call_not_recorded", "call": self.call}
        _logger.warning("%s of call %s: %s", event, self.call, error, extra=context)
