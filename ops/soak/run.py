"""One soak: start the stack, load it, kill processes, sample, wait until it is idle, and audit.

The stack is that of whole loops under faults (ops/faults/loop_scene.py) under `kintsugi up`. After
the last trouble the customers leave, and everything has to come to rest: nothing to ship or to
fold, and no open cycle. The roles' metrics must then equal log and tables. After a stop the log is
audited against the clients' records, and folded again.
"""

import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from consumers.database import DatabaseUnavailable
from consumers.reads import learning
from daemon.core.health import events_in, lag, read_fold_state
from daemon.metrics.exposition import port_of
from events.errors import LogError
from ops.demo.place import ALIAS
from ops.faults.gateway_audit import audit
from ops.faults.loop_audit import count_decisions, wrong
from ops.faults.loop_kill import LogKind, Servers, servers_of, stop_all
from ops.faults.loop_scene import Backends, Scene, scene
from ops.faults.scene import count_spool_backlog
from ops.processes import find_ports
from ops.soak.sampling import Sampler, read_metrics
from ops.soak.traffic import Traffic
from ops.soak.troubles import Trouble, troubles
from ops.soak.verdict import judge_samples
from producers.gateway.privacy.keys import hash_key, mint_key

TEMPLATE: Final = Path(__file__).parent / "soak.toml"
EVERY_SECONDS: Final = 10.0
PER_MINUTE: Final = 45.0
START_SECONDS: Final = 300.0
REST_SECONDS: Final = 1200.0
STILL_SECONDS: Final = 45.0
"""Seconds without events that count as rest: more than a cool-down or a session's idle time."""
DECISIVE_MINUTES: Final = 60.0
"""Minutes from which on a run must reach a verdict on every figure."""

_LOOK_SECONDS: Final = 0.5


def soak(minutes: float, folder: Path, seed: int = 0, kind: LogKind = "sqlite") -> dict[str, Any]:
    """Run a soak and return its figures; `wrong` and `grows` in them must be empty."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        servers = stack.enter_context(servers_of(kind, folder))
        backing = Backends() if servers is None else servers.fresh()
        key = mint_key()
        stage = stack.enter_context(
            scene(
                folder, seed, backing, whole=True, template=TEMPLATE, per_minute=PER_MINUTE,
                strangers=hash_key(key), metrics_port=find_ports(4)[0],
            )
        )  # fmt: skip
        url = f"http://127.0.0.1:{stage.settings.gateway.port}/v1/"
        return _Run(stage, servers, Traffic(url, key, seed), folder).whole(minutes * 60, seed, kind)


class _Run:
    def __init__(
        self, stage: Scene, servers: Servers | None, traffic: Traffic, folder: Path
    ) -> None:
        self._stage = stage
        self._servers = servers
        self._traffic = traffic
        self._samples = folder / "samples.jsonl"
        self._kills: Counter[str] = Counter()
        self._outages: Counter[str] = Counter()
        self._away_seconds = 0.0

    def whole(self, seconds: float, seed: int, kind: LogKind) -> dict[str, Any]:
        """Run the soak from the first answer to the audit; return its report."""
        self._stage.wait_for_an_answer(START_SECONDS)
        self._traffic.start()
        broker = None if self._servers is None else self._servers.broker.data
        with Sampler(self._stage, EVERY_SECONDS, self._samples, broker) as sampler:
            self._trouble(seconds, seed)
            samples = list(sampler.samples)
            print_progress("the customers leave")
            self._stage.customers.leave()
            self._traffic.leave()
            rest = self._rest()
        verdict = judge_samples(samples, seconds)
        problems = [*rest.pop("wrong"), *self._traffic.wrong(), *self._stop_and_audit()]
        missing = verdict.unknown if seconds >= DECISIVE_MINUTES * 60 else []
        return {
            "minutes": round(seconds / 60, 1), "seed": seed, "log": kind,
            **self._figures(), **verdict.document(), "rest": rest, "unknown": verdict.unknown,
            "grows": verdict.grows, "wrong": problems,
            "passed": not (problems or verdict.grows or missing),
        }  # fmt: skip

    def _trouble(self, seconds: float, seed: int) -> None:
        began = time.monotonic()
        targets = self._stage.processes.targets
        plan = troubles(seconds, targets, seed, servers=self._servers is not None)
        for trouble in plan:
            self._until(began + trouble.at)
            print_progress(f"{trouble.at:.0f} s: {trouble.kind} {trouble.target}")
            self._strike(trouble)
        self._until(began + seconds)

    def _until(self, when: float) -> None:
        """Wait until `when`. Restart ended programs: nothing else restarts `kintsugi up`."""
        while (left := when - time.monotonic()) > 0:
            self._stage.processes.revive()
            time.sleep(min(_LOOK_SECONDS, left))

    def _strike(self, trouble: Trouble) -> None:
        if trouble.kind == "kill":
            self._kills.update(self._stage.processes.strike(trouble.target))
            return
        assert self._servers is not None, "they are in the plan only where they are there"
        what, how = trouble.kind.split()
        server = self._servers.broker if what == "broker" else self._servers.database
        server.kill() if how == "killed" else server.stop()
        self._until(time.monotonic() + trouble.away)
        server.start()
        self._outages[trouble.kind] += 1
        self._away_seconds += trouble.away

    def _rest(self) -> dict[str, Any]:
        began = still = time.monotonic()
        while (now := time.monotonic()) - still < STILL_SECONDS:
            self._stage.processes.revive()
            left = self._count_backlog()
            if left is None or any(left.values()):
                still = now
            if now - began > REST_SECONDS:
                sentence = f"nothing came to rest within {REST_SECONDS:g} s: {left}"
                return {"seconds": round(now - began, 1), "left": left, "wrong": [sentence]}
            time.sleep(2 * _LOOK_SECONDS)
        differing = list(self._compare_metrics())
        return {
            "seconds": round(still - began, 1),
            "left": self._count_backlog(),
            "wrong": differing,
        }

    def _count_backlog(self) -> dict[str, int] | None:
        app = self._stage.app
        try:
            with app.reading() as connection:
                reached, cycle = read_fold_state(connection), learning.open_cycle(connection, ALIAS)
            behind = sum(lag(app.readable_log, reached).values())
        except (DatabaseUnavailable, LogError):
            return None
        unshipped = count_spool_backlog(app.spool) if app.on_kafka else 0
        return {"lag": behind, "unshipped": unshipped, "open cycles": int(cycle is not None)}

    def _compare_metrics(self) -> Iterator[str]:
        app, settings = self._stage.app, self._stage.settings
        schedule = read_metrics(f"http://127.0.0.1:{port_of(settings, 'schedule')}/metrics")
        gateway = read_metrics(f"http://127.0.0.1:{settings.gateway.port}/metrics")
        expected = {
            "kintsugi_projection_lag_events": (schedule, 0),
            "kintsugi_log_end_offset": (schedule, events_in(app.readable_log)),
            "kintsugi_dead_letters": (schedule, 0),
            "kintsugi_gateway_calls_in_flight": (gateway, 0),
            "kintsugi_capture_dropped_total": (gateway, 0),
            "kintsugi_spool_events": (gateway, events_in(app.spool)),
        }
        if app.on_kafka:
            expected["kintsugi_spool_unshipped_events"] = (gateway, 0)
        for name, (said_by, value) in expected.items():
            if said_by.get(name) != value:
                yield f"/metrics says {name} {said_by.get(name)}, and it is {value}"

    def _stop_and_audit(self) -> Iterator[str]:
        print_progress("everything is told to stop, and audited")
        yield from stop_all(self._stage)
        result = audit(self._stage.place.home, self._traffic.ledger)
        if result.first is not None:
            yield result.first
        yield from wrong(self._stage.app, self._stage.place, self._stage.customers.heard)

    def _figures(self) -> dict[str, Any]:
        heard, traffic = self._stage.customers.heard, self._traffic
        base = heard.by["reference"]
        statuses = Counter(str(seen.status) for seen in traffic.ledger.seen)
        return {
            "kills": dict(sorted(self._kills.items())),
            "servers": dict(sorted(self._outages.items())),
            "away_seconds": round(self._away_seconds, 1),
            "ended_by_themselves": dict(self._stage.processes.ended),
            "acknowledged": {
                "customers": len(heard.acknowledged),
                "others": len(traffic.ledger.list_acks()),
                "feedback": len(traffic.ledger.feedback),
            },
            "unrecorded": heard.unrecorded,
            "answers": {"reference": base, "adapters": heard.by.total() - base},
            "statuses": dict(statuses),
            "strays": dict(sorted(traffic.stray.statuses.items())),
            "cycles": dict(Counter(count_decisions(self._stage.app).outcomes.values())),
        }


def print_progress(what: str) -> None:
    """Print progress on stderr."""
    print(what, file=sys.stderr, flush=True)
