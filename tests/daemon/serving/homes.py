"""A home with engines around it: everything real, and engines that can be stopped and started."""

import asyncio
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import uvicorn

from consumers import database
from consumers.reads import gateways, serving
from consumers.reads.gateways import Report
from consumers.reads.serving import AdapterRow, RouteTable, Step
from daemon.config.settings import Settings, Upstream
from daemon.core.app import App
from daemon.core.decision_log import Act
from daemon.engine.adapters import Adapters as LoadedAdapters
from daemon.engine.chat import Chat
from daemon.engine.generation import Engine
from daemon.engine.policy import Policy
from daemon.engine.server import Server
from daemon.serving.fleet import open_fleet
from daemon.serving.publisher import Publisher
from daemon.serving.push import push
from daemon.serving.reconciler import Reconciler, ReconcileResult
from events.codec import Event, decode
from events.envelope import utc_now
from events.serving import OperatorActed

ADA: Final = Act("ada", "because")


class Restartable:
    """An embedded engine at one address. Stopped and started, it has forgotten its adapters."""

    def __init__(self, policy: Policy, chat: Chat) -> None:
        self.policy = policy
        self._chat = chat
        self._port = 0
        self._http: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/v1"

    def start(self) -> None:
        adapters = LoadedAdapters(self.policy, "a checkpoint")
        server = Server(adapters, self._chat, Engine(self.policy, slots=24))
        bound = socket.create_server(("127.0.0.1", self._port))
        self._port = bound.getsockname()[1]
        http = uvicorn.Server(uvicorn.Config(server.app, log_level="error", lifespan="on"))
        thread = threading.Thread(target=lambda: asyncio.run(http.serve(sockets=[bound])))
        thread.start()
        self._http, self._thread = http, thread
        while not http.started:
            time.sleep(0.005)

    def stop(self) -> None:
        if self._http is not None and self._thread is not None:
            self._http.should_exit = True
            self._thread.join()
        self._http = None

    def restart(self) -> None:
        self.stop()
        self.start()


class Home:
    """A home in this process, with a clock that can be turned."""

    def __init__(
        self,
        folder: Path,
        engines: Sequence[Restartable],
        others: Sequence[str] = (),
        **settings: Any,
    ) -> None:
        """`others`: URLs of engines besides. `upstream`: what the settings say of each engine, or
        of all."""
        self.engines = engines
        self.urls = [*(engine.url for engine in engines), *others]
        said = settings.pop("upstream", {})
        per_engine = said if isinstance(said, list) else [said] * len(self.urls)
        upstreams = [
            Upstream(url=url, **one) for url, one in zip(self.urls, per_engine, strict=True)
        ]
        self.app = App(Settings(home=folder, upstreams=tuple(upstreams), **settings))
        self.fleet = open_fleet(self.app.settings)
        self.later = timedelta()
        self.publisher = Publisher(self.app, self.fleet, self.clock)
        self.reconciler = Reconciler(self.app, self.fleet, self.clock)

    def clock(self) -> datetime:
        return utc_now() + self.later

    def close(self) -> None:
        self.fleet.__exit__(None, None, None)
        self.app.close()

    def tick(self) -> ReconcileResult:
        return self.reconciler.tick()

    def push(self, folder: Path, **options: Any) -> str:
        """The name that a pushed adapter got."""
        given = {"alias": "agent", **options}
        return push(self.app, self.fleet, folder, ADA, **given).adapter.adapter

    def serve(self, folder: Path, **options: Any) -> str:
        """Push an adapter and have it answer alone."""
        name = self.push(folder, **options)
        self.publisher.promote(name, ADA, override=True)
        return name

    def row(self, name: str) -> AdapterRow:
        """An adapter, with the folder that its path means."""
        row = self.publisher.adapter(name)
        return replace(row, path=str(self.app.settings.adapter_paths.locate(row.path)))

    def state(self, name: str) -> str:
        return self.row(name).state.value

    def table(self) -> RouteTable:
        with self.app.reading() as connection:
            return serving.route_table(connection)

    def shares(self, alias: str = "agent") -> dict[str | None, float]:
        route = self.table().route(alias)
        return {} if route is None else {p.adapter: p.share for p in route.standing.shares}

    def steps(self, name: str) -> list[Step]:
        with self.app.reading() as connection:
            return serving.adapter_steps(connection, name)

    def loaded(self) -> list[list[str]]:
        """What each engine serves, in the order of the engines; none for one that is stopped."""
        look = self.fleet.look()
        return [
            sorted(look.holding[url].adapters) if url in look.holding else [] for url in self.urls
        ]

    def decided(self) -> list[Event]:
        """Every event of `learning`."""
        return [decode(record) for record in self.app.spool.read("learning", 0, 0)]

    def acts(self) -> dict[str, OperatorActed]:
        """What people asked for, by the id of its event."""
        return {
            event.envelope.id: event.data
            for event in self.decided()
            if isinstance(event.data, OperatorActed)
        }

    def gateway(self, name: str = "g", position: int = 1 << 40, **open_sessions: int) -> None:
        """A gateway reports: how far it is, and the sessions that adapters have there."""
        said = Report(name, "host", position, {}, open_sessions)
        with database.write_transaction(self.app.engine) as connection:
            gateways.report(connection, said)
