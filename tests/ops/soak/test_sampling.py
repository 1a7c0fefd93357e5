"""What a process takes, against a process that is known to take it."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Gauge, start_http_server

from ops.soak.sampling import process, read_metrics

HELD_MIB = 64
HANDLES = 20

PROGRAM = f"""
import threading, sys
held = bytearray({HELD_MIB} << 20)
files = [open('/dev/null') for _ in range({HANDLES})]
for _ in range(3): threading.Thread(target=threading.Event().wait, daemon=True).start()
print(flush=True)
sys.stdin.read()
"""


@contextmanager
def running(program: str) -> Iterator[int]:
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        yield child.pid
        child.kill()


def test_memory_handles_and_threads_are_those_of_the_process() -> None:
    with running("print(flush=True); input()") as plain, running(PROGRAM) as greedy:
        before, after = process(plain), process(greedy)
    assert before is not None
    assert after is not None
    assert HELD_MIB <= after.memory - before.memory < HELD_MIB + 16
    assert after.handles - before.handles == HANDLES
    assert after.threads - before.threads == 3
    assert after.resident > after.memory
    assert 0 <= after.age < 60


def test_a_process_that_has_ended_takes_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        # Ended, and nobody has asked how yet.
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert process(child.pid) is None
    assert process(child.pid) is None


def test_metrics_are_added_up_over_their_labels_and_silence_is_no_figure() -> None:
    registry = CollectorRegistry()
    lag = Gauge("lag_events", "Of a fold.", ("partition",), registry=registry)
    lag.labels("0").set(3)
    lag.labels("1").set(4)
    server, thread = start_http_server(0, "127.0.0.1", registry)
    port = server.server_port
    try:
        assert read_metrics(f"http://127.0.0.1:{port}/metrics") == {"lag_events": 7.0}
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        assert read_metrics(f"http://127.0.0.1:{taken.getsockname()[1]}/metrics") == {}
