"""The gateway is stopped and started under load, over an engine too busy to say what it serves.

    python -m ops.faults.gateway_restart --count 20

Clients ask for the alias, on tasks of a known environment, and give up calls that are refused. The
gateway gets SIGTERM at random moments. While the next gateway starts, the engine answers calls, but
does not list its models for up to MOST_BUSY seconds. Then every session is closed and a round is
counted. Passes when everything acknowledged is in the log once and as the clients read it; no
client was told that the alias does not exist; each answered call names its base; and agents and
patterns show only the engine's model.
"""

import json
import random
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from consumers.reads import agents
from consumers.reads import rollouts as reads
from daemon.config.settings import Settings
from daemon.core.app import App
from daemon.sessions.closing import close_sessions
from envs.shop.environment import Shop
from events.envelope import utc_now
from events.rollouts import NOBODY
from ops.command_line import run_command
from ops.faults.gateway_audit import read
from ops.faults.gateway_engine import MODEL
from ops.faults.gateway_scene import Scene, scene
from producers.gateway.privacy.keys import hash_key

CLIENTS: Final = 6
ALIAS: Final = "agent"
MOST_BUSY: Final = 8.0
"""Most seconds for which the engine is busy: longer than a gateway waits for it."""
UPTIME_SECONDS: Final = 1.0
_KEY: Final = "restarted"


def run(count: int, folder: Path, seed: int = 0) -> dict[str, Any]:
    """Restart the gateway `count` times."""
    moments = random.Random(seed)
    scopes = ("call", "feedback", "trusted")
    keys = json.dumps([{"name": "graded", "sha256": hash_key(_KEY), "scopes": scopes}])
    headers = {"x-kintsugi-task": next(iter(Shop().tasks())).id}
    with scene(folder, KINTSUGI_GATEWAY__KEYS=keys) as stage:
        with stage.run_talkers(CLIENTS, seed, key=_KEY, model=ALIAS, headers=headers):
            stage.wait_for(acknowledged=1)
            for _ in range(count):
                time.sleep(moments.uniform(0, UPTIME_SECONDS))
                _restart(stage, moments.uniform(0, MOST_BUSY))
            stage.wait_for(len(stage.ledger.list_acks()) + CLIENTS)
        unknown = sum(seen.status == 404 for seen in stage.ledger.seen)
        refused = sum(seen.status == 503 for seen in stage.ledger.seen)
        result = stage.stop_and_audit()
    unnamed = _count_without_base(folder / "home")
    shown, nobodys, rollouts = _count_rollouts(folder / "home")
    passed = (
        result.sound and not unknown and not unnamed and refused > 0 and shown <= {(ALIAS, MODEL)}
    )
    return {
        "fault": "gateway restarted under load", "restarts": count, "seeds": [seed],
        **result.report(), "refused": refused, "told_the_alias_is_unknown": unknown,
        "answered_without_a_base": unnamed, "rollouts": rollouts, "rollouts_of_nobody": nobodys,
        "agents": sorted(" on ".join(pair) for pair in shown), "passed": bool(passed and shown),
    }  # fmt: skip


def _restart(stage: Scene, busy_seconds: float) -> None:
    stage.engine.listed.clear()
    try:
        stage.gateway.stop()
        stage.gateway.start(ready=False)
        time.sleep(busy_seconds)
    finally:
        stage.engine.listed.set()


def _count_without_base(home: Path) -> int:
    book = read(home)
    return sum(
        book.started[call][0].base == NOBODY for call in book.started if book.has_completion(call)
    )


def _count_rollouts(home: Path) -> tuple[set[tuple[str, str]], int, int]:
    """Return the shown (alias, base) pairs, and counts of rollouts without a policy and of all."""
    with App(Settings(home=home)) as app:
        close_sessions(app, utc_now() + timedelta(hours=1))
        app.diagnose("diagnose")
        with app.reading() as connection:
            shown = {(pair.alias, pair.base) for pair in agents.present(connection)}
            shown |= {(line.alias, line.base) for line in reads.pattern_lines(connection, None)}
            policies = Counter(line.policy for line in reads.rollout_lines(connection))
    return shown, policies[NOBODY], sum(policies.values())


if __name__ == "__main__":
    run_command(__doc__, run, count=100)
