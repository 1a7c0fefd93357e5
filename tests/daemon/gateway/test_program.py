"""`kintsugi gateway` as a process: drained when it is told to stop, killed at any moment."""

import random
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest

from events.codec import decode
from events.rollouts import CallEnded, CallStarted
from events.sqlite.log import SqliteLog
from events.streams import ROLLOUTS
from tests.daemon import commands
from tests.daemon.commands import environment
from tests.daemon.engine.conftest import Live

HELLO = [{"role": "user", "content": "Hello"}]
CHAT = "/chat/completions"

Start = Callable[[], tuple["subprocess.Popen[str]", str]]


@pytest.fixture
def start(live: Live, tmp_path: Path) -> Iterator[Start]:
    """Start a gateway over the home `tmp_path / "home"`; returns it and its base URL."""
    with ExitStack() as stack:

        def run() -> tuple["subprocess.Popen[str]", str]:
            arguments = ("gateway", "--port", "0", "--upstream", f"{live.url}/v1")
            process = stack.enter_context(
                commands.start(
                    arguments, {"KINTSUGI_HOME": str(tmp_path / "home")}, stderr=subprocess.PIPE
                )
            )
            stack.callback(process.kill)
            assert process.stderr is not None
            for line in process.stderr:
                if found := re.search(r"http://\S+/v1", line):
                    return process, found[0]
            raise AssertionError("it ended before it served")

        yield run


class Load(threading.Thread):
    """A client that asks until its gateway is gone, and remembers what was acknowledged."""

    def __init__(self, url: str, seed: int, told: list[str]) -> None:
        super().__init__()
        self._url = url
        self._random = random.Random(seed)
        self._told = told

    def run(self) -> None:
        with httpx2.Client(timeout=30) as client:
            while self._asked(client):
                pass

    def _asked(self, client: httpx2.Client) -> bool:
        stream = self._random.random() < 0.5
        tokens = self._random.choice((1, 4, 24))
        body = {"messages": HELLO, "max_tokens": tokens, "stream": stream}
        try:
            answer = client.post(f"{self._url}{CHAT}", json=body)
        except httpx2.TransportError:
            return False
        whole = answer.status_code == 200 and (not stream or "data: [DONE]" in answer.text)
        if whole and "x-kintsugi-recorded: no" not in answer.text:
            assert answer.headers["x-kintsugi-recorded"] == "yes"
            self._told.append(answer.headers["x-kintsugi-call"])
        return True


def counted(home: Path) -> tuple[Counter[str], Counter[str], list[str]]:
    """How often each call was started and ended, and what is wrong with the log."""
    log = SqliteLog(home / "log.db")
    started: Counter[str] = Counter()
    ended: Counter[str] = Counter()
    for partition, end in enumerate(log.end(ROLLOUTS.name)):
        for offset in range(0, end, 500):
            for record in log.read(ROLLOUTS.name, partition, offset):
                data = decode(record).data
                if isinstance(data, CallStarted):
                    started[data.call] += 1
                elif isinstance(data, CallEnded):
                    ended[data.call] += 1
    problems = log.check()
    log.close()
    return started, ended, problems


@pytest.mark.processes
@pytest.mark.faults
def test_killed_at_any_moment_it_has_what_it_acknowledged_once(
    start: Start, tmp_path: Path
) -> None:
    told: list[str] = []
    moments = random.Random(6)
    for kill in range(8):
        process, url = start()
        clients = [Load(url, 10 * kill + number, told) for number in range(6)]
        for client in clients:
            client.start()
        threading.Event().wait(moments.uniform(0.3, 1.5))
        process.kill()
        process.wait()
        for client in clients:
            client.join()
    started, ended, problems = counted(tmp_path / "home")
    assert told, "nothing was acknowledged, so nothing was tried"
    assert set(told) - set(ended) == set()
    assert set(ended) - set(started) == set()
    assert {*started.values(), *ended.values()} == {1}
    assert problems == []
    evidence = set(started) - set(ended)
    print(f"acknowledged {len(told)}, ended {len(ended)}, started and not ended {len(evidence)}")


@pytest.mark.processes
def test_told_to_stop_it_finishes_what_it_began(start: Start, tmp_path: Path) -> None:
    process, url = start()
    body = {"messages": HELLO, "max_tokens": 300, "ignore_eos": True, "stream": True}
    with httpx2.stream("POST", f"{url}{CHAT}", json=body, timeout=60) as response:
        pieces = response.iter_raw()
        next(pieces)
        process.send_signal(signal.SIGTERM)
        rest = b"".join(pieces)
    assert rest.endswith(b"data: [DONE]\n\n")
    assert process.wait(timeout=30) == 0
    with pytest.raises(httpx2.TransportError):
        httpx2.get(f"{url}/models")
    _, ended, problems = counted(tmp_path / "home")
    assert (len(ended), problems) == (1, [])


TOLD_EARLY = """
import signal, sys
import uvloop
from daemon.__main__ import main

run = uvloop.run

def told(serving):
    signal.raise_signal(signal.SIGTERM)
    run(serving)

uvloop.run = told
sys.exit(main(sys.argv[1:]))
"""
"""The program, told to stop in the moment before it begins to answer."""


@pytest.mark.processes
def test_told_to_stop_before_it_answers_it_ends(live: Live, tmp_path: Path) -> None:
    arguments = ("gateway", "--port", "0", "--upstream", f"{live.url}/v1")
    done = subprocess.run(
        [sys.executable, "-c", TOLD_EARLY, *arguments],
        env=environment(KINTSUGI_HOME=str(tmp_path / "home")),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, "kintsugi gateway at" in done.stderr) == (0, True), done.stderr


@pytest.mark.processes
def test_beyond_this_machine_it_needs_a_key(tmp_path: Path) -> None:
    arguments = ("gateway", "--host", "0.0.0.0", "--upstream", "http://127.0.0.1:1/v1")
    done = commands.spawn(arguments, tmp_path, {"KINTSUGI_HOME": str(tmp_path / "home")})
    assert done.code == 2
    assert "gateway.keys is empty" in done.err
