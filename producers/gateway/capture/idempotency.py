"""Answers a repeated call from the log: idempotency key -> the earlier answer.

Completed calls have a receipt, written in the transaction of CallEnded. A repetition of any other
call goes to the engine. An idempotency key belongs to one client key, user and request; a different
request with it is refused. An answer that is too large or may not be written (a redaction rule
matched) is not kept, and a repetition gets an error.

Guarantee: with one gateway per home, a recorded answer is sent again for a day without the engine,
byte by byte, also if the gateway was killed before it answered. Not covered: other homes.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import zstandard
from starlette.responses import Response
from starlette.types import Receive, Send
from starlette.types import Scope as AsgiScope

from events.canonical import exact_json, sha256
from events.errors import LogError
from events.json_text.pieces import encode_in_pieces
from events.sqlite.receipts import MAX_RECEIPT_BYTES, Receipt
from producers.gateway.capture.receipts import MAX_OVERHEAD_BYTES
from producers.gateway.capture.recorder import Recorder
from producers.gateway.http.errors import unavailable
from producers.gateway.http.wire import Refused, bad_request, encode_json
from producers.gateway.privacy.redaction import RedactedRequest

MAX_BODY_BYTES: Final = 16 << 20
"""Largest answer, in bytes, that is kept to be sent again."""

_TOO_LARGE: Final = "it was too large to be kept"


@dataclass(frozen=True, slots=True)
class IdempotentRequest:
    """A request with an idempotency key."""

    key: str
    """Idempotency key, scoped to the client and its user."""
    request: str
    """Digest of the redacted request, to recognise a different request with the same key."""

    @staticmethod
    def of(key: str, redacted: RedactedRequest) -> "IdempotentRequest":
        """Return the request with its key. Raises Refused if it is nested too deeply to compare."""
        try:
            written = encode_in_pieces(redacted.request.document, exact_json, sort_keys=True)
        except RecursionError as error:
            raise bad_request(
                "the body is nested too deeply to be compared with a later one; flatten it, or "
                "leave out the idempotency key"
            ) from error
        return IdempotentRequest(key, sha256(f"{redacted.request.endpoint} {written}"))


def receipt(
    keyed: IdempotentRequest, headers: Mapping[str, str], body: bytes, because: str | None = None
) -> Receipt:
    """Return the receipt of an answer. `because`: why its body is not kept; None: it is kept."""
    if because is None and len(body) > MAX_BODY_BYTES:
        because = _TOO_LARGE
    value = _pack(keyed, headers, b"" if because else body, because)
    if len(value) > MAX_RECEIPT_BYTES - MAX_OVERHEAD_BYTES:
        value = _pack(keyed, headers, b"", _TOO_LARGE)
    return Receipt(keyed.key, value)


def _pack(
    keyed: IdempotentRequest, headers: Mapping[str, str], body: bytes, because: str | None
) -> bytes:
    head = {"request": keyed.request, "headers": dict(headers), "because": because}
    return zstandard.compress(encode_json(head) + b"\n" + body)


@dataclass(slots=True)
class _Turn:
    request: str
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    holders: int = 0


class Retries:
    """Looks up the answers of earlier calls, and lets calls with the same key run in turn."""

    def __init__(self, receipts: Recorder, patience_seconds: float) -> None:
        self._receipts = receipts
        self._patience_seconds = patience_seconds
        self._turns: dict[str, _Turn] = {}

    @asynccontextmanager
    async def turn(self, keyed: IdempotentRequest) -> AsyncIterator[None]:
        """Wait until no call has the key. Raises Refused for another request or a long wait."""
        turn = self._turns.setdefault(keyed.key, _Turn(keyed.request))
        if turn.request != keyed.request:
            raise _another_request()
        turn.holders += 1
        try:
            await self._acquire(turn)
            try:
                yield
            finally:
                turn.lock.release()
        finally:
            turn.holders -= 1
            if not turn.holders:
                del self._turns[keyed.key]

    async def _acquire(self, turn: _Turn) -> None:
        try:
            async with asyncio.timeout(self._patience_seconds):
                await turn.lock.acquire()
        except TimeoutError as error:
            raise Refused(
                409,
                "a call with this idempotency key is still being answered; send it again later",
                retry_after=5,
            ) from error

    async def reply(self, keyed: IdempotentRequest) -> Response | None:
        """Return the earlier answer to a call, or None. Raises Refused if it was not kept."""
        value = await self._find_receipt(keyed)
        return None if value is None else _reply(keyed, zstandard.decompress(value))

    async def has_receipt(self, keyed: IdempotentRequest) -> bool:
        """Return whether there is a receipt. Raises Refused if the log cannot be read."""
        return await self._find_receipt(keyed) is not None

    async def _find_receipt(self, keyed: IdempotentRequest) -> bytes | None:
        try:
            return await asyncio.to_thread(self._receipts.receipt, keyed.key)
        except LogError as error:
            message = "the log cannot say whether this idempotency key was answered; send it again"
            raise unavailable(f"{message} later", error, 5) from error


def _reply(keyed: IdempotentRequest, unpacked: bytes) -> Response:
    head, _, body = unpacked.partition(b"\n")
    meta = json.loads(head)
    if meta["request"] != keyed.request:
        raise _another_request()
    if meta["because"] is not None:
        call = meta["headers"]["x-kintsugi-call"]
        raise Refused(
            409,
            f"this idempotency key was answered (call {call}), and the answer cannot be given "
            f"again: {meta['because']}; use a new key to ask anew",
            code="answer_not_kept",
        )
    return Response(body, 200, meta["headers"] | {"x-kintsugi-replayed": "yes"})


def _another_request() -> Refused:
    return Refused(
        422,
        "this idempotency key was used for another request; use a new key for a new request",
        param="idempotency-key",
        code="idempotency_key_reused",
    )


class Once(Response):
    """The response to a request with a key: the earlier answer, or else a new one."""

    def __init__(
        self, retries: Retries, keyed: IdempotentRequest, call: Callable[[], Response]
    ) -> None:
        # Not super().__init__: the relayed answer brings status, headers and body.
        self.background = None
        self._retries = retries
        self._keyed = keyed
        self._call = call

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        async with self._retries.turn(self._keyed):
            answer = await self._retries.reply(self._keyed) or self._call()
            await answer(scope, receive, send)
