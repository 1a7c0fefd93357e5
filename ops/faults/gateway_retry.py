"""Row 2: the answer is lost after the call was recorded, and the client repeats the call with its
key.

    python -m ops.faults.gateway_retry --count 100

Three ways alternate. A proxy drops the answer after reading it to its end. A proxy does so and the
gateway is killed before the client notices. The gateway is killed when the end of the call is in
the log, whatever part of the answer the client has. Passes when each call ended once, the second
attempt has the answer of the first and says that it is a replay, and the engine was asked once.
"""

import random
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from events.sqlite.log import SqliteLog
from events.streams import ROLLOUTS
from ops.command_line import run_command
from ops.faults.gateway_engine import answer_to, build_tool_call
from ops.faults.gateway_load import TOOL, CallAttempt, Client, ask_until_answer
from ops.faults.gateway_scene import Scene, scene

WAYS: Final = ("swallowed", "swallowed_and_killed", "killed_at_the_commit")


def run(count: int, folder: Path, seed: int = 0) -> dict[str, Any]:
    """Lose `count` answers, ask again, and return the driver's result."""
    chance = random.Random(seed)
    figures = dict.fromkeys(("asked_again", "other_answers", "not_replayed"), 0)
    with scene(folder) as stage:
        for number in range(count):
            way = WAYS[number % len(WAYS)]
            for name, value in _lose(stage, way, f"{seed}.{number}", chance).items():
                figures[name] += value
        result = stage.stop_and_audit()
    return {
        "fault": "lost response", "lost_answers": count, "seeds": [seed], **figures,
        **result.report(), "passed": result.sound and not any(figures.values()),
    }  # fmt: skip


def _lose(stage: Scene, way: str, mark: str, chance: random.Random) -> dict[str, int]:
    messages = [{"role": "user", "content": f"Question {mark}"}]
    script = {"mark": mark, "words": chance.randint(1, 50), "tool": chance.random() < 0.3}
    stream = chance.random() < 0.5
    fields: dict[str, Any] = {"n": chance.choice((1, 1, 2)), "tools": [TOOL]}
    headers = {"idempotency-key": f"key-{mark}", "connection": "close"}
    lossy = Lossy(stage.gateway.port, stage.gateway.relaunch if way == WAYS[1] else None)
    url = stage.gateway.url if way == WAYS[2] else lossy.url
    try:
        first, second = (Client(at, stage.ledger) for at in (url, stage.gateway.url))
        watch = _Watch(stage) if way == WAYS[2] else None
        first.ask(messages, script, stream=stream, headers=headers, **fields)
        if watch is not None:
            watch.join()
            stage.gateway.start(ready=False)
        seen = ask_until_answer(
            lambda: second.ask(messages, script, stream=stream, headers=headers, **fields),
            threading.Event(),
        )
        first.close()
        second.close()
    finally:
        lossy.close()
    return {
        "asked_again": stage.engine.heard.asked[mark] - 1,
        "other_answers": int(not _is_engines(seen, script, fields["n"])),
        "not_replayed": int(not seen.replayed),
    }


def _is_engines(seen: CallAttempt, script: dict[str, Any], choices: int) -> bool:
    if not seen.has_answer or len(seen.answers) != choices:
        return False
    for number, answer in seen.answers.items():
        calls = list(answer.calls.values())
        if script["tool"]:
            if calls != [build_tool_call(seen.messages, number)]:
                return False
        elif answer.text != answer_to(seen.messages, number, script["words"]) or calls:
            return False
    return True


class _Watch(threading.Thread):
    def __init__(self, stage: Scene) -> None:
        super().__init__(name="watch", daemon=True)
        self._gateway = stage.gateway
        self._log = SqliteLog(stage.gateway.home / "log.db", read_only=True)
        self._due = sum(self._log.end(ROLLOUTS.name)) + 2
        self.start()

    def run(self) -> None:
        while sum(self._log.end(ROLLOUTS.name)) < self._due:
            time.sleep(0.0005)
        self._gateway.kill()
        self._log.close()


class Lossy:
    """A proxy that reads each answer of the gateway to its end, calls `struck`, and drops the
    answer. Clients must ask for `connection: close`."""

    def __init__(self, port: int, struck: Callable[[], None] | None = None) -> None:
        self._gateway = ("127.0.0.1", port)
        self._struck = struck
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}/v1"
        self._thread = threading.Thread(target=self._serve, name="lossy", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Accept no more connections."""
        # # This wakes the thread in accept; closing alone does not.
        self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listening.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return  # closed
            with client, socket.create_connection(self._gateway) as gateway:
                threading.Thread(target=_pump, args=(client, gateway), daemon=True).start()
                while gateway.recv(1 << 16):
                    pass
                if self._struck is not None:
                    self._struck()
                client.shutdown(socket.SHUT_RDWR)


def _pump(client: socket.socket, gateway: socket.socket) -> None:
    try:
        while data := client.recv(1 << 16):
            gateway.sendall(data)
    except OSError:
        return  # the other thread has closed them


if __name__ == "__main__":
    run_command(__doc__, run, count=100)
