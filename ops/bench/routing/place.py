"""An engine and a gateway before it, as processes of their own, whose routes name a panel."""

import multiprocessing
import socket
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx2
import uvicorn

from daemon.engine.reference.weights import CHECKPOINT
from events.blobs import BlobStore
from events.jobs import PanelRouter, RouterOption
from events.serving import Panel, PanelMember, RouteShare
from events.sqlite.log import SqliteLog
from ops.faults.gateway_upstream_kill import RealEngine
from ops.random_adapters import SPREAD, Maker
from producers.gateway.capture.recorder import Recorder
from producers.gateway.privacy.keys import ClientKeys
from producers.gateway.routing.routes import Adapter, GatewayRoute, GatewayRoutes
from producers.gateway.routing.upstreams import Upstream, Upstreams
from producers.gateway.server import Gateway, Options

ALIAS: Final = "agent"
BASE: Final = "reference"
MEMBER: Final = "member"
PANEL: Final = "panel"

_FORCE: Final = 1e6
"""Nats by which the router's choice is ahead."""
_START_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.05


def build_routes(member: str, base: str) -> GatewayRoutes:
    """Return the routes in which a panel of one skill answers the alias."""
    options = (
        RouterOption(skill="refunds", label="A", token=5, description="Refunds and broken orders."),
        RouterOption(skill=None, label="B", token=6, description="Anything else."),
    )
    router = PanelRouter(options=options, calibration=((-_FORCE, 0.0),) * 2)
    panel = Panel(members=(PanelMember(skill="refunds", adapter=member),), router=router)
    return GatewayRoutes(
        1,
        {ALIAS: GatewayRoute(base, (RouteShare(adapter=PANEL, share=1.0),))},
        {member: Adapter(ALIAS, base, True), PANEL: Adapter(ALIAS, base, True, panel)},
    )


def serve(folder: Path, upstream: str, routes: GatewayRoutes, port: int) -> None:
    """Serve a gateway with these routes until the process ends."""
    gateway = Gateway(
        Recorder(SqliteLog(folder / "log.db"), BlobStore(folder / "blobs")),
        Upstreams([Upstream(upstream)]),
        ClientKeys(()),
        Options(alias=ALIAS),
    )
    gateway.context.routing.apply(routes)
    uvicorn.run(gateway.app, port=port, log_level="error", lifespan="on", access_log=False)


@contextmanager
def gateway_process(folder: Path, upstream: str, routes: GatewayRoutes) -> Iterator[str]:
    """A gateway's URL while it runs. Raises RuntimeError where it does not start."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = multiprocessing.get_context("spawn").Process(
        target=serve, args=(folder, upstream, routes, port)
    )
    process.start()
    try:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + _START_SECONDS
        while not _is_ready(url):
            if not process.is_alive() or time.monotonic() > deadline:
                raise RuntimeError(f"the gateway before {upstream} does not become ready")
            time.sleep(_LOOK_SECONDS)
        yield f"{url}/v1"
    finally:
        process.terminate()
        process.join()


def _is_ready(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/readyz", timeout=5).status_code == 200
    except httpx2.TransportError:
        return False


@contextmanager
def embedded_engine(folder: Path) -> Iterator[str]:
    """The URL of an embedded engine that holds one adapter."""
    engine = RealEngine(folder / "engine.log", name=BASE)
    try:
        engine.start()
        with warnings.catch_warnings():
            # Of PEFT: about what transformers will do.
            warnings.simplefilter("ignore")
            adapter = Maker(CHECKPOINT).write(folder / MEMBER, SPREAD)
        body = {"lora_name": MEMBER, "lora_path": str(adapter)}
        httpx2.post(f"{engine.url}/load_lora_adapter", json=body, timeout=60).raise_for_status()
        yield engine.url
    finally:
        engine.kill()
