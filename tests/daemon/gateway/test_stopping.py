"""A gateway that is told to stop: not ready first, nothing new, what was begun is finished, and
what cannot be is recorded."""

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from events.rollouts import CallEnded, CallStarted
from tests.daemon.gateway.program import Program, read_log, running
from tests.daemon.gateway.recording_upstream import RecordingUpstream, recording_upstream

pytestmark = pytest.mark.processes

CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}


@pytest.fixture
def engine() -> Iterator[RecordingUpstream]:
    """An engine whose answers are whole when the test says so."""
    with recording_upstream() as found:
        found.until = threading.Event()
        yield found
        found.until.set()


def recorded(home: Path) -> tuple[list[CallStarted], list[CallEnded]]:
    """What is in the log."""
    data = read_log(home)
    started = [one for one in data if isinstance(one, CallStarted)]
    return started, [one for one in data if isinstance(one, CallEnded)]


@contextmanager
def asking(program: Program, engine: RecordingUpstream) -> Iterator[dict[str, Future[str]]]:
    """A streamed call and a whole one, both under way; the text of their answers."""
    url = f"{program.url}/v1/chat/completions"
    with ThreadPoolExecutor(2) as pool:
        yield {
            "streamed": pool.submit(asked, url, stream=True),
            "whole": pool.submit(asked, url, stream=False),
        }


def asked(url: str, stream: bool) -> str:
    """The status and the body of an answer."""
    answer = httpx2.post(url, json=CHAT | {"stream": stream}, timeout=60)
    return f"{answer.status_code} {answer.text}"


def under_way(program: Program, calls: int) -> None:
    """Wait until so many calls are being answered, and recorded as begun."""
    while True:
        text = httpx2.get(f"{program.url}/metrics").text
        if f"kintsugi_gateway_calls_in_flight {calls}.0" in text:
            return
        threading.Event().wait(0.05)


def test_what_was_begun_is_finished_and_nothing_new_begun(
    engine: RecordingUpstream, tmp_path: Path
) -> None:
    assert engine.until is not None
    with running(tmp_path / "home", [engine.url]) as program:
        assert httpx2.get(f"{program.url}/readyz").status_code == 200
        with asking(program, engine) as answers:
            under_way(program, 2)
            program.process.send_signal(signal.SIGTERM)
            while (ready := httpx2.get(f"{program.url}/readyz")).status_code == 200:
                threading.Event().wait(0.02)
            assert (ready.status_code, ready.text) == (503, "stopping\n")
            assert httpx2.get(f"{program.url}/livez").status_code == 200
            refused = httpx2.post(f"{program.url}/v1/chat/completions", json=CHAT)
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) >= 1
            assert "stopping" in refused.json()["error"]["message"]
            feedback = {"session": "s", "score": 1}
            assert httpx2.post(f"{program.url}/v1/feedback", json=feedback).status_code == 200
            assert not answers["streamed"].done()
            engine.until.set()
            assert answers["streamed"].result().endswith("data: [DONE]\n\n")
            assert answers["whole"].result().startswith("200")
        assert program.process.wait(60) == 0
    started, ended = recorded(tmp_path / "home")
    assert [one.outcome for one in ended] == ["completed"] * 2
    assert {one.call for one in started} == {one.call for one in ended}


@pytest.mark.parametrize("impatient", [False, True])
def test_what_is_not_finished_in_time_is_recorded_as_aborted(
    impatient: bool, engine: RecordingUpstream, tmp_path: Path
) -> None:
    grace = 600 if impatient else 2
    toml = f"[gateway]\ngrace_seconds = {grace}\n"
    with running(tmp_path / "home", [engine.url], toml) as program:
        with asking(program, engine) as answers:
            under_way(program, 2)
            program.process.send_signal(signal.SIGTERM)
            if impatient:
                while httpx2.get(f"{program.url}/readyz").status_code == 200:
                    threading.Event().wait(0.02)
                program.process.send_signal(signal.SIGTERM)
            streamed, whole = answers["streamed"].result(), answers["whole"].result()
        assert streamed.startswith("200 data: ")
        assert "[DONE]" not in streamed
        assert "the gateway was stopped" in streamed.rstrip().rpartition("\n")[2]
        assert whole.startswith("503")
        assert "the gateway was stopped" in whole
        assert program.process.wait(60) == 0
        assert not any("Traceback" in line for line in program.said), "".join(program.said)
    started, ended = recorded(tmp_path / "home")
    assert [one.outcome for one in ended] == ["aborted"] * 2
    assert all("the gateway was stopped" in (one.error or "") for one in ended)
    assert {one.call for one in started} == {one.call for one in ended}


def test_with_nothing_to_finish_it_ends_at_once_whoever_is_connected(
    engine: RecordingUpstream, tmp_path: Path
) -> None:
    toml = "[gateway]\ngrace_seconds = 3600\n"
    with (
        running(tmp_path / "home", [engine.url], toml) as program,
        httpx2.Client() as client,
        program.connect() as silent,
        program.connect() as slow,
    ):
        assert client.get(f"{program.url}/livez").status_code == 200
        slow.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: l")
        program.process.send_signal(signal.SIGTERM)
        assert program.process.wait(60) == 0
        assert silent.recv(1) == b""
