"""One trace from a client's request to the route: spans that are made of the log."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from consumers.reads.scheduling import CYCLE_START
from daemon.config.settings import ConfigurationError, Settings
from daemon.core.app import App
from daemon.core.decision_log import Act, Decisions
from daemon.engine.chat import Chat
from daemon.engine.policy import Policy
from daemon.sessions.closing import close_sessions
from daemon.tracing.exporter import Exporter, open_sender
from daemon.tracing.otlp_client import Sender, SendResult
from events.codec import decode, encode
from events.envelope import Envelope, utc_now
from events.errors import AheadOfLog
from events.learning import CycleStarted, DirectiveWritten, JobRequested
from events.rollouts import CallStarted, SessionEnded
from events.streams import LEARNING
from producers.spans import conventions as names
from tests.daemon.conftest import Kintsugi, clean, home, kintsugi
from tests.daemon.engine.conftest import Live, listening
from tests.daemon.gateway.conftest import fronting
from tests.daemon.gateway.journey import OF_CYCLE, SECRET, ask, opened, traffic, whole_loop
from tests.daemon.gateway.receiver import Receiver, messages, receiving, told

__all__ = ["clean", "home", "kintsugi"]


@pytest.fixture(scope="module")
def engine(checkpoint: Path, served_chat: Chat) -> Iterator[Live]:
    """An engine whose model is called as the written cycle expects it."""
    with listening(Policy.load(checkpoint, "base"), served_chat) as found:
        yield found


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """Takes everything."""
    with receiving() as found:
        yield found


def export(
    app: App, receiver: Receiver, content: bool = False, compressed: bool = False
) -> SendResult:
    """Everything that the log tells."""
    with Sender(receiver.url, {"x-api-key": "k"}, compressed) as sender:
        exporter = Exporter(app, sender, content)
        exporter.rewind()
        exporter.catch_up(threading.Event())
        return exporter.counters.sent


def test_one_trace_runs_from_the_request_to_the_route(
    home: Path, engine: Live, receiver: Receiver
) -> None:
    client = traffic(home, engine)
    with opened(home) as app:
        whole_loop(app)
        sent = export(app, receiver)
        events = [decode(record) for record in app.log.read(LEARNING.name, 0, 0)]
    assert sent == SendResult(taken=len(receiver.spans))
    # The log says it too: whoever reads these events goes on in the trace.
    headers = {
        event.data.TYPE: event.envelope.traceparent or ""
        for event in events
        if isinstance(event.data, CycleStarted | DirectiveWritten | JobRequested)
    }
    assert len(headers) == 3
    assert {header.split("-")[1] for header in headers.values()} == {client.trace}
    of_client = {i: s for i, s in receiver.spans.items() if s.trace_id.hex() == client.trace}
    others = {i: s for i, s in receiver.spans.items() if i not in of_client}
    assert {span.name for span in of_client.values()} == OF_CYCLE | {
        "chat agent", "invoke_agent agent",
    }  # fmt: skip
    assert sorted(span.name for span in others.values()) == [
        "chat agent", "chat agent", "invoke_agent agent",
    ]  # fmt: skip
    # Whatever a span is a child of is there, in the same trace; but for the client's own.
    parents = {span.parent_span_id.hex() for span in of_client.values()}
    assert parents <= {*of_client, client.span}
    (root,) = [i for i, span in others.items() if not span.parent_span_id]
    assert {span.parent_span_id.hex() for span in others.values()} == {"", root}
    (cycle,) = receiver.named("cycle agent")
    assert told(cycle)["kintsugi.outcome"] == "promoted"
    (link,) = cycle.links
    assert (link.span_id.hex(), link.trace_id) == (root, others[root].trace_id)
    assert of_client[cycle.parent_span_id.hex()].name == "invoke_agent agent"
    (train,) = receiver.named("train agent")
    assert train.parent_span_id == cycle.span_id
    assert SECRET.encode() not in b"".join(receiver.bodies)
    assert {headers["x-api-key"] for headers in receiver.headers} == {"k"}


def test_where_nobody_traces_no_decision_reads_the_span_of_its_cause(
    home: Path, engine: Live, receiver: Receiver
) -> None:
    client = traffic(home, engine)
    with opened(home, endpoint="") as app:
        whole_loop(app)
        events = [decode(record) for record in app.log.read(LEARNING.name, 0, 0)]
        # Whoever begins to trace later gets the one trace from the log as it is.
        export(app, receiver)
    headed = [event for event in events if event.envelope.traceparent]
    assert [event.data.TYPE for event in headed] == [CycleStarted.TYPE]
    names_of = {s.name for s in receiver.spans.values() if s.trace_id.hex() == client.trace}
    assert names_of >= OF_CYCLE


def test_a_call_says_what_the_conventions_ask_for(
    home: Path, engine: Live, receiver: Receiver
) -> None:
    traffic(home, engine)
    with opened(home) as app:
        close_sessions(app, utc_now())
        export(app, receiver)
    chat = receiver.named("chat agent")[0]
    found = told(chat)
    assert (chat.kind, chat.status.code) == (3, 0)
    assert found[names.OPERATION] == "chat"
    assert (found[names.REQUEST_MODEL], found[names.RESPONSE_MODEL]) == ("agent", "base")
    assert found[names.CONVERSATION] == "talk-1"
    assert (found[names.OUTPUT_TOKENS], found[names.STATUS]) == (4, 200)
    assert found[names.INPUT_TOKENS] > 0
    assert found["gen_ai.request.max_tokens"] == 4
    assert found["kintsugi.trainable"] is True
    assert found[names.SERVER] == "127.0.0.1"
    assert 0 < chat.end_time_unix_nano - chat.start_time_unix_nano < 60e9


def test_sent_again_after_a_rebuild_every_span_is_the_same(
    home: Path, engine: Live, receiver: Receiver, kintsugi: Kintsugi
) -> None:
    traffic(home, engine)
    with opened(home) as app:
        close_sessions(app, utc_now())
        first = export(app, receiver)
    assert kintsugi("rebuild", "--json").json["equal"] is True
    with opened(home) as app:
        # `spans` refuses an id that names two.
        assert export(app, receiver) == first
    assert len(receiver.spans) == first.taken


def test_what_was_said_is_sent_where_it_is_wanted_and_read_by_the_gateway(
    home: Path, engine: Live, receiver: Receiver, tmp_path: Path
) -> None:
    traffic(home, engine)
    with opened(home) as app:
        close_sessions(app, utc_now())
        export(app, receiver, content=True)
        (tmp_path / "other").mkdir()
        with fronting(tmp_path / "other", [engine.url]) as other, Sender(
            f"{other.url}/v1/traces", {}
        ) as sender:  # fmt: skip
            exporter = Exporter(app, sender, content=True)
            exporter.rewind()
            exporter.catch_up(threading.Event())
            started, ended = other.started(), other.ended()
    second = receiver.named("chat agent")[1]
    asked = messages(second, names.INPUT)
    assert [message["role"] for message in asked] == ["user", "assistant", "user"]
    assert asked[0]["parts"] == [{"type": "text", "content": SECRET}]
    assert exporter.counters.sent.rejected == 0
    assert sorted(one.session for one in started) == ["talk-1", "talk-1", "talk-2", "talk-2"]
    assert {one.base for one in started} == {"base"}
    assert sum(one.parent is not None for one in started) == 2
    said = {one.content.messages[0].content for one in ended if one.content}
    assert messages(second, names.OUTPUT)[0]["parts"][0]["content"] in said


def test_a_receiver_that_is_away_gets_everything_when_it_is_back(
    home: Path, engine: Live, receiver: Receiver
) -> None:
    traffic(home, engine)
    with opened(home) as app, Sender(receiver.url, {}) as sender:
        close_sessions(app, utc_now())
        exporter = Exporter(app, sender)
        exporter.rewind()
        receiver.statuses = [503, 429]
        stop = threading.Event()
        work = threading.Thread(target=exporter.catch_up, args=(stop,))
        work.start()
        # Meanwhile the gateway answers as ever.
        ask_again = traffic(home, engine)
        work.join(timeout=60)
        assert not work.is_alive()
        assert exporter.counters.retries == 2
        assert exporter.counters.unsent_ms is None
        app.settle()
        exporter.catch_up(stop)
        assert exporter.counters.sent == SendResult(taken=len(receiver.spans))
    assert ask_again.trace in {span.trace_id.hex() for span in receiver.spans.values()}


def test_stopped_while_nobody_listens_it_goes_on_where_it_was(
    home: Path, engine: Live, receiver: Receiver
) -> None:
    traffic(home, engine)
    with opened(home) as app:
        close_sessions(app, utc_now())
        stop = threading.Event()
        with Sender("http://127.0.0.1:9/v1/traces", {}) as nobody:
            exporter = Exporter(app, nobody)
            exporter.rewind()
            timer = threading.Timer(0.2, stop.set)
            timer.start()
            assert exporter.catch_up(stop) == 0
            timer.join()
            assert exporter.counters.unsent_ms is not None
        with Sender(receiver.url, {}) as sender:
            again = Exporter(app, sender)
            again.rewind()
            again.catch_up(threading.Event())
            read_on = Exporter(app, sender)
            assert read_on.catch_up(threading.Event()) == 0
    assert len(receiver.named("chat agent")) == 4


def test_what_is_refused_for_good_is_counted(home: Path, engine: Live, receiver: Receiver) -> None:
    traffic(home, engine)
    with opened(home) as app:
        close_sessions(app, utc_now())
        receiver.statuses = [400] * 100
        refused = export(app, receiver)
        assert (refused.taken, refused.refused) == (0, 6)
        receiver.statuses, receiver.most = [], 1100
        assert export(app, receiver).taken == 6
        receiver.bodies, receiver.too_large = [], 400
        assert export(app, receiver).taken == 6
        assert len(receiver.bodies) > 1
        receiver.most, receiver.rejects = 1 << 30, 1
        sent = export(app, receiver)
        assert sent.taken + sent.rejected == 6
        assert sent.rejected > 0


def test_compressed_it_is_the_same_in_fewer_bytes(
    home: Path, engine: Live, receiver: Receiver, kintsugi: Kintsugi, monkeypatch: Any
) -> None:
    traffic(home, engine)
    with opened(home) as app:
        close_sessions(app, utc_now())
        plain = export(app, receiver)
    monkeypatch.setenv("KINTSUGI_TRACING__ENDPOINT", receiver.url)
    monkeypatch.setenv("KINTSUGI_TRACING__COMPRESSION", "gzip")
    assert kintsugi("trace", "--once", "--from-start").json["taken"] == plain.taken
    assert kintsugi("trace", "--once").json["events"] == 0
    # `spans` refuses an id that names two.
    assert len(receiver.spans) == plain.taken
    assert len(receiver.bodies) == 2
    sizes = [int(headers["content-length"]) for headers in receiver.headers]
    assert sizes[1] < sizes[0] / 2


def test_a_call_whose_gateway_was_killed_has_a_span(
    home: Path, engine: Live, receiver: Receiver
) -> None:
    traffic(home, engine)
    with opened(home) as app:
        lost = CallStarted(
            call="lost", session="talk-3", alias="agent", base="base", policy="base",
            attribution="header",
        )  # fmt: skip
        for name, data in (
            ("lost-started", lost),
            ("lost-over", SessionEnded(session="talk-3", because="asked")),
        ):
            envelope = Envelope(name, data.TYPE, data.VERSION, data.key(), utc_now())
            app.append([encode(envelope, data, recorded_ms=1).entry])
        close_sessions(app, utc_now())
        export(app, receiver)
    (found,) = [s for s in receiver.named("chat agent") if told(s)["kintsugi.call"] == "lost"]
    assert (found.status.code, told(found)[names.ERROR_TYPE]) == (2, "lost")


def test_a_position_of_another_log_is_refused(home: Path, receiver: Receiver) -> None:
    home.mkdir()
    with opened(home) as app, Sender(receiver.url, {}) as sender:
        (home / "tracing.json").write_text('{"learning/0": 7}')
        Decisions(app).act(Act("ada"), CYCLE_START, {"alias": "agent"})
        with pytest.raises(AheadOfLog, match=r"learning/0 was sent up to offset 7"):
            Exporter(app, sender).catch_up(threading.Event())


def test_it_begins_with_what_happens_after_its_first_start(
    home: Path, engine: Live, receiver: Receiver
) -> None:
    home.mkdir()
    with opened(home) as app, Sender(receiver.url, {}) as sender:
        app.settle()
        exporter = Exporter(app, sender)
        assert exporter.catch_up(threading.Event()) == 0
        client = traffic(home, engine)
        app.settle()
        exporter.catch_up(threading.Event())
        assert len(receiver.named("chat agent")) == 4
        assert client.trace in {span.trace_id.hex() for span in receiver.spans.values()}
        # One that begins now has seen nothing, and sends nothing of before.
        (home / "tracing.json").unlink()
        assert Exporter(app, sender).catch_up(threading.Event()) == 0


def test_without_a_receiver_the_role_says_what_to_set(tmp_path: Path) -> None:
    with (
        App(Settings(home=tmp_path / "home")) as app,
        pytest.raises(ConfigurationError, match=r"tracing\.endpoint is empty"),
    ):
        open_sender(app)


def test_events_of_all_partitions_go_in_one_request(
    home: Path, engine: Live, receiver: Receiver
) -> None:
    traffic(home, engine)
    with opened(home) as app:
        whole_loop(app)
        export(app, receiver)
    assert len({span.trace_id for span in receiver.spans.values()}) == 2
    assert len(receiver.bodies) == 1


def test_the_span_of_a_session_is_that_since_its_last_end(
    home: Path, engine: Live, receiver: Receiver
) -> None:
    home.mkdir()
    with fronting(home, [engine.url]) as front:
        ask(front, "talk-1")
    with opened(home) as app:
        close_sessions(app, utc_now())
    with fronting(home, [engine.url]) as front:
        ask(front, "talk-1")
    with opened(home) as app:
        close_sessions(app, utc_now())
        export(app, receiver)
    whole = receiver.named("invoke_agent agent")
    chats = receiver.named("chat agent")
    assert [span.trace_id for span in chats] == [whole[n // 2].trace_id for n in range(4)]
    assert [span.parent_span_id for span in chats] == [whole[n // 2].span_id for n in range(4)]
    assert whole[0].trace_id != whole[1].trace_id


def test_off_it_costs_the_gateway_no_import() -> None:
    look = (
        "import sys, daemon.roles.gateway, daemon.roles.worker, daemon.cycle.leader\n"
        "print([m for m in sys.modules if m.startswith(('opentelemetry', 'google.protobuf'))])"
    )
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
