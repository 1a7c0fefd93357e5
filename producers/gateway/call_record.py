"""Writes the two events of one call. CallStarted is appended while the engine works, and CallEnded
before the client has the whole answer. Guarantee: a CallStarted is followed by one CallEnded, even
if the waiting task is cancelled. Text that a redaction rule matched is not written. If the log
cannot be written, `end` returns False. If building a CallEnded raises, the call is recorded as
failed, and the error is raised."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from events.codec import Arrays
from events.envelope import new_id
from events.errors import KintsugiError
from events.messages import Message
from events.rollouts import (
    CallEndContent,
    CallEnded,
    CallStartContent,
    CallStarted,
    EventData,
    HoldoutDraw,
    MemberChoice,
    Outcome,
    Routed,
    has_unknown_model,
    hash_model_name,
)
from events.sqlite.receipts import Receipt
from producers.gateway.capture.answer import NOTHING, AnswerRecord, Capture
from producers.gateway.capture.digests import AnswerDigests
from producers.gateway.capture.idempotency import receipt as pack_receipt
from producers.gateway.capture.recorder import About, Recorder
from producers.gateway.capture.session_recovery import to_client_message
from producers.gateway.capture.sessions import CallAttribution, Parent, Sessions
from producers.gateway.http.sampling_fields import Rule, explain_rules
from producers.gateway.http.wire import storable_tools
from producers.gateway.large_work import run_in_thread_if_large
from producers.gateway.metrics.registry import Metrics
from producers.gateway.privacy.redaction import Redaction
from producers.gateway.request_context import RequestContext
from producers.gateway.routing.upstreams import EngineModel

_LONGEST_ERROR: Final = 1000

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServedBy:
    """The model and engine to which a call is routed, and the reason."""

    alias: str
    routed: Routed | None
    served: EngineModel
    upstream: str
    """URL of the engine that is asked first."""
    shares: Mapping[str, float] | None = None
    """Policy -> its share if the policy was drawn among several; else None."""
    holdout: HoldoutDraw | None = None
    member: MemberChoice | None = None


@dataclass(frozen=True, slots=True)
class ClientAnswer:
    """A complete answer as the client gets it."""

    headers: Mapping[str, str]
    body: bytes
    """The answer's bytes; a stream's are only kept for a call with an idempotency key."""


@dataclass(frozen=True, slots=True)
class _LogContent:
    messages: tuple[Message, ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    parent: Parent | None = None
    """Earlier call whose events hold the first messages; None: all are stored here."""


class Record:
    """The two events of one call."""

    def __init__(
        self,
        recorder: Recorder,
        sessions: Sessions,
        metrics: Metrics,
        redaction: Redaction,
        context: RequestContext,
        attributed: CallAttribution,
        began: float | None = None,
    ) -> None:
        """`began`: arrival of the request by `time.monotonic`; default: now."""
        self.call = new_id()
        self.status: int | None = None
        self.upstream: str | None = None
        self._recorder = recorder
        self._sessions = sessions
        self._metrics = metrics
        self._redaction = redaction
        self._context = context
        self._attributed = attributed
        self._began = time.monotonic() if began is None else began
        self._start: asyncio.Task[bool] | None = None
        self._end: asyncio.Task[bool] | None = None
        self._start_event: str | None = None
        self._storable = False
        self._rules: Sequence[Rule] = ()
        """Redaction rules that matched the request, for which the answer is untrainable."""
        self._keyid: str | None = None
        """Id of the key that seals the call's events; None if they are not sealed."""
        self._report: Callable[[], Outcome] | None = None

    def make_next(self) -> "Record":
        """Return a new record for another call of the same request."""
        return Record(
            self._recorder,
            self._sessions,
            self._metrics,
            self._redaction,
            self._context,
            self._attributed,
            self._began,
        )

    @property
    def seconds(self) -> float:
        """Return the seconds since the request arrived."""
        return time.monotonic() - self._began

    @property
    def has_start(self) -> bool:
        """Return whether CallStarted was or is being appended; not for a refused request."""
        return self._start is not None

    def begin(self, served_by: ServedBy) -> None:
        """Begin to append CallStarted, unless that was done before."""
        if self._start is None:
            self._start = asyncio.create_task(self._append_start(served_by))

    async def wait_for_start(self) -> bool:
        """Wait for CallStarted and return whether it is in the log."""
        assert self._start is not None, "a call is begun before it is answered"
        return await asyncio.shield(self._start)

    async def end(
        self,
        outcome: Outcome,
        answer: Capture,
        unproven: str | None,
        error: str | None = None,
        client_answer: ClientAnswer | None = None,
    ) -> bool:
        """Record the call's end; return whether the whole call is in the log. `unproven`: why the
        engine's answers cannot be trained on. Only the first end after `begin` is recorded. Raises
        errors of reading the answer, after the call was recorded as failed."""
        if self._start is None:
            return False
        if self._end is None:
            ending = self._append_end(outcome, answer, unproven, error, client_answer)
            self._end = asyncio.create_task(ending)
        return await asyncio.shield(self._end)

    async def wait_for_end(self) -> bool:
        """Wait for a begun `end`; return False if none was begun. Raises as `end` does."""
        if self._end is None:
            return False
        await self._end
        return True

    def settle(self) -> Outcome | None:
        """Report the end to sessions and metrics and return the outcome; None at later calls."""
        after, self._report = self._report, None
        return None if after is None else after()

    async def _append_start(self, served_by: ServedBy) -> bool:
        try:
            self._keyid = await self._recorder.keyid(self._about)
        except KintsugiError as error:
            self._warn(CallStarted.TYPE, error)
            return False
        size = self._context.request.size
        log_content = await run_in_thread_if_large(size, self._build_log_content)
        data = await run_in_thread_if_large(size, self._build_start, served_by, log_content)
        self._start_event = await self._append(data, size=size)
        if self._start_event is None:
            return False
        self._sessions.remember_call(self.call, data.session)
        if log_content.messages:
            person, conversation = self._context.caller.person, self._context.conversation
            self._sessions.remember_request(
                data.session, self.call, conversation, person, self._keyid
            )
        return True

    def _build_log_content(self) -> _LogContent:
        redacted, parent = self._context.redacted.request, self._attributed.parent
        messages, tools = redacted.messages(), storable_tools(redacted.tools)
        self._storable = messages is not None
        if messages is None or tools is None:
            return _LogContent()
        if len(messages) != len(self._context.conversation):
            parent = None  # redaction changed the number of messages
        if parent is not None and parent.keyid != self._keyid:
            parent = None  # the person was erased since: no link to events under the old key
        return _LogContent(messages, tools, parent)

    def _name_policy(self, served: EngineModel) -> str:
        """Return the stored policy name. If the call is sealed, an unknown name is hashed."""
        if self._keyid is None or not has_unknown_model(served.base, served.policy):
            return served.policy
        return hash_model_name(served.policy)

    def _build_start(self, served_by: ServedBy, log_content: _LogContent) -> CallStarted:
        redacted, caller = self._context.redacted.request, self._context.caller
        parent, tools = log_content.parent, log_content.tools
        known = 0 if parent is None else parent.messages
        same_tools = parent is not None and parent.same_tools and bool(tools)
        return CallStarted(
            call=self.call,
            session=self._attributed.session,
            alias=served_by.alias,
            base=served_by.served.base,
            policy=self._name_policy(served_by.served),
            task=caller.task,
            parent=None if parent is None else parent.call,
            parent_messages=known,
            stream=self._context.request.stream,
            sampling=redacted.sampling,
            endpoint=self._context.request.endpoint,
            parent_tools=same_tools,
            attribution=self._attributed.by,
            client=caller.client,
            purpose=caller.purpose,
            upstream=served_by.upstream,
            routed=served_by.routed,
            shares=None if served_by.shares is None else dict(served_by.shares),
            holdout=served_by.holdout,
            member=served_by.member,
            content=CallStartContent(
                messages=log_content.messages[known:],
                tools=() if same_tools else tools,
                prompts=redacted.prompts,
            ),
        )

    async def _append_end(
        self,
        outcome: Outcome,
        answer: Capture,
        unproven: str | None,
        error: str | None,
        client_answer: ClientAnswer | None,
    ) -> bool:
        started = await self.wait_for_start()
        try:
            return await self._append_answer(
                started, outcome, answer, unproven, error, client_answer
            )
        except Exception as bug:
            # Even after a bug of the gateway, the call must get an end.
            why = f"the gateway failed: {type(bug).__name__}"
            event = await self._append(self._build_end("failed", NOTHING, (), why, why))
            recorded = started and event is not None
            self._report = partial(self._report_end, "failed", recorded, (), ())
            raise

    async def _append_answer(
        self,
        started: bool,
        outcome: Outcome,
        answer: Capture,
        unproven: str | None,
        error: str | None,
        client_answer: ClientAnswer | None,
    ) -> bool:
        answer_record = await run_in_thread_if_large(answer.held, answer.build_record)
        error = None if error is None else self._redaction.redact_text(error)[:_LONGEST_ERROR]
        messages, redacted = await self._redact_answer(
            answer, answer_record.messages, client_answer
        )
        redacted = self._context.redacted.because or redacted
        request = self._context.request
        self._rules = await run_in_thread_if_large(request.size, request.find_rules)
        why = redacted or explain_rules(self._rules)
        why = why or answer_record.untrainable_because or unproven
        if outcome != "completed":
            why = error or outcome
        elif not self._storable and redacted is None:
            why = "the messages are in a form that the log does not hold"
        data = await run_in_thread_if_large(
            answer.held, self._build_end, outcome, answer_record, messages, why, error
        )
        whole = client_answer if started and outcome == "completed" else None
        receipt = await self._build_receipt(whole, redacted)
        event = await self._append(
            data, answer_record.arrays if why is None else None, receipt, answer.held
        )
        recorded = started and event is not None
        answers, merged = answer_record.messages, answer_record.merged
        heard = await run_in_thread_if_large(answer.held, self._digest_answers, answers)
        joined = self._digest_answers(() if merged is None else (merged,))
        self._report = partial(self._report_end, outcome, recorded, heard, joined)
        return recorded

    def _build_end(
        self,
        outcome: Outcome,
        answer_record: AnswerRecord,
        messages: tuple[Message, ...],
        why: str | None,
        error: str | None,
    ) -> CallEnded:
        return CallEnded(
            call=self.call,
            session=self._attributed.session,
            outcome=outcome,
            finish_reason=answer_record.finish_reason
            and self._redaction.redact_text(answer_record.finish_reason),
            prompt_tokens=answer_record.prompt_tokens,
            completion_tokens=answer_record.completion_tokens,
            duration_ms=int(self.seconds * 1000),
            trainable=why is None,
            untrainable_because=why,
            invalid_tool_calls=answer_record.invalid_tool_calls,
            error=error,
            status=self.status,
            upstream=self.upstream,
            content=CallEndContent(messages=messages) if messages else None,
        )

    async def _redact_answer(
        self, answer: Capture, messages: tuple[Message, ...], client_answer: ClientAnswer | None
    ) -> tuple[tuple[Message, ...], str | None]:
        """Return the redacted answer, and why its tokens may not be kept (None: they may)."""
        if not self._redaction.active:
            return messages, None
        spoken = list(await run_in_thread_if_large(answer.held, answer.collect_texts))
        if self._context.retry is not None and client_answer is not None:
            # The receipt holds the whole body, including fields that the capture does not read.
            spoken.append(client_answer.body.decode(errors="replace"))
        return await run_in_thread_if_large(
            self._redaction.weigh(sum(map(len, spoken))),
            self._redaction.redact_answer,
            messages,
            spoken,
        )

    async def _build_receipt(
        self, whole: ClientAnswer | None, redacted: str | None
    ) -> Receipt | None:
        retry = self._context.retry
        if retry is None or whole is None:
            return None
        headers, body = whole.headers, whole.body
        return await run_in_thread_if_large(len(body), pack_receipt, retry, headers, body, redacted)

    def _digest_answers(self, messages: Sequence[Message]) -> list[AnswerDigests]:
        conversation = self._context.conversation
        return [conversation.digest_answer(to_client_message(message)) for message in messages]

    def _report_end(
        self,
        outcome: Outcome,
        recorded: bool,
        answers: Sequence[AnswerDigests],
        merged: Sequence[AnswerDigests],
    ) -> Outcome:
        self._metrics.count_call(self._context.request.endpoint, outcome, recorded, self.seconds)
        self._metrics.count_rules({rule.label for rule in self._rules})
        session, scope = self._attributed.session, self._context.caller.scope
        conversation = self._context.conversation
        heard = 1 if recorded and outcome == "completed" else 0
        for answer in answers[:heard]:
            self._sessions.remember_answer(
                session, self.call, scope, conversation, answer, self._keyid
            )
        for answer in merged[:heard]:
            self._sessions.remember_answer_by_index(session, scope, conversation, answer)
        for answer in answers[heard:]:
            self._sessions.remember_possible_answer(session, scope, conversation, answer)
        return outcome

    @property
    def _about(self) -> About:
        return About(self._context.caller.person, self._context.caller.traceparent)

    async def _append(
        self,
        data: EventData,
        arrays: Arrays | None = None,
        receipt: Receipt | None = None,
        size: int = 0,
    ) -> str | None:
        """Append about `size` bytes; return the event's id, or None if it is not in the log."""
        try:
            with self._metrics.time_append(data.STREAM, data.TYPE):
                return await self._recorder.append(
                    data,
                    self._about,
                    cause=self._start_event,
                    arrays=arrays,
                    receipt=receipt,
                    size=size,
                )
        except KintsugiError as error:
            self._warn(data.TYPE, error)
            return None

    def _warn(self, event: str, error: KintsugiError) -> None:
        context = {"action": "call_not_recorded", "call": self.call}
        _logger.warning("%s of call %s: %s", event, self.call, error, extra=context)
