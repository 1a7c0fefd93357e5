"""Check of the receiver of spans."""

from typing import TYPE_CHECKING

from daemon.status.doctor.finding import Finding

if TYPE_CHECKING:
    from daemon.core.app import App


def tracing(app: "App") -> Finding:
    """Check that the receiver of spans answers and accepts the key."""
    from daemon.tracing.exporter import open_sender

    endpoint = app.settings.tracing.endpoint
    if not endpoint:
        return True, "spans are sent nowhere"
    with open_sender(app) as sender:
        refused = sender.refusal()
    if refused is not None:
        return False, f"{refused}; correct tracing.endpoint or tracing.headers"
    return True, f"{endpoint} takes spans"
