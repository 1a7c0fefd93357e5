"""Engines that die in the middle of an answer, and engines that answer wrongly.

    python -m ops.faults.gateway_upstream_kill --count 20

Clients with long streams in named sessions use one gateway with two embedded engines. One engine
after the other is killed while it answers, and started again. Then a scripted engine cuts answers
off, resets connections, sends garbage and stops sending, `count` times each. Passes when every call
ended once in the log with what its client had read of it, and no client got a truncated answer that
looks complete. A session must move to the other engine while its own is away, and return to it. The
log must say of each wrong answer that it failed or timed out.
"""

import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count as count_up
from itertools import product
from pathlib import Path
from typing import Any, Final

from ops.command_line import run_command
from ops.faults.gateway_audit import Book, read
from ops.faults.gateway_engine import FAULTS
from ops.faults.gateway_load import Ledger
from ops.faults.gateway_scene import START_SECONDS, Scene, scene
from ops.processes import ROOT, Program, find_ports
from ops.waits import run_threads, until
from producers.gateway.routing.upstreams import Upstream, Upstreams

CHECKPOINT: Final = ROOT / "daemon" / "engine" / "reference" / "checkpoint"
CLIENTS: Final = 4
STREAMS: Final = 2
LONG: Final = {"max_tokens": 1000, "ignore_eos": True}
PATIENCE_SECONDS: Final = 60.0
SILENCE_SECONDS: Final = 1.0


def run(count: int, folder: Path, seed: int = 0) -> dict[str, Any]:
    """Kill engines `count` times, then inject each scripted fault `count` times."""
    killed = _kill_engines(count, folder / "killed", random.Random(seed))
    scripted = _run_script_faults(count, folder / "scripted")
    passed = killed["passed"] and scripted["passed"]
    figures = {"killed": killed, "scripted": scripted, "passed": passed}
    return {"fault": "kill -9 engine", "kills": count, "seeds": [seed], **figures}


class RealEngine(Program):
    """The embedded engine over the reference policy."""

    def __init__(self, output: Path, name: str = "scripted", *flags: str) -> None:
        (self.port,) = find_ports(1)
        self.url = f"http://127.0.0.1:{self.port}/v1"
        port, model = str(self.port), str(CHECKPOINT)
        arguments = ("--model", model, "--port", port, "--threads", "1", "--name", name)
        super().__init__(output, "daemon.engine", *arguments, *flags)

    def start(self) -> None:
        """Start it and wait until it answers. Raise RuntimeError if it ends."""
        self.launch()
        self.wait_for_answer(f"{self.url}/models", START_SECONDS)


def _kill_engines(count: int, folder: Path, chance: random.Random) -> dict[str, Any]:
    folder.mkdir(parents=True)
    figures = {"moved": 0, "came_back": 0}
    with ExitStack() as stack:
        engines = [RealEngine(folder / f"engine-{number}.log") for number in range(2)]
        for engine in engines:
            stack.callback(engine.kill)
            engine.start()
        urls = [engine.url for engine in engines]
        stage = stack.enter_context(scene(folder, urls))
        short = {"max_tokens": 16}
        with stage.run_talkers(CLIENTS, chance.randrange(1000), extra_body=short):
            for number in range(count):
                engine = engines[number % 2]
                name, session = f"kill-{number}", _session_of(engine.url, urls)
                with _open_streams(stage, name, session):
                    time.sleep(chance.uniform(0, 0.3))
                    engine.kill()
                away = _find_engine(stage, f"{name}.away", session)
                figures["moved"] += away not in (None, engine.url)
                engine.start()
                figures["came_back"] += _returns(stage, name, session, engine.url)
        result, book = stage.stop_and_audit(), read(stage.gateway.home)
    figures["cut_off"] = len(stage.ledger.cut_off())
    figures["silent"] = len(stage.ledger.silent())
    figures["unsaid"] = _unsaid(stage.ledger, book)
    homely = figures["moved"] == figures["came_back"] == count
    all_reported = (
        figures["silent"] == figures["unsaid"] == result.evidence == 0 < figures["cut_off"]
    )
    return {**result.report(), **figures, "passed": result.sound and homely and all_reported}


def _run_script_faults(count: int, folder: Path) -> dict[str, Any]:
    wrong: list[str] = []
    with scene(folder, KINTSUGI_GATEWAY__TIMEOUT_SECONDS=f"{SILENCE_SECONDS:g}") as stage:
        with stage.client() as client:
            for number, fault, stream in product(range(count), FAULTS, (False, True)):
                mark = f"{fault}.{'stream' if stream else 'whole'}.{number}"
                script = {"mark": mark, "words": 10, "fault": fault}
                message = {"role": "user", "content": mark}
                seen = client.ask([message], script, stream=stream)
                if seen.has_answer or (seen.error is None and seen.finished):
                    wrong.append(f"{mark} looks like an answer")
            message = {"role": "user", "content": "last"}
            if not client.ask([message], {"mark": "last", "words": 3}, stream=True).has_ack:
                wrong.append("a call after all that is not answered")
        result, book = stage.stop_and_audit(), read(stage.gateway.home)
    for call, started in book.started.items():
        mark = book.question(call)
        expected = "timeout" if mark.startswith("stall") else "failed"
        outcomes = [ended.outcome for ended in book.ended.get(call, ())]
        if outcomes != [expected if mark != "last" else "completed"]:
            wrong.append(f"{mark} is {outcomes} at {started[0].upstream}")
    wrong += [f"{seen.mark} ended without a word" for seen in stage.ledger.silent()]
    passed = result.sound and not wrong
    return {**result.report(), "wrong": wrong[:20], "passed": passed}


@contextmanager
def _open_streams(stage: Scene, name: str, session: str) -> Iterator[None]:
    """Open long streams in a session and wait for their first words; join them at the end."""
    marks = [f"{name}.{number}" for number in range(STREAMS)]
    threads = [threading.Thread(target=_stream, args=(stage, mark, session)) for mark in marks]
    with run_threads(threads):
        until(
            lambda: all(any(seen.answers for seen in stage.ledger.of(mark)) for mark in marks),
            f"the streams {', '.join(marks)} begin",
            PATIENCE_SECONDS,
            every=0.005,
        )
        yield


def _stream(stage: Scene, mark: str, session: str) -> None:
    with stage.client() as client:
        message = {"role": "user", "content": mark}
        headers = {"x-kintsugi-session": session}
        client.ask([message], {"mark": mark}, stream=True, headers=headers, extra_body=LONG)


def _session_of(url: str, urls: Sequence[str]) -> str:
    names = (f"session-{number}" for number in count_up())
    upstreams = Upstreams([Upstream(base_url) for base_url in urls])
    return next(name for name in names if upstreams.for_session(name)[0].url == url)


def _find_engine(stage: Scene, mark: str, session: str) -> str | None:
    with stage.client() as client:
        message = {"role": "user", "content": mark}
        headers = {"x-kintsugi-session": session}
        body = {"max_tokens": 2}
        seen = client.ask([message], {"mark": mark}, stream=False, headers=headers, extra_body=body)
    if not seen.has_ack or seen.status != 200:
        return None
    (started,) = read(stage.gateway.home).started[str(seen.call)]
    return started.upstream


def _returns(stage: Scene, mark: str, session: str, url: str) -> bool:
    names = (f"{mark}.back.{attempt}" for attempt in count_up())
    try:
        until(
            lambda: _find_engine(stage, next(names), session) == url,
            f"{session} is back", PATIENCE_SECONDS, every=0.5,
        )  # fmt: skip
    except TimeoutError:
        return False
    return True


def _unsaid(ledger: Ledger, book: Book) -> int:
    return sum(
        all(ended.outcome != "failed" for ended in book.ended.get(str(seen.call), ()))
        for seen in ledger.cut_off()
    )


if __name__ == "__main__":
    run_command(__doc__, run, count=100)
