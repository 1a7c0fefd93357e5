"""The gateway is stopped for seconds in the middle of its work, and goes on.

    python -m ops.faults.gateway_pause --count 20

The driver sends SIGSTOP and later SIGCONT; swapping or a debugger pauses a process likewise.
Clients time out before most pauses end. They repeat calls that have an idempotency key, so that the
first and second attempt are answered at the same time. Passes when everything acknowledged is in
the log as it was read, once, and the same process serves everybody afterwards.
"""

import random
import time
from pathlib import Path
from typing import Any, Final

from ops.command_line import run_command
from ops.faults.gateway_scene import scene

CLIENTS: Final = 6
PATIENCE_SECONDS: Final = 1.0
PAUSE_SECONDS: Final = 3.0


def run(count: int, folder: Path, seed: int = 0) -> dict[str, Any]:
    """Pause the gateway `count` times."""
    chance = random.Random(seed)
    with scene(folder) as stage:
        with stage.run_talkers(CLIENTS, seed, timeout_seconds=PATIENCE_SECONDS):
            for _ in range(count):
                stage.wait_for(len(stage.ledger.list_acks()) + CLIENTS)
                time.sleep(chance.uniform(0, 0.2))
                stage.gateway.pause()
                time.sleep(chance.uniform(0.1, PAUSE_SECONDS))
                stage.gateway.resume()
            stage.wait_for(len(stage.ledger.list_acks()) + CLIENTS)
        gave_up = sum(seen.error is not None for seen in stage.ledger.seen)
        result = stage.stop_and_audit()
    return {
        "fault": "SIGSTOP gateway", "pauses": count, "seeds": [seed], "gave_up": gave_up,
        **result.report(), "passed": result.sound and gave_up > 0 and result.evidence == 0,
    }  # fmt: skip


if __name__ == "__main__":
    run_command(__doc__, run, count=100)
