"""Timeouts for the gateway's clients, which uvicorn's HTTP protocol leaves out.

    a client that sends      has `seconds` for a whole request, from its first byte or from the
                             connection; then it gets an error, and the connection closes
    a client that reads      has as long to read some waiting data; then the connection closes
    a client that sends      no HTTP, or too much of it, gets an error in OpenAI's shape; its data
                             is neither repeated there nor logged

Guarantee: no client that stalls holds a connection longer. Not covered: the number of connections,
which the operating system's limit of open files bounds.
"""

import asyncio
import sys
from typing import Any, Final

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from producers.gateway.http.request_guard import TOO_LONG
from producers.gateway.http.wire import Refused, encode_json

_NO_HTTP: Final = "the request is no HTTP that is understood here; send HTTP/1.1"


class PatientConnection(H11Protocol):
    """A client's connection; the client may delay it for `seconds` at most."""

    def __init__(self, *, seconds: float, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._seconds = seconds
        self._reading: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._reading = self.loop.call_later(self._seconds, self._late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._reading, self._writing = _cancel_timer(self._reading), _cancel_timer(self._writing)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def _watch(self) -> None:
        if not self._awaits_request():
            self._reading = _cancel_timer(self._reading)
        elif self._reading is None:
            self._reading = self.loop.call_later(self._seconds, self._late)

    def _awaits_request(self) -> bool:
        if self.transport.is_closing():
            return False
        state = self.conn.their_state
        return state is h11.SEND_BODY or (state is h11.IDLE and bool(self.conn.trailing_data[0]))

    def _late(self) -> None:
        self._reading = None
        if self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]:
            self.transport.close()
            return
        self._refuse(
            Refused(
                408, f"the request was not whole after {self._seconds:g} seconds; send it again"
            )
        )

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._writing is None:
            self._writing = self.loop.call_later(self._seconds, self.transport.abort)

    def resume_writing(self) -> None:
        self._writing = _cancel_timer(self._writing)
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer the present parser error; uvicorn's `msg` is ignored, as it never differs."""
        error = sys.exc_info()[1]
        # Not a server error, though h11 would answer some with 501.
        status = 431 if getattr(error, "error_status_hint", 400) == 431 else 400
        self._refuse(Refused(status, TOO_LONG if status == 431 else _NO_HTTP))

    def _refuse(self, refused: Refused) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            # Tell the application that the client has disconnected, and drop its further output.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = encode_json(refused.body())
            headers = [
                ("content-type", "application/json"),
                ("content-length", str(len(body))),
                ("connection", "close"),
            ]
            reason = STATUS_PHRASES[refused.status]
            head = h11.Response(status_code=refused.status, headers=headers, reason=reason)
            for event in (head, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


def _cancel_timer(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    if timer is not None:
        timer.cancel()
    return None
