"""A home of sessions whose clients sent a span, for receivers to be sent what became of them."""

from pathlib import Path

from daemon.config.settings import Settings
from daemon.core.app import App
from daemon.sessions.closing import close_sessions
from events.codec import encode
from events.envelope import Envelope, new_id, utc_now
from events.log import now_ms
from events.rollouts import CallEnded, CallStarted, SessionEnded
from producers.spans.trace_context import TraceContext, root

SESSIONS = 12


def talk(home: Path, name: str) -> list[TraceContext]:
    """Sessions of one call each, within a client's spans, that become rollouts; the spans."""
    clients = [root(name, str(number)) for number in range(SESSIONS)]
    entries = []
    for number, client in enumerate(clients):
        call = session = f"talk-{number}"
        for data in (
            CallStarted(
                call=call, session=session, alias="agent", base="base", policy="base",
                attribution="header",
            ),
            CallEnded(
                call=call, session=session, outcome="completed", status=200,
                finish_reason="stop", prompt_tokens=5, completion_tokens=3,
            ),
            SessionEnded(session=session, because="asked"),
        ):  # fmt: skip
            envelope = Envelope(
                new_id(), data.TYPE, data.VERSION, data.key(), utc_now(),
                traceparent=client.header,
            )  # fmt: skip
            entries.append(encode(envelope, data, now_ms()).entry)
    with App(Settings(home=home)) as app:
        app.append(entries)
        close_sessions(app, utc_now())
    return clients
