"""From a client's request to the route: calls within its span, rollouts, and a whole cycle."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from consumers.reads.learning import CycleRow
from consumers.reads.scheduling import CYCLE_START
from daemon.config.settings import Agent, Log, Scheduler, Settings, Tracing
from daemon.core.app import App
from daemon.core.decision_log import Act, Decisions
from daemon.core.leadership import Leadership
from daemon.cycle.leader import Leader
from daemon.sessions.closing import close_sessions
from events.envelope import utc_now
from events.learning import DirectiveWritten
from tests.consumers.cycling import job_over
from tests.consumers.deciding import routed
from tests.daemon.engine.conftest import Live
from tests.daemon.gateway.conftest import Fronted, fronting
from tests.daemon.gateway.spans import Agent as Client
from tests.daemon.metrics.scene import ADAPTER, gated, say
from tests.daemon.written import Fixed

SECRET = "My number is 4711"
OF_CYCLE = {
    "cycle agent", "diagnose agent", "direct agent", "propose agent", "train agent",
    f"stage {ADAPTER}", f"evaluate {ADAPTER}", f"canary {ADAPTER}", "route agent",
}  # fmt: skip


class Showing(Fixed):
    """Writes a directive that shows a rollout."""

    def __init__(self, rollout: str) -> None:
        super().__init__()
        self._rollout = rollout

    def write_directive(self, cycle: CycleRow) -> DirectiveWritten:
        """The same, with an example."""
        found = super().write_directive(cycle)
        (quota,) = found.directive.quotas
        shown = quota.model_copy(update={"examples": (self._rollout,)})
        directive = found.directive.model_copy(update={"quotas": (shown,)})
        return found.model_copy(update={"directive": directive})


@dataclass(frozen=True)
class Told:
    """What a client did, and what it knows of it."""

    trace: str
    span: str
    """Its request's."""


def ask(front: Fronted, session: str, **headers: str) -> None:
    """Two calls of a session."""
    said: list[Any] = [{"role": "user", "content": SECRET}]
    for _ in range(2):
        answer = httpx2.post(
            f"{front.url}/v1/chat/completions",
            json={"messages": said, "max_tokens": 4},
            headers={"x-kintsugi-session": session, **headers},
            timeout=60,
        )
        answer.raise_for_status()
        said += [answer.json()["choices"][0]["message"], {"role": "user", "content": "And?"}]
    httpx2.post(f"{front.url}/v1/sessions/{session}/end").raise_for_status()


def traffic(home: Path, engine: Live) -> Told:
    """A session without a trace, then one within a client's."""
    client = Client()
    home.mkdir(exist_ok=True)
    with fronting(home, [engine.url]) as front:
        ask(front, "talk-1")
        with client.tracer.start_as_current_span("request"):
            headers: dict[str, str] = {}
            TraceContextTextMapPropagator().inject(headers)
            ask(front, "talk-2", **headers)
    (request,) = client.spans
    assert request.context is not None
    return Told(f"{request.context.trace_id:032x}", f"{request.context.span_id:016x}")


@contextmanager
def opened(home: Path, endpoint: str = "http://127.0.0.1:9/v1/traces") -> Iterator[App]:
    """The home, whose cycles begin when a person says so."""
    settings = Settings(
        home=home, log=Log(durability="process"), tracing=Tracing(endpoint=endpoint),
        scheduler=Scheduler(min_rollouts=10**6, min_priority=1e9, cooldown_seconds=1e6),
        agents=(Agent(alias="agent", environment="shop"),),
    )  # fmt: skip
    with App(settings) as app:
        yield app


def whole_loop(app: App) -> None:
    """Rollouts, a cycle that rests on them, its job, its adapter, the route, the end."""
    close_sessions(app, utc_now())
    with app.reading() as connection:
        shown = connection.exec_driver_sql(
            "SELECT rollout FROM rollouts WHERE session = 'talk-1'"
        ).scalar()
    Decisions(app).act(Act("ada"), CYCLE_START, {"alias": "agent"})
    leadership = Leadership(app)
    leader = Leader(app, Showing(str(shown)), leadership)
    leader.tick()
    say(app, job_over(), *gated(ADAPTER), routed("canary", {ADAPTER: 0.25, None: 0.75}))
    say(app, routed("promoted", {ADAPTER: 1.0}))
    leader.tick()
    leadership.resign()
