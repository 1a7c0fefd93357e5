"""Row 13 through the gateway: its disk is full, and then it is not.

    python -m ops.faults.gateway_full_disk --count 20

A home on a file system of 24 MB is filled while streams are under way, and freed again; half of the
rounds with `capture = "best_effort"`, half with `"required"`. Passes when every call acknowledged
as recorded is in the log. With best_effort, every client must be answered, and streams must take a
wrong acknowledgement back before `[DONE]`. With required, no call may be answered that cannot be
recorded. The same process must continue once there is space, and the file must be undamaged.
"""

import errno
import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count as count_up
from pathlib import Path
from typing import Any, Final

from ops.command_line import run_command
from ops.faults.gateway_load import CallAttempt, Client
from ops.faults.gateway_scene import Scene, scene
from ops.faults.small_disk import small_disk
from ops.waits import run_threads, until

DISK_BYTES: Final = 24 << 20
STREAMS: Final = 3
REFUSALS: Final = 4
PATIENCE_SECONDS: Final = 60.0
BIG: Final = 1 << 20
"""Number of characters in a request that becomes a blob."""

FILLER: Final = "filler"
_NOBODY: Final = CallAttempt([], "", stream=True)


def run(count: int, folder: Path, seed: int = 0) -> dict[str, Any]:
    """Fill and free the disk `count` times."""
    chance = random.Random(seed)
    best = _rounds(count - count // 2, folder, "best_effort", chance)
    required = _rounds(count // 2, folder, "required", chance) if count > 1 else {"passed": True}
    passed = best["passed"] and required["passed"]
    figures = {"best_effort": best, "required": required, "passed": passed}
    return {"fault": "disk full under gateway", "fillings": count, "seeds": [seed], **figures}


def _rounds(count: int, folder: Path, capture: str, chance: random.Random) -> dict[str, Any]:
    with (
        small_disk(folder / "disk", DISK_BYTES) as disk,
        scene(disk / capture, KINTSUGI_GATEWAY__CAPTURE=capture) as stage,
    ):
        for number in range(count):
            _fill_and_free(stage, disk, f"{number}", chance)
        result = stage.stop_and_audit()
    told_no = [
        attempt for attempt in stage.ledger.seen if attempt.recorded == "no" or attempt.taken_back
    ]
    taken_back = sum(attempt.taken_back for attempt in told_no)
    unanswered = sum(not attempt.has_answer for attempt in stage.ledger.seen)
    untold = sum(attempt.has_answer and not attempt.has_ack for attempt in stage.ledger.seen)
    figures = {"told_no": len(told_no), "taken_back": taken_back, "unanswered": unanswered}
    right = unanswered == 0 < taken_back if capture == "best_effort" else untold == 0 < unanswered
    passed = result.sound and right and len(told_no) >= count * REFUSALS
    return {**result.report(), **figures, "passed": passed}


def _fill_and_free(stage: Scene, disk: Path, name: str, chance: random.Random) -> None:
    with stage.client() as client:
        assert _ask(client, f"{name}.before", chance).has_ack, "there is space"
        with _under_way(stage, name):
            (disk / FILLER).touch()
            fill(disk / FILLER)
            _ask_until_refusal(client, name, chance)
        (disk / FILLER).unlink()
        numbers = count_up()
        until(
            lambda: _ask(client, f"{name}.after.{next(numbers)}", chance).has_ack,
            f"there is space again, and {name} is recorded",
            PATIENCE_SECONDS,
            every=0.1,
        )


def _ask_until_refusal(client: Client, name: str, chance: random.Random) -> None:
    """Ask until some calls were not recorded. The log's allocated space may last for a while."""
    refused, number = 0, 0
    deadline = time.monotonic() + PATIENCE_SECONDS
    while refused < REFUSALS:
        size = BIG if number % 5 == 0 else chance.randint(10, 20_000)
        refused += not _ask(client, f"{name}.full.{number}", chance, size).has_ack
        number += 1
        if time.monotonic() > deadline:
            raise RuntimeError(f"a full disk takes everything: {number} calls, {refused} refused")


def _ask(client: Client, mark: str, chance: random.Random, size: int = 100) -> CallAttempt:
    # Random text: repetitive text compresses and would fit on a full disk.
    text = chance.randbytes(size // 2).hex()
    script = {"mark": mark, "words": chance.randint(1, 20)}
    message = {"role": "user", "content": f"{mark} {text}"}
    return client.ask([message], script, stream=chance.random() < 0.5)


@contextmanager
def _under_way(stage: Scene, name: str) -> Iterator[None]:
    stage.engine.released.clear()
    marks = [f"{name}.stream.{number}" for number in range(STREAMS)]
    threads = [threading.Thread(target=_stream, args=(stage, mark)) for mark in marks]
    with run_threads(threads):
        try:
            until(
                lambda: all(
                    seen.recorded for m in marks for seen in stage.ledger.of(m) or [_NOBODY]
                ),
                "the streams are under way",
            )
            yield
        finally:
            stage.engine.released.set()


def _stream(stage: Scene, mark: str) -> None:
    with stage.client() as client:
        message = {"role": "user", "content": f"{mark} {os.urandom(20_000).hex()}"}
        client.ask([message], {"mark": mark, "words": 30, "held": True}, stream=True)


def fill(path: Path) -> None:
    """Write a file until the disk is full."""
    with path.open("wb", buffering=0) as file:
        size = 1 << 20
        while size:
            try:
                file.write(bytes(size))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                size //= 2


if __name__ == "__main__":
    run_command(__doc__, run, count=100)
