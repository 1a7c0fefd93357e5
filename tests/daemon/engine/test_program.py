"""`python -m daemon.engine` as a process of its own."""

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest

from daemon.engine.__main__ import main

ENGINE = ("-m", "daemon.engine")
BREAKABLE = (
    "-c",
    """
import gc, signal, sys
from daemon.engine.__main__ import main

def spoil(*_):
    from daemon.engine.cache import Cache
    for cache in [one for one in gc.get_objects() if isinstance(one, Cache)]:
        cache.keys.clear()

signal.signal(signal.SIGUSR1, spoil)
sys.exit(main(sys.argv[1:]))
""",
)
"""The same program, whose engine loses its memory at a signal."""

TOLD_EARLY = (
    "-c",
    """
import asyncio, signal, sys
from daemon.engine.__main__ import main

run = asyncio.run

def told(serving):
    signal.raise_signal(signal.SIGTERM)
    run(serving)

asyncio.run = told
sys.exit(main(sys.argv[1:]))
""",
)
"""The same program, told to stop in the moment before it begins to answer."""

Start = Callable[..., tuple[subprocess.Popen[str], str]]
ASKED = {"messages": [{"role": "user", "content": "Hi"}], "ignore_eos": True, "stream": True}


@pytest.fixture
def start(checkpoint: Path) -> Iterator[Start]:
    """Start the program; returns it with its address once it serves."""
    with ExitStack() as stack:

        def run(
            *arguments: str, program: Sequence[str] = ENGINE
        ) -> tuple[subprocess.Popen[str], str]:
            command = [sys.executable, *program, "--model", str(checkpoint), "--port", "0"]
            process = stack.enter_context(
                subprocess.Popen([*command, *arguments], stderr=subprocess.PIPE, text=True)
            )
            stack.callback(process.kill)
            assert process.stderr is not None
            said = ""
            for line in process.stderr:
                said += line
                if found := re.search(r"http://\S+/v1", line):
                    return process, found[0]
            raise AssertionError(f"it ended before it served: {said}")

        yield run


@pytest.mark.long
@pytest.mark.processes
def test_it_serves_until_it_is_told_to_stop_and_finishes_what_runs(
    start: Start, adapter: Path
) -> None:
    arguments = ["--name", "small", "--lora", f"one={adapter}", "--slots", "2", "--threads", "1"]
    process, url = start(*arguments, "--length", "1024")
    assert [one["id"] for one in httpx2.get(f"{url}/models").json()["data"]] == ["small", "one"]
    body = {**ASKED, "model": "one", "max_tokens": 300}
    with httpx2.stream("POST", f"{url}/chat/completions", json=body, timeout=60) as response:
        lines = response.iter_lines()
        next(lines)
        process.send_signal(signal.SIGTERM)
        rest = [line for line in lines if line]
    assert rest[-1] == "data: [DONE]"
    assert json.loads(rest[-2][6:])["choices"][0]["finish_reason"] == "length"
    assert process.wait(30) == 0
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(f"{url}/models")


@pytest.mark.long
@pytest.mark.processes
def test_told_to_stop_before_it_answers_it_ends(start: Start) -> None:
    process, _ = start(program=TOLD_EARLY)
    assert process.wait(30) == 0


@pytest.mark.long
@pytest.mark.processes
def test_what_does_not_end_in_time_is_cut_off(start: Start) -> None:
    process, url = start("--grace", "1")
    body = {**ASKED, "max_tokens": 4000}
    with httpx2.stream("POST", f"{url}/chat/completions", json=body, timeout=60) as response:
        lines = response.iter_lines()
        next(lines)
        process.send_signal(signal.SIGTERM)
        with pytest.raises(httpx2.RemoteProtocolError):
            list(lines)
    assert process.wait(30) == 0


@pytest.mark.long
@pytest.mark.processes
def test_an_engine_that_breaks_ends_the_program(start: Start) -> None:
    process, url = start(program=BREAKABLE)
    body = {**ASKED, "max_tokens": 4000}
    with httpx2.stream("POST", f"{url}/chat/completions", json=body, timeout=60) as response:
        lines = response.iter_lines()
        next(lines)
        process.send_signal(signal.SIGUSR1)
        rest = [line for line in lines if line]
    assert "the engine failed" in json.loads(rest[-1][6:])["error"]["message"]
    assert process.wait(30) == 1
    assert process.stderr is not None
    assert "daemon.engine: the engine failed: " in process.stderr.read()


def test_a_port_that_is_taken_is_named(
    checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["--model", str(checkpoint), "--port", str(port)]) == 1
    assert f"cannot listen on 127.0.0.1 port {port}" in capsys.readouterr().err


def test_a_folder_without_a_checkpoint_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--model", str(tmp_path), "--port", "0"]) == 1
    assert f"{tmp_path} holds no checkpoint" in capsys.readouterr().err


def test_an_adapter_that_is_bad_is_named_before_anything_is_served(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lora = f"bad={tmp_path}"
    assert main(["--model", str(checkpoint), "--port", "0", "--lora", lora]) == 1
    assert "adapter_config.json cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [[], ["--slots", "0"], ["--lora", "one"], ["--length", "x"]])
def test_wrong_usage_is_told_at_once(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as found:
        main([*wrong, *(["--model", "m"] if wrong else [])])
    assert found.value.code == 2
    assert "usage: python -m daemon.engine" in capsys.readouterr().err
