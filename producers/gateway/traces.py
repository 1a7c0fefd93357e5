"""Records calls that did not pass the gateway, from spans: POST /v1/traces -> two events per call.

This is for agents whose base URL cannot be changed. The events are those of a call without tokens,
and are never trained on. Their ids follow from the span's ids, so a repeated span changes nothing;
within a day it is not written again. Spans of other operations than model calls are accepted but
not recorded. A span without its conversation is rejected with a reason. Events have the time of
arrival, because a session's idle time counts from there.

Guarantee: after status 200 all spans are in the log, except those that the answer rejects. Not
covered: a session's spans that arrive out of order; they are stored whole.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from events.envelope import derive_id
from events.errors import KintsugiError, TooLarge
from events.messages import Message
from events.rollouts import CallEndContent, CallEnded, CallStartContent, CallStarted
from events.sqlite.receipts import Receipt
from producers.gateway.call import GatewayContext
from producers.gateway.capture.answer import make_capture
from producers.gateway.capture.digests import AnswerDigests, Conversation
from producers.gateway.capture.idempotency import IdempotentRequest, Retries
from producers.gateway.capture.recorder import About
from producers.gateway.capture.session_recovery import to_client_message
from producers.gateway.capture.sessions import Parent, SessionName
from producers.gateway.http.errors import unavailable
from producers.gateway.http.wire import (
    ExtraFields,
    ModelRequest,
    Refused,
    encode_json,
    identifier,
    parse_request,
    storable_tools,
)
from producers.gateway.large_work import (
    CONTAINER_BYTES,
    LARGE_BYTES,
    measure_work,
    run_in_thread_if_large,
)
from producers.gateway.privacy.redaction import RedactedRequest
from producers.gateway.request_context import Caller
from producers.gateway.routing.routes import choose
from producers.spans.genai import Chat, chat_of
from producers.spans.otlp import ClientSpan
from producers.spans.trace_context import TraceContext
from producers.storable import Unusable

Result = Literal["recorded", "repeated", "ignored", "rejected"]

BECAUSE: Final = "a trace told of the call, and traces have no token ids"
_UNKNOWN: Final = "unknown"
_SESSIONS_AT_ONCE: Final = 64
"""Most sessions whose spans are recorded concurrently and share an fsync."""
_SPAN_BYTES: Final = 20_000
"""A span itself is as much work as this many bytes of text."""
_TOO_DEEP: Final = "it is nested too deeply to be stored"
_LONGEST_NAME: Final = 128
_MOST_REASONS: Final = 3
_LONGEST_REASON: Final = 300
_LONGEST_ERROR: Final = 1000


@dataclass(slots=True)
class TraceResult:
    """Counts of a request's spans by outcome, and reasons of rejections."""

    counts: Counter[Result] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)

    def reject(self, why: str) -> None:
        """Count one span that is not recorded."""
        self.counts["rejected"] += 1
        self.reasons[why[:_LONGEST_REASON]] += 1

    @property
    def message(self) -> str:
        """Return the reasons, the most frequent first; empty if no span was rejected."""
        reasons = [f"{count}: {why}" for why, count in self.reasons.most_common(_MOST_REASONS)]
        more = len(self.reasons) - len(reasons)
        return "; ".join([*reasons, *([f"and {more} more reasons"] if more > 0 else [])])


@dataclass(frozen=True, slots=True)
class _SpanCall:
    span: ClientSpan
    chat: Chat
    request: ModelRequest
    redacted: RedactedRequest
    session: str
    about: About
    size: int
    """The call's work as an equivalent number of text bytes."""

    @property
    def id(self) -> str:
        return derive_id("span", self.span.trace, self.span.span)


class Traces:
    """Records spans in the log of a gateway."""

    def __init__(self, gateway: GatewayContext, retries: Retries) -> None:
        self._gateway = gateway
        self._retries = retries

    async def take(self, spans: Sequence[ClientSpan], caller: Caller) -> TraceResult:
        """Record the calls of spans. Raises Refused if the log cannot be written. If the spans are
        sent again, recorded ones are skipped."""
        result = TraceResult()
        parsed: dict[str, list[_SpanCall]] = {}
        for batch, size in _split(sorted(spans, key=lambda span: span.began)):
            # In a thread: a batch of spans is more work than a call, and calls must not wait.
            chats = await run_in_thread_if_large(size, _read_chats, batch, result)
            calls = await run_in_thread_if_large(size, self._parse_calls, chats, caller, result)
            for call in calls:
                parsed.setdefault(call.session, []).append(call)
        sessions = iter(parsed.values())

        async def work() -> None:
            # A session's calls run one after another, because each may continue the previous one.
            for calls in sessions:
                await self._record_session(calls, caller, result)

        tasks = [work() for _ in range(_SESSIONS_AT_ONCE)]
        for failure in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(failure, BaseException):
                raise failure
        return result

    def _parse_calls(
        self, chats: Sequence[tuple[ClientSpan, Chat]], caller: Caller, result: TraceResult
    ) -> list[_SpanCall]:
        """Return the calls that can be recorded; reject the others in `result`."""
        calls = []
        for span, chat in chats:
            try:
                calls.append(self._parse_call(span, chat, caller))
            except (Unusable, Refused) as error:
                result.reject(str(error))
            except RecursionError:
                result.reject(_TOO_DEEP)
        return calls

    def _parse_call(self, span: ClientSpan, chat: Chat, caller: Caller) -> _SpanCall:
        if not span.has_valid_ids:
            raise Unusable("its trace id or its span id is empty or of a wrong length")
        redaction = self._gateway.redaction
        # Parsed like a request, so bodies that the gateway would refuse are rejected here, too.
        body = encode_json(chat.request)
        request = parse_request("chat", body)
        redacted = redaction.redact_request(request)
        session = identifier(chat.conversation, "gen_ai.conversation.id") or f"trace-{span.trace}"
        person = caller.person or redaction.redact_name(identifier(chat.person, "user.id"))
        return _SpanCall(
            span,
            chat,
            request,
            redacted,
            redaction.redact_name(session) or session,
            About(person, TraceContext(span.trace, span.span).header),
            measure_work(body) + measure_work(encode_json(chat.answer)),
        )

    async def _record_session(
        self, calls: Sequence[_SpanCall], caller: Caller, result: TraceResult
    ) -> None:
        for call in calls:
            keyed = IdempotentRequest(call.id, CallEnded.TYPE)
            async with self._retries.turn(keyed):
                if await self._retries.has_receipt(keyed):
                    result.counts["repeated"] += 1
                    continue
                try:
                    await self._append(call, caller)
                except (Unusable, TooLarge) as error:
                    result.reject(str(error))
                else:
                    result.counts["recorded"] += 1

    async def _append(self, call: _SpanCall, caller: Caller) -> None:
        """Append a call. Raises Unusable, TooLarge; Refused if the log cannot be written."""
        messages, tools, conversation = await run_in_thread_if_large(call.size, _read_content, call)
        try:
            keyid = await self._gateway.recorder.keyid(call.about)
        except KintsugiError as error:
            raise _append_error(error) from error
        sessions = self._gateway.sessions
        scope = caller.client, call.about.person
        attributed = sessions.attribute(
            SessionName(call.session, "header"), scope, conversation, call.session
        )
        parent = attributed.parent if len(messages) == len(conversation) else None
        if parent is not None and parent.keyid != keyid:
            parent = None  # the person was erased since: no link to events under the old key
        start = self._build_start(call, caller, messages, tools, parent)
        size = max(call.size, self._gateway.redaction.weigh(call.size))
        end, answers = await run_in_thread_if_large(size, self._build_end, call, conversation)
        first, last = (derive_id(call.id, step) for step in ("started", "ended"))
        try:
            await self._gateway.recorder.append_all(
                [(first, None, start), (last, first, end)],
                call.about,
                Receipt(call.id, b""),
                call.size,
            )
        except TooLarge:
            sessions.settle(attributed.claim, completed=False)
            raise
        except KintsugiError as error:
            sessions.settle(attributed.claim, completed=False)
            raise _append_error(error) from error
        sessions.settle(attributed.claim, completed=end.outcome == "completed")
        sessions.remember_call(call.id, call.session)
        sessions.remember_request(call.session, call.id, conversation, scope[1], keyid)
        for heard in answers:
            sessions.remember_answer(call.session, call.id, scope, conversation, heard, keyid)

    def _build_start(
        self,
        call: _SpanCall,
        caller: Caller,
        messages: tuple[Message, ...],
        tools: tuple[dict[str, object], ...],
        parent: Parent | None,
    ) -> CallStarted:
        routing, redaction = self._gateway.routing, self._gateway.redaction
        known = 0 if parent is None else parent.messages
        same_tools = parent is not None and parent.same_tools and bool(tools)
        model = redaction.redact_text(call.chat.model or _UNKNOWN)[:_LONGEST_NAME]
        choice = choose(routing.table, routing.alias, call.request.model, call.session, {})
        return CallStarted(
            call=call.id,
            session=call.session,
            alias=choice.alias,
            base=model,
            policy=model,
            task=caller.task,
            parent=None if parent is None else parent.call,
            parent_messages=known,
            sampling=call.redacted.request.sampling,
            parent_tools=same_tools,
            client=caller.client,
            purpose=caller.purpose,
            content=CallStartContent(messages=messages[known:], tools=() if same_tools else tools),
        )

    def _build_end(
        self, call: _SpanCall, conversation: Conversation
    ) -> tuple[CallEnded, list[AnswerDigests]]:
        redaction, answer = self._gateway.redaction, make_capture(call.request, ExtraFields(), None)
        answer.whole(call.chat.answer)
        answer_record, spoken = answer.build_record(), answer.collect_texts()
        messages, because = redaction.redact_answer(answer_record.messages, spoken)
        error = call.span.error
        because = call.redacted.because or because or BECAUSE
        finish = answer_record.finish_reason and redaction.redact_text(answer_record.finish_reason)
        end = CallEnded(
            call=call.id,
            session=call.session,
            outcome="completed" if error is None else "failed",
            finish_reason=finish,
            prompt_tokens=answer_record.prompt_tokens,
            completion_tokens=answer_record.completion_tokens,
            duration_ms=int(call.span.seconds * 1000),
            untrainable_because=because,
            invalid_tool_calls=answer_record.invalid_tool_calls,
            error=None if error is None else redaction.redact_text(error)[:_LONGEST_ERROR],
            content=CallEndContent(messages=messages) if messages else None,
        )
        heard = answer_record.messages[:1] if error is None else ()
        return end, [conversation.digest_answer(to_client_message(message)) for message in heard]


def _split(spans: Sequence[ClientSpan]) -> Iterator[tuple[list[ClientSpan], int]]:
    """Yield spans in batches, each with its work as a number of text bytes."""
    batch: list[ClientSpan] = []
    size = 0
    for span in spans:
        batch.append(span)
        size += _SPAN_BYTES + _weigh(span.attributes)
        size += sum(_weigh(attributes) for _, attributes in span.events)
        if size >= LARGE_BYTES:
            yield batch, size
            batch, size = [], 0
    if batch:
        yield batch, size


def _weigh(value: Any) -> int:
    """Return the work for a value as an equivalent number of text bytes."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return CONTAINER_BYTES + sum(map(_weigh, value.values()))
    return CONTAINER_BYTES + sum(map(_weigh, value)) if isinstance(value, list) else 0


def _read_chats(spans: Sequence[ClientSpan], result: TraceResult) -> list[tuple[ClientSpan, Chat]]:
    """Return the spans of model calls with their chats; count other spans in `result`."""
    chats = []
    for span in spans:
        try:
            chat = chat_of(span)
        except Unusable as error:
            result.reject(str(error))
        except RecursionError:
            result.reject(_TOO_DEEP)
        else:
            if chat is None:
                result.counts["ignored"] += 1
            else:
                chats.append((span, chat))
    return chats


def _read_content(
    call: _SpanCall,
) -> tuple[tuple[Message, ...], tuple[dict[str, Any], ...], Conversation]:
    """Return redacted messages and tools, and the original messages' digests. Raises Unusable."""
    messages = call.redacted.request.messages()
    tools = storable_tools(call.redacted.request.tools)
    if messages is None or tools is None:
        raise Unusable("its messages or its tools are in a form that the log does not hold")
    return messages, tools, Conversation.of(call.request.raw_messages, call.request.tools)


def _append_error(error: KintsugiError) -> Refused:
    return unavailable("the spans cannot be recorded; send them again", error, 5)
