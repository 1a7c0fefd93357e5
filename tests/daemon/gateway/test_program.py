"""`kintsugi gateway` as a process: killed at any moment, and told to stop before it answers."""

import random
import subprocess
import sys
import threading
from collections import Counter
from contextlib import closing
from pathlib import Path

import httpx2
import pytest

from events.rollouts import CallEnded, CallStarted
from events.sqlite.log import SqliteLog
from tests.daemon.commands import environment
from tests.daemon.engine.conftest import Live
from tests.daemon.gateway.program import read_log, running

HELLO = [{"role": "user", "content": "Hello"}]
CHAT = "/v1/chat/completions"


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
    data = read_log(home)
    started = Counter(one.call for one in data if isinstance(one, CallStarted))
    ended = Counter(one.call for one in data if isinstance(one, CallEnded))
    with closing(SqliteLog(home / "log.db")) as log:
        return started, ended, log.check()


@pytest.mark.processes
@pytest.mark.faults
def test_killed_at_any_moment_it_has_what_it_acknowledged_once(live: Live, tmp_path: Path) -> None:
    home = tmp_path / "home"
    told: list[str] = []
    moments = random.Random(6)
    for kill in range(4):
        with running(home, [f"{live.url}/v1"]) as program:
            clients = [Load(program.url, 10 * kill + number, told) for number in range(6)]
            for client in clients:
                client.start()
            threading.Event().wait(moments.uniform(0.3, 1.5))
            program.process.kill()
            program.process.wait()
            for client in clients:
                client.join()
    started, ended, problems = counted(home)
    assert told, "nothing was acknowledged, so nothing was tried"
    assert set(told) - set(ended) == set()
    assert set(ended) - set(started) == set()
    assert {*started.values(), *ended.values()} == {1}
    assert problems == []
    evidence = set(started) - set(ended)
    print(f"acknowledged {len(told)}, ended {len(ended)}, started and not ended {len(evidence)}")


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
