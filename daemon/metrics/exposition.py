"""`GET /metrics` of the roles other than the gateway, each on its own port. With the setting
`metrics.port` P, `consume` listens on P, `ship` on P + 1, `schedule` on P + 2, `work` on P + 3 and
`trace` on P + 4; without it, no role listens. No metric names a client, a session or a prompt."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Literal

from prometheus_client import CollectorRegistry, start_http_server

from consumers.tables import FOLD_VERSION
from events.errors import LogUnavailable
from producers.gateway.metrics.registry import say_build

if TYPE_CHECKING:
    from daemon.config.settings import Settings

Role = Literal["consume", "ship", "schedule", "work", "trace"]

ROLES: Final[tuple[Role, ...]] = ("consume", "ship", "schedule", "work", "trace")
"""Roles with a metrics port, in the order of their ports."""


class PortInUse(LogUnavailable):
    """Another process listens on the role's metrics port."""


def port_of(settings: "Settings", role: Role) -> int | None:
    """Return the metrics port of a role; None if metrics are not served."""
    base = settings.metrics.port
    return None if base is None else base + ROLES.index(role)


@contextmanager
def serve_metrics(settings: "Settings", role: Role) -> Iterator[CollectorRegistry]:
    """Serve the metrics of the yielded registry inside the block. Raise PortInUse."""
    registry = CollectorRegistry()
    say_build(registry, FOLD_VERSION)
    port, host = port_of(settings, role), settings.metrics.host
    if port is None:
        yield registry
        return
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise PortInUse(
            f"the metrics of {role} cannot be served on {host} port {port}: "
            f"{error.strerror or error}; set metrics.port to the first of five that are free"
        ) from error
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
