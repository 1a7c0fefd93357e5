"""Stage an adapter: load and prove it on all replicas of its base, or on none.

The parts of a version with members are its adapters. Room is made for all parts at once, each
missing part is staged with its own event, and then the version is. Guarantees: `AdapterStaged` is
appended only when all replicas answer with the adapter, or with all parts. If a replica does not,
the adapter is unloaded again and nothing is appended. Parts that were staged before stay until the
version is retired or rejected. An adapter that leaves to make room gets an event about it. Not
covered: replicas that restart or join later (reconciler.py).
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from consumers.reads import serving
from consumers.reads.serving import AdapterRow, RouteTable
from daemon.adapters.adoption import intact
from daemon.adapters.fingerprint import Proof
from daemon.core.decision_log import Decisions
from daemon.serving.desired_state import ADMISSIBLE, ReplicaContents, list_wholes, roles
from daemon.serving.fleet import Engine, Fleet, Look, check_room, collect_route_adapters
from daemon.serving.reconciler import Reconciler, observe
from daemon.serving.replica import ReplicaError
from daemon.serving.residency import Role, pick_stronger
from events.errors import KintsugiError, LogError
from events.lifecycle import LOADED, RETIRED, SERVING, State, after
from events.serving import AdapterMoved, AdapterStaged, Retired

if TYPE_CHECKING:
    from daemon.core.app import App

_REMEDIES: Final = {
    State.COLLECTED: "; it is gone: push its files under another --name, or compose it anew",
    **dict.fromkeys(
        RETIRED, "; that is possible once it is unloaded (kintsugi work: when nobody uses it)"
    ),
}

_logger = logging.getLogger(__name__)


class StageRefusal(KintsugiError):
    """An adapter cannot be staged, and staging leaves nothing of it loaded."""


class ReplicaAway(StageRefusal):
    """A replica does not answer, so the adapter cannot be on all replicas."""


def check_stageable(row: AdapterRow) -> None:
    """Raise StageRefusal unless an adapter's state allows staging."""
    trial = AdapterStaged(adapter=row.adapter, replicas=("any",), distance=0, from_base=0)
    if after(row.adapter, row.state, trial) is None:
        remedy = _REMEDIES.get(row.state, "")
        raise StageRefusal(f"{row.adapter} is {row.state}, and cannot be staged from there{remedy}")


def lies_ready(row: AdapterRow) -> bool:
    """Return whether the tables show the version on replicas, so that no staging is needed."""
    return row.state in LOADED and bool(row.replicas)


def _holds(row: AdapterRow, contents: ReplicaContents, *, as_part: bool) -> bool:
    """Return whether a replica holds the adapter and the adapter is proven there. With `as_part`, a
    draining or unloaded adapter counts as proven if it is loaded; no event can record the proof."""
    proven = contents.url in row.replicas or (as_part and row.state in RETIRED)
    return proven and row.adapter in contents.adapters


class Staging:
    """Stages adapters of one home on its replicas. The caller must hold `hold_serving_lock`."""

    def __init__(self, app: "App", fleet: Fleet, clock: Callable[[], datetime]) -> None:
        self._app = app
        self._fleet = fleet
        self._clock = clock
        self._decisions = Decisions(app)
        self._reconciler = Reconciler(app, fleet, clock)

    def is_on_every_replica(self, row: AdapterRow) -> bool:
        """Return whether tables and replicas agree that every replica has every part."""
        look = self._fleet.look()
        urls = look.of_base(row.base)
        if not urls or look.lost or row.state not in LOADED:
            return False
        return all(self._is_held(row, look.holding[url]) for url in urls)

    def stage(self, row: AdapterRow, cause: str) -> AdapterRow:
        """Load all parts of a version on every replica and append AdapterStaged. Raises
        StageRefusal, BadAdapter, NoRoom."""
        engines = self.replicas(row)
        parts = self._parts(row)
        for part in parts:
            self._check_files(part, engines)
        # An adapter that plays users stays loaded, so the next one in staging needs room too.
        self.make_room(row, "user" if row.role == "user" else "staged", engines, cause)
        if row.has_files:
            return self._stage_one(row, engines, cause)
        try:
            seen = [self._hold(self._again(part), engines, cause) for part in parts]
        except KintsugiError as error:
            # Callers that reject an adapter for its files read the first cause.
            cause_of_all = error.__cause__ or error
            raise StageRefusal(f"{row.adapter} is not staged: {error}") from cause_of_all
        staged = AdapterStaged(
            adapter=row.adapter,
            replicas=tuple(engine.url for engine in engines),
            distance=max(distance for distance, _ in seen),
            from_base=min(from_base for _, from_base in seen),
        )
        self._decisions.take(staged, f"staged {row.adapter}", cause)
        return self._again(row)

    def _stage_one(
        self, row: AdapterRow, engines: Sequence[Engine], cause: str, step: str | None = None
    ) -> AdapterRow:
        """Load an adapter that has room and append AdapterStaged as `step`. Raises StageRefusal."""
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
            self._decisions.take(staged, step or f"staged {row.adapter}", cause)
        except LogError as error:
            self._take_back(row, engines)
            raise StageRefusal(f"{row.adapter} was staged nowhere: {error}") from error
        return self._again(row)

    def _hold(self, part: AdapterRow, engines: Sequence[Engine], cause: str) -> tuple[float, float]:
        """Ensure that engines answer with a part of a version. Return the part's distances in nats
        from its expected answers and from its base. A draining or unloaded part keeps its state.
        Raises StageRefusal, ReplicaError, NotProven, BadAdapter, NoFingerprint."""
        look = self._fleet.look()
        lacking = [e for e in engines if not _holds(part, look.holding[e.url], as_part=True)]
        if lacking and part.state not in RETIRED:
            # The step names the event that gave the part its state: one cause may stage the
            # version, and so the part, again.
            urls = ", ".join(engine.url for engine in engines)
            step = f"staged {part.adapter} on {urls} after {part.cause}"
            part = self._stage_one(part, engines, cause, step)
        elif lacking or part.distance is None or part.from_base is None:
            proofs = self._admit(part, engines)
            return max(p.distance for p in proofs), min(p.from_base for p in proofs)
        assert part.distance is not None, "it was proven"
        assert part.from_base is not None, "it was proven"
        return part.distance, part.from_base

    def _admit(self, row: AdapterRow, engines: Iterable[Engine]) -> list[Proof]:
        """Load a draining or unloaded adapter on engines, without an event; return the proofs."""
        self._check_files(row, engines)
        rivals = self._fleet.rivals(row, self._table().adapters)
        return [self._fleet.admit(engine, row, rivals) for engine in engines]

    def bring(self, row: AdapterRow, role: Role, cause: str, *, back: bool = False) -> None:
        """Ensure that every replica answers with every part of a version. With `back` (a rollback),
        only reachable replicas count. Raises ReplicaError, NotProven and the errors of `stage`."""
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
            for part in self._parts(row):
                if row.has_files:
                    self._admit(part, engines)
                else:
                    self._hold(part, engines, cause)

    def make_room(self, row: AdapterRow, role: Role, engines: Iterable[Engine], cause: str) -> None:
        """Unload adapters without traffic until a version's parts fit. Raises NoRoom."""
        self._reconciler.clear()
        look = self._fleet.look()
        situation = observe(self._app, look, self._clock())
        loaded = roles(situation)
        wanted = {
            part.adapter: pick_stronger(role, loaded.get(part.adapter)) or role
            for part in self._parts(row)
        }
        given_up: dict[str, None] = {}
        for engine in engines:
            given_up |= dict.fromkeys(check_room(engine, look.holding[engine.url], loaded, wanted))
        for name in given_up:
            for whole in list_wholes(self._table(), name):
                if whole.state in RETIRED:
                    self._record_unload(whole.adapter, row, cause)
            for engine in engines:
                engine.replica.unload(name)
            self._record_unload(name, row, cause)

    def _record_unload(self, name: str, wanting: AdapterRow, cause: str) -> None:
        reason = f"made room for {wanting.adapter}"
        row = self._row(name)
        states: tuple[Retired, ...] = ("draining", "unloaded")
        for state in states if row.state not in RETIRED else states[1:]:
            moved = AdapterMoved(adapter=name, state=state, reason=reason)
            # The origin is the event that gave the adapter its state: it may come back, and one
            # cause may then unload it again.
            self._decisions.take(moved, f"{state} {name}", cause, origin=row.cause)
            row = self._row(name)

    def answers(self, row: AdapterRow) -> bool:
        """Return whether a replica has every part of the version in service."""
        look = self._fleet.look()
        return row.state in LOADED and any(
            self._is_held(row, look.holding[url]) for url in look.of_base(row.base)
        )

    def _is_held(self, row: AdapterRow, contents: ReplicaContents) -> bool:
        as_part = not row.has_files
        return all(_holds(part, contents, as_part=as_part) for part in self._parts(row))

    def _parts(self, row: AdapterRow) -> list[AdapterRow]:
        return [row] if row.has_files else [self._row(name) for name in row.parts]

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
        """Return the replicas of an adapter's base that answer; a rollback needs only one."""
        return [self._fleet.engines[url] for url in self._of_base(row, self._fleet.look())]

    def _of_base(self, row: AdapterRow, look: Look) -> list[str]:
        urls = look.of_base(row.base)
        if not look.holding:
            raise ReplicaAway(f"{row.adapter} would be on no replica: {look.error_text}")
        if not urls:
            bases = ", ".join(sorted({contents.base for contents in look.holding.values()}))
            raise StageRefusal(f"{row.adapter} is for {row.base}, and the engines serve {bases}")
        return urls

    def _check_files(self, row: AdapterRow, engines: Iterable[Engine]) -> None:
        folder = self._fleet.locate(row.path)
        for engine in engines:
            options = engine.started
            intact(folder, row.sha256, options.checkpoint, options.max_lora_rank)

    def _load_everywhere(self, row: AdapterRow, engines: Iterable[Engine]) -> list[Proof]:
        """Load an adapter on all engines and return the proofs. After an error, unload it again."""
        table = self._table()
        rivals = self._fleet.rivals(row, table.adapters)
        beside_base = None in collect_route_adapters(table.routes, row.base, table.adapters)
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
        """Unload the adapter, unless its state says that it may be answering calls."""
        for engine in engines if row.state not in LOADED else ():
            try:
                engine.replica.unload(row.adapter)
            except ReplicaError as error:
                # The reconciler unloads the adapter when the replica is back (reconciler.py).
                _logger.warning("%s", error, extra={"action": "adapter_left"})

    def _again(self, row: AdapterRow) -> AdapterRow:
        return self._row(row.adapter)

    def _row(self, name: str) -> AdapterRow:
        with self._app.reading() as connection:
            return serving.find_adapter(connection, name)

    def _table(self) -> RouteTable:
        with self._app.reading() as connection:
            return serving.route_table(connection)
