"""The role `trace` as production runs it: the log on a broker, the tables in PostgreSQL, and a home
of its own that holds how far it came."""

import json
import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from daemon.config.settings import Settings
from daemon.core.app import App
from daemon.sessions.closing import close_sessions
from daemon.tracing.exporter import POSITION
from events.codec import encode
from events.envelope import Envelope, new_id, utc_now
from events.log import now_ms
from events.rollouts import CallEnded, CallStarted, SessionEnded
from events.streams import ROLLOUTS
from ops.kafka.broker import Broker
from producers.spans.trace_context import root
from tests.daemon.commands import run_here, start
from tests.daemon.gateway.receiver import Receiver, receiving, told

pytestmark = [pytest.mark.kafka, pytest.mark.postgres, pytest.mark.processes, pytest.mark.long]

SESSIONS = 12
"""More than there are partitions, so that events lie on several."""
PATIENCE = 120.0


def talk(app: App, name: str) -> set[str]:
    """Sessions of one call each, within a client's span, that become rollouts; their calls."""
    entries = []
    for number in range(SESSIONS):
        session = call = f"{name}-{number}"
        header = root("client", session).header
        for data in (
            CallStarted(
                call=call, session=session, alias="agent", base="base", policy="base",
                attribution="header",
            ),
            CallEnded(call=call, session=session, outcome="completed", status=200),
            SessionEnded(session=session, because="asked"),
        ):  # fmt: skip
            envelope = Envelope(
                new_id(), data.TYPE, data.VERSION, data.key(), utc_now(), traceparent=header
            )
            entries.append(encode(envelope, data, now_ms()).entry)
    app.append(entries)
    close_sessions(app, utc_now())
    return {f"{name}-{number}" for number in range(SESSIONS)}


@contextmanager
def tracing(variables: dict[str, str], folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """The role as a process; it is killed in the end, as by a power cut."""
    with (folder / "trace.log").open("ab") as said:
        process = start(["trace"], variables, cwd=folder, stdout=said, stderr=said)
    try:
        yield process
    finally:
        process.kill()
        process.wait(PATIENCE)


def until(true: Callable[[], bool], folder: Path) -> None:
    """Wait, and say what the role said where it does not come true."""
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline, (folder / "trace.log").read_text()[-2000:]
        time.sleep(0.05)


def written(home: Path) -> int:
    """How many events of `rollouts` the role has written down as sent."""
    found: dict[str, int] = json.loads((home / POSITION).read_text())
    return sum(offset for name, offset in found.items() if name.startswith(ROLLOUTS.name))


def times_sent(receiver: Receiver) -> Counter[str]:
    """By span, in how many requests it was."""
    return Counter(
        span.span_id.hex()
        for body in receiver.bodies
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    )


def calls(receiver: Receiver) -> set[str]:
    """Of which a span was taken."""
    return {str(told(span)["kintsugi.call"]) for span in receiver.named("chat agent")}


def test_killed_between_sending_and_writing_it_down_it_repeats_one_request_and_loses_none(
    own_broker: Broker, postgres_url: str, tmp_path: Path
) -> None:
    home = tmp_path / "tracer"
    with receiving() as receiver:
        there = {
            "KINTSUGI_HOME": str(home),
            "KINTSUGI_KAFKA_BOOTSTRAP_SERVERS": own_broker.bootstrap,
            "KINTSUGI_DATABASE_URL": postgres_url,
            "KINTSUGI_TRACING__ENDPOINT": receiver.url,
        }
        assert run_here(["db", "upgrade"], there).code == 0
        settings = Settings(
            home=tmp_path / "gateway",
            kafka_bootstrap_servers=own_broker.bootstrap,
            database_url=postgres_url,
        )
        with App(settings) as app:
            before = talk(app, "before")
            # It begins with what happens after its first start.
            assert run_here(["trace", "--once", "--json"], there).json["events"] == 0
            first = talk(app, "first")
            with tracing(there, tmp_path) as role:
                until(lambda: len(receiver.spans) == 2 * SESSIONS, tmp_path)
                until(lambda: written(home) == sum(app.log.end(ROLLOUTS.name)), tmp_path)
                assert os.getpriority(os.PRIO_PROCESS, role.pid) == 19
                receiver.may_answer.clear()
                second = talk(app, "second")
                until(lambda: second <= calls(receiver), tmp_path)
            taken = set(receiver.spans)
            receiver.may_answer.set()
            third = talk(app, "third")
            with tracing(there, tmp_path) as again:
                until(lambda: len(receiver.spans) == 6 * SESSIONS, tmp_path)
                again.terminate()
                assert again.wait(PATIENCE) == 0
    assert calls(receiver) == first | second | third
    assert not calls(receiver) & before
    # Every rollout goes on in its client's trace, which the ends of its calls had told.
    traces = {root("client", session).trace for session in calls(receiver)}
    assert {span.trace_id.hex() for span in receiver.named("invoke_agent agent")} == traces
    # Sent twice is what the killed one had not written down, and nothing else.
    sent = times_sent(receiver)
    repeated = {span for span, times in sent.items() if times > 1}
    assert repeated <= taken
    assert {told(receiver.spans[one]).get("kintsugi.call") for one in repeated} >= second
    firsts = [
        one for one, span in receiver.spans.items() if told(span).get("kintsugi.call") in first
    ]
    assert {sent[one] for one in firsts} == {1}
    assert max(sent.values()) == 2
