"""Stage an adapter: load it onto all replicas of its base and prove it there, or load it onto none.

    staging = Staging(app, fleet, clock)
    staging.stage(row, cause)                 loaded, proven on every replica, AdapterStaged
    staging.bring(row, "canary", cause)       the same for what a route is to name, with room for it

Guarantees: `AdapterStaged` is appended when all replicas answer with the adapter; if one does not,
what was loaded is unloaded again and nothing is appended. Adapters that are unloaded to make room
are recorded by an event first. Not covered: replicas that are restarted or join later
(reconciler.py).
"""

import logging
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from consumers.reads import serving
from consumers.reads.serving import AdapterRow, RouteTable
from daemon.adapters.adoption import intact
from daemon.adapters.fingerprint import Proof
from daemon.core.decision_log import Decisions
from daemon.serving.desired_state import ADMISSIBLE, roles
from daemon.serving.fleet import Engine, Fleet, Look, check_room, collect_route_adapters
from daemon.serving.reconciler import Reconciler, observe
from daemon.serving.replica import ReplicaError
from daemon.serving.residency import Role
from events.errors import KintsugiError, LogError
from events.lifecycle import LOADED, RETIRED, SERVING, State, after
from events.serving import AdapterMoved, AdapterStaged

if TYPE_CHECKING:
    from daemon.core.app import App

_REMEDIES: Final = {
    State.COLLECTED: "; its files are gone: push it under another --name",
    **dict.fromkeys(
        RETIRED, "; that is possible once it is unloaded (kintsugi work: when nobody uses it)"
    ),
}

_logger = logging.getLogger(__name__)


class StageRefusal(KintsugiError):
    """An adapter is not staged, and nothing of it is loaded."""


class ReplicaAway(StageRefusal):
    """A replica gives no answer, so an adapter cannot be on all of them."""


def check_stageable(row: AdapterRow) -> None:
    """Check that an adapter can be staged from its state. Raises StageRefusal."""
    trial = AdapterStaged(adapter=row.adapter, replicas=("any",), distance=0, from_base=0)
    if after(row.adapter, row.state, trial) is None:
        remedy = _REMEDIES.get(row.state, "")
        raise StageRefusal(f"{row.adapter} is {row.state}, and cannot be staged from there{remedy}")


def lies_ready(row: AdapterRow) -> bool:
    """Whether replicas hold the adapter by the tables, so that it needs no staging."""
    return row.state in LOADED and bool(row.replicas)


class Staging:
    """Stages adapters of one home on its replicas. The caller holds `hold_serving_lock`."""

    def __init__(self, app: "App", fleet: Fleet, clock: Callable[[], datetime]) -> None:
        self._app = app
        self._fleet = fleet
        self._clock = clock
        self._decisions = Decisions(app)
        self._reconciler = Reconciler(app, fleet, clock)

    def is_on_every_replica(self, row: AdapterRow) -> bool:
        """Whether the adapter is on every replica, by the tables and by what the replicas say."""
        look = self._fleet.look()
        urls = look.of_base(row.base)
        holds = all(row.adapter in look.holding[url].adapters for url in urls)
        proven = set(urls) <= set(row.replicas)
        return bool(urls) and not look.lost and holds and proven and row.state in LOADED

    def stage(self, row: AdapterRow, cause: str) -> AdapterRow:
        """Load an adapter everywhere and append AdapterStaged. Raises StageRefusal, BadAdapter,
        NoRoom."""
        engines = self.replicas(row)
        self._check_files(row, engines)
        self.make_room(row, "staged", engines, cause)
        try:
            proofs = self._load_everywhere(row, engines)
        except (KintsugiError, OSError) as error:
            raise StageRefusal(f"{row.adapter} was staged nowhere: {error}") from error
        staged = AdapterStaged(
            adapter=row.adapter,
            replicas=tuple(engine.url for engine in engines),
            distance=max(proof.distance for proof in proofs),
            from_base=min(proof.from_base for proof in proofs),
        )
        try:
            self._decisions.take(staged, f"staged {row.adapter}", cause)
        except LogError as error:
            self._take_back(row, engines)
            raise StageRefusal(f"{row.adapter} was staged nowhere: {error}") from error
        return self._again(row)

    def bring(self, row: AdapterRow, role: Role, cause: str, *, back: bool = False) -> None:
        """Ensure that every replica answers with an adapter that a route is to name; with `back`,
        every replica that is reachable. Raises what `stage` raises, ReplicaError, NotProven."""
        if row.state not in LOADED or (
            row.state in ADMISSIBLE and not self.is_on_every_replica(row)
        ):
            row = self.stage(row, cause)
        engines = self._find_live_replicas(row) if back else self.replicas(row)
        if row.state not in SERVING:
            self.make_room(row, role, engines, cause)
            row = self._again(row)
        if row.state not in LOADED:
            # It had no traffic until now, so it was unloaded to make room.
            row = self.stage(row, cause)
        if row.state in RETIRED and not self.is_on_every_replica(row):
            self._check_files(row, engines)
            rivals = self._fleet.rivals(row, self._table().adapters)
            for engine in engines:
                self._fleet.admit(engine, row, rivals)

    def make_room(self, row: AdapterRow, role: Role, engines: Iterable[Engine], cause: str) -> None:
        """Unload adapters that are only kept, if there is no room otherwise. Raises NoRoom."""
        self._reconciler.clear()
        look = self._fleet.look()
        wanted = roles(observe(self._app, look, self._clock()))
        given_up: dict[str, None] = {}
        for engine in engines:
            holding = look.holding[engine.url]
            given_up |= dict.fromkeys(check_room(engine, holding, wanted, row.adapter, role))
        for name in given_up:
            retired = self._row(name)
            for engine in engines:
                engine.replica.unload(name)
            moved = AdapterMoved(
                adapter=name, state="unloaded", reason=f"made room for {row.adapter}"
            )
            # Once for each time it went out of service, and not for each cause that wants room:
            # of one cause it may make room again after it came back.
            self._decisions.take(moved, f"unloaded {name}", cause, origin=retired.cause)

    def answers(self, row: AdapterRow) -> bool:
        """Whether the adapter is in service on a replica."""
        look = self._fleet.look()
        return row.state in LOADED and any(
            row.adapter in look.holding[url].adapters and url in row.replicas
            for url in look.of_base(row.base)
        )

    def replicas(self, row: AdapterRow) -> list[Engine]:
        """Return every replica of an adapter's base. Raises StageRefusal if one gives no answer."""
        look = self._fleet.look()
        if look.lost:
            raise ReplicaAway(
                f"{row.adapter} would not be on every replica: {look.error_text}; start it, or "
                "take it out of upstreams"
            )
        return [self._fleet.engines[url] for url in self._of_base(row, look)]

    def _find_live_replicas(self, row: AdapterRow) -> list[Engine]:
        """Return the replicas that answer: for a rollback, one is enough."""
        return [self._fleet.engines[url] for url in self._of_base(row, self._fleet.look())]

    def _of_base(self, row: AdapterRow, look: Look) -> list[str]:
        urls = look.of_base(row.base)
        if not urls:
            bases = ", ".join(sorted({contents.base for contents in look.holding.values()}))
            raise StageRefusal(
                f"{row.adapter} is for {row.base}, and the engines serve {bases or 'nothing'}"
            )
        return urls

    def _check_files(self, row: AdapterRow, engines: Iterable[Engine]) -> None:
        for engine in engines:
            options = engine.started
            intact(Path(row.path), row.sha256, options.checkpoint, options.max_lora_rank)

    def _load_everywhere(self, row: AdapterRow, engines: Iterable[Engine]) -> list[Proof]:
        """Load an adapter on all engines, or none: what was loaded is unloaded again."""
        table = self._table()
        rivals = self._fleet.rivals(row, table.adapters)
        beside_base = None in collect_route_adapters(table.routes, row.base)
        proofs: list[Proof] = []
        loaded: list[Engine] = []
        try:
            for engine in engines:
                loaded.append(engine)
                proofs.append(self._fleet.admit(engine, row, rivals, beside_base=beside_base))
        except BaseException:
            self._take_back(row, loaded)
            raise
        return proofs

    def _take_back(self, row: AdapterRow, engines: Iterable[Engine]) -> None:
        """Unload the adapter unless it was loaded before: then it may be answering calls."""
        for engine in engines if row.state not in LOADED else ():
            try:
                engine.replica.unload(row.adapter)
            except ReplicaError as error:
                # It is asked for again when it is back (reconciler.py).
                _logger.warning("%s", error, extra={"action": "adapter_left"})

    def _again(self, row: AdapterRow) -> AdapterRow:
        """Return the adapter's row as it is now."""
        return self._row(row.adapter)

    def _row(self, name: str) -> AdapterRow:
        with self._app.reading() as connection:
            return serving.find_adapter(connection, name)

    def _table(self) -> RouteTable:
        with self._app.reading() as connection:
            return serving.route_table(connection)
