"""Row 1: `kill -9` of the gateway at random moments while clients of all kinds talk through it.

    python -m ops.faults.gateway_kill --count 100

Each time, a new gateway starts on the same home and port. Clients continue and repeat calls that
have an idempotency key. Passes when everything acknowledged is in the log as the clients read it,
and no event and no end of a call is there twice. Offsets must be dense, and each begun stream must
have left its start.
"""

import random
import time
from pathlib import Path
from typing import Any, Final

from ops.command_line import run_command
from ops.faults.gateway_scene import scene

CLIENTS: Final = 6
LIFE_SECONDS: Final = 1.0
"""Most seconds that a gateway lives after it answers; the time is random."""


def run(count: int, folder: Path, seed: int = 0) -> dict[str, Any]:
    """Kill the gateway `count` times and audit its log."""
    moments = random.Random(seed)
    with scene(folder) as stage:
        with stage.run_talkers(CLIENTS, seed):
            stage.wait_for(acknowledged=1)
            for _ in range(count):
                time.sleep(moments.uniform(0, LIFE_SECONDS))
                stage.gateway.relaunch()
            time.sleep(LIFE_SECONDS)
        result = stage.stop_and_audit()
    passed = result.sound and result.acknowledged > 0
    return {
        "fault": "kill -9 gateway", "kills": count, "seeds": [seed], **result.report(),
        "passed": passed,
    }  # fmt: skip


if __name__ == "__main__":
    run_command(__doc__, run, count=100)
