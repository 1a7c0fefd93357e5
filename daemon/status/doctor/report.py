"""The checks of `kintsugi doctor`, each with its finding, and the remedy for a problem. An
exception of a check becomes its finding and never ends the others. Runbooks (docs/runbooks) name
the checks that they rely on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from daemon.core.app import App
from daemon.status.doctor import loop, machine, models, records, serving, tracing
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
    "schedule": loop.schedule,
    "jobs": loop.jobs,
    "sessions": loop.sessions,
    "kinds": loop.kinds,
    "adapters": serving.adapters,
    "gateways": serving.gateways,
    "canaries": serving.canaries,
    "holdout": serving.holdout,
    "checkpoints": serving.checkpoints,
    "engines": serving.engines,
    "models": models.models,
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
    """Result of one check."""

    check: str
    ok: bool
    detail: str


def examine(app: App) -> list[Check]:
    """Run every check that applies to this home."""
    checks = {**CHECKS, **ON_KAFKA} if app.on_kafka else CHECKS
    return [run_check(name, check, app) for name, check in checks.items()]


def run_check(name: str, check: Callable[[App], Finding], app: App) -> Check:
    """Run one check; an exception becomes its finding."""
    try:
        ok, detail = check(app)
    except KintsugiError as error:
        ok, detail = False, str(error)
    except OSError as error:
        ok, detail = False, f"{error.filename or ''} {error.strerror or error}".strip()
    except Exception as error:  # of this check alone: its line says so
        text = f"the check {name} ended with {type(error).__name__}: {error}"
        ok, detail = False, f"{text}; correct the setting that it names, or report it as a bug"
    return Check(name, ok, detail)
