"""The checks of `kintsugi doctor`: each says what it found, and what to do where that is bad.

A check never ends the others: whatever it raises is its finding. Runbooks (docs/runbooks) name the
checks that they ask for.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from daemon.core.app import App
from daemon.status.doctor import loop, machine, records, serving, tracing
from daemon.status.doctor.finding import Finding
from events.errors import KintsugiError

CHECKS: Final[Mapping[str, Callable[[App], Finding]]] = {
    "packages": machine.packages,
    "python": machine.python,
    "sqlite": machine.sqlite,
    "home": machine.home,
    "blobs": machine.blobs,
    "modes": machine.modes,
    "log": records.log,
    "database": records.database,
    "fold": records.fold,
    "dead letters": records.dead_letters,
    "keys": records.keys,
    "leader": loop.leader,
    "cycle": loop.cycle,
    "jobs": loop.jobs,
    "sessions": loop.sessions,
    "adapters": serving.adapters,
    "gateways": serving.gateways,
    "canaries": serving.canaries,
    "engines": serving.engines,
    "tracing": tracing.tracing,
}

ON_KAFKA: Final[Mapping[str, Callable[[App], Finding]]] = {
    "crc32c": machine.crc32c,
    "kafka": records.kafka,
    "spool": records.spool,
    "spools": records.spools,
}


@dataclass(frozen=True, slots=True)
class Check:
    """One finding."""

    check: str
    ok: bool
    detail: str


def examine(app: App) -> list[Check]:
    """Every check that applies to this home."""
    checks = {**CHECKS, **ON_KAFKA} if app.on_kafka else CHECKS
    return [_run_check(name, check, app) for name, check in checks.items()]


def _run_check(name: str, check: Callable[[App], Finding], app: App) -> Check:
    try:
        ok, detail = check(app)
    except KintsugiError as error:
        ok, detail = False, str(error)
    except OSError as error:
        ok, detail = False, f"{error.filename or ''} {error.strerror or error}".strip()
    return Check(name, ok, detail)
