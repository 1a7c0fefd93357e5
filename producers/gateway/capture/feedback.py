"""Feedback on a call or a session after its end: POST /v1/feedback -> event. Late feedback finds
its call in the spool by the time in the call's id. An idempotency key determines the event's id."""

from typing import Annotated, Any, Final
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from events.codec import decode
from events.envelope import derive_id, new_id
from events.errors import BadRecord
from events.json_text.size import JsonSize
from events.log import Record
from events.registry import first_problem
from events.rollouts import CallStarted, FeedbackContent, FeedbackReceived
from events.sqlite.log import SqliteLog
from events.streams import ROLLOUTS
from producers.gateway.http.wire import bad_request, check_size, identifier
from producers.gateway.privacy.redaction import Redaction
from producers.storable import readable

_Text = Annotated[str, Field(max_length=256)]

CLOCK_MS: Final = 60_000
"""Most milliseconds between the time in a call's id and the time at which it was recorded."""

_MAX_JSON: Final = JsonSize(values=1_000, containers=100, keys=100)
"""Limits of a body's JSON; valid bodies have at most 7 fields and 100 tags."""

_PORTION: Final = 200


class FeedbackBody(BaseModel):
    """The body of POST /v1/feedback."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)

    call: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    session: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    score: float | None = None
    success: bool | None = None
    comment: Annotated[str, Field(max_length=100_000)] | None = None
    tags: Annotated[list[_Text], Field(max_length=100)] = []
    idempotency_key: _Text | None = None

    @model_validator(mode="after")
    def _about_something(self) -> "FeedbackBody":
        if self.call is None and self.session is None:
            raise ValueError("neither `call` nor `session` is given; name what the feedback is of")
        if self.score is None and self.success is None and not self.comment and not self.tags:
            raise ValueError("nothing is said: give `score`, `success`, `comment` or `tags`")
        return self

    def event(self, session: str, verified: bool, redaction: Redaction) -> FeedbackReceived:
        """Return the event's data."""
        comment = None if self.comment is None else redaction.redact_text(readable(self.comment))
        return FeedbackReceived(
            session=session,
            call=redaction.redact_name(self.call),
            score=self.score,
            success=self.success,
            tags=tuple(redaction.redact_text(readable(tag)) for tag in self.tags),
            verified=verified,
            content=FeedbackContent(comment=comment) if comment else None,
        )

    def event_id(self, client: str | None, redaction: Redaction) -> str:
        """Return the event's id: the same for the same idempotency key of the same client."""
        key = redaction.redact_name(self.idempotency_key)
        return new_id() if key is None else derive_id("feedback", client or "", key)


def parse_feedback(body: bytes) -> FeedbackBody:
    """Parse a request's body. Raises Refused with the first error."""
    check_size(body, _MAX_JSON)
    try:
        feedback = FeedbackBody.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        param = str(first["loc"][0]) if first["loc"] else None
        if first["type"] == "value_error":
            raise bad_request(first["msg"].removeprefix("Value error, "), param) from error
        raise bad_request(first_problem(error), param) from error
    # Check names as in headers: a name that no call can have would never match.
    identifier(feedback.call, "call")
    identifier(feedback.session, "session")
    return feedback


def session_of(spool: SqliteLog, call: str) -> str | None:
    """Return a call's session; None if the spool lacks the call or its id has no time. Blocks;
    reads a few records of each partition. Raises LogError."""
    moment = _read_mint_ms(call)
    if moment is None:
        return None
    starts, ends = spool.start(ROLLOUTS.name), spool.end(ROLLOUTS.name)
    for partition, (start, end) in enumerate(zip(starts, ends, strict=True)):
        offset = _first_at(spool, partition, start, end, moment - CLOCK_MS)
        session = _search(spool, partition, offset, moment + CLOCK_MS, call)
        if session is not None:
            return session
    return None


def _read_mint_ms(call: str) -> int | None:
    try:
        number = UUID(call)
    except ValueError:
        return None
    return number.int >> 80 if number.version == 7 else None


def _first_at(spool: SqliteLog, partition: int, low: int, high: int, moment: int) -> int:
    """Return the first offset recorded at `moment` or later. Assumes that times never decrease."""
    while low < high:
        middle = (low + high) // 2
        (record, *_) = spool.read(ROLLOUTS.name, partition, middle, limit=1)
        if record.recorded_ms < moment:
            low = middle + 1
        else:
            high = middle
    return low


def _search(spool: SqliteLog, partition: int, offset: int, until: int, call: str) -> str | None:
    while records := spool.read(ROLLOUTS.name, partition, offset, limit=_PORTION):
        for record in records:
            if record.recorded_ms > until:
                return None
            if (session := _match_call_start(record, call)) is not None:
                return session
        offset = records[-1].offset + 1
    return None


def _match_call_start(record: Record, call: str) -> str | None:
    if not any(name == "ce_type" and raw == b"CallStarted" for name, raw in record.headers):
        return None
    try:
        data: Any = decode(record, content=False).data
    except BadRecord:
        return None  # not readable (a dead letter), so not this call
    return data.session if isinstance(data, CallStarted) and data.call == call else None


class Rate:
    """A token bucket per client: its full size is allowed at once, and refills over a minute."""

    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        self._buckets: dict[str | None, tuple[float, float]] = {}

    def wait(self, client: str | None, now: float) -> float:
        """Return seconds until the client may send; 0 takes a token. `now` is in seconds."""
        left, then = self._buckets.get(client, (float(self._per_minute), now))
        left = min(float(self._per_minute), left + (now - then) * self._per_minute / 60)
        allowed = left >= 1
        self._buckets[client] = (left - 1 if allowed else left, now)
        return 0.0 if allowed else (1 - left) * 60 / self._per_minute
