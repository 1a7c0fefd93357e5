"""Bring replicas to their desired state, and take adapters out of service (`kintsugi work`).

A restarted replica gets its adapters back, each proven under another name first. A failed step is
logged, tried again later, and delays no other adapter. Guarantees: `AdapterMoved(unloaded)` is
appended when no answering replica holds the adapter, `AdapterMoved(collected)` when its files are
gone (a version with members has none), `AdapterMoved(draining)` when the last version with a part
is unloaded. Event ids depend on the adapter's last event, so two reconcilers, or a killed one,
append them once. Files outside the adapters' folder are never deleted.
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from consumers.database import DatabaseError
from consumers.reads import agents, gateways, serving, succession
from consumers.reads.serving import AdapterRow, RouteTable
from daemon.adapters.adoption import intact
from daemon.adapters.fingerprint import Proof
from daemon.core.decision_log import DecisionRefusal, Decisions
from daemon.evaluation.best_policies import find_best, list_measured_kinds
from daemon.serving.backoff import Backoff
from daemon.serving.desired_state import (
    PIN,
    UNPIN,
    Delete,
    Load,
    Note,
    Retention,
    Retire,
    Situation,
    Step,
    Unload,
    list_heirs,
    read_pins,
    roles,
    steps,
)
from daemon.serving.fleet import Fleet, Look, check_room, collect_route_adapters
from events.envelope import utc_now
from events.errors import KintsugiError, LogError
from events.files import UNFINISHED
from events.lifecycle import RETIRED
from events.serving import AdapterMoved, AdapterStaged, Retired

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from daemon.core.app import App

_CLEARINGS: Final = 4
"""Rounds of unloading: unload a version, retire its parts, unload them, append the events."""


@dataclass(slots=True)
class ReconcileResult:
    """Result of a tick: the adapters it changed, and errors as sentences."""

    loaded: list[str] = field(default_factory=list)
    unloaded: list[str] = field(default_factory=list)
    collected: list[str] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)


def observe(app: "App", look: Look, now: datetime) -> Situation:
    """Return what tables and replicas hold at present."""
    settings = app.settings.serving
    with app.reading() as connection:
        table = serving.route_table(connection)
        return Situation(
            table=table,
            gateways=gateways.read_live_gateways(connection, settings.gateway_timeout_seconds),
            pinned=read_pins(serving.operator_actions(connection, PIN, UNPIN)),
            replicas=tuple(look.holding.values()),
            lost=frozenset(look.lost),
            now=now,
            keeping=Retention(
                timedelta(seconds=settings.max_session_age_seconds),
                timedelta(seconds=settings.grace_seconds),
                settings.kept_versions,
            ),
            needed=_find_needed(connection, table),
            away=_find_away(connection, table),
        )


def _find_needed(connection: "Connection", table: RouteTable) -> frozenset[str]:
    """Return the adapters that a job may continue, and the best adapter at each kind of task, which
    new ones are compared with."""
    needed = set(succession.list_training_bases(connection))
    for route in table.routes:
        state = route.standing
        promotions = succession.list_promotions(connection, route.alias, state.base)
        best = find_best(promotions, state.incumbent, list_measured_kinds(promotions))
        needed.update(
            policy.adapter.adapter for policy in best.values() if policy.adapter is not None
        )
    return frozenset(needed)


def _find_away(connection: "Connection", table: RouteTable) -> frozenset[str]:
    """Return the adapters that play users for an agent that now runs on another base."""
    bases = dict(agents.present(connection))
    return frozenset(
        row.adapter
        for row in table.adapters
        if row.role == "user" and bases.get(row.alias, row.base) != row.base
    )


class Reconciler:
    """Brings replicas and tables of one home into agreement. The caller holds
    `hold_serving_lock`."""

    def __init__(self, app: "App", fleet: Fleet, clock: Callable[[], datetime] = utc_now) -> None:
        self._app = app
        self._fleet = fleet
        self._clock = clock
        self._decisions = Decisions(app)
        self.backoff = Backoff()
        self._lost: frozenset[str] = frozenset()

    def tick(self) -> ReconcileResult:
        """Take all due steps. Raises LogError, DatabaseUnavailable."""
        self._app.settle()
        if not (self._fleet.engines and self._anything()):
            return ReconcileResult()
        look = self._fleet.look()
        situation = observe(self._app, look, self._clock())
        wanted = steps(situation)
        self.backoff.keep(wanted, situation.lost)
        done = self._do(wanted, situation, look)
        done.troubles += self._list_new_outages(look)
        return done

    def clear(self) -> None:
        """Unload only unused adapters, to make room; the parts of a version are unloaded after
        it."""
        for _ in range(_CLEARINGS):
            look = self._fleet.look()
            situation = observe(self._app, look, self._clock())
            due = [step for step in steps(situation) if isinstance(step, Unload | Note | Retire)]
            if not due:
                return
            self._do(due, situation, look)

    def _anything(self) -> bool:
        """Return whether engines may hold an adapter; if not, they need not be asked."""
        with self._app.reading() as connection:
            return bool(serving.route_table(connection).adapters)

    def _do(self, due: Sequence[Step], situation: Situation, look: Look) -> ReconcileResult:
        done, failed = ReconcileResult(), set[str]()
        taker = _Taker(self._app, self._fleet, self._decisions, situation, look, done)
        for step in due:
            if step.adapter in failed or self.backoff.waits(step, self._clock()):
                continue
            try:
                taker.take(step)
            except (LogError, DatabaseError):
                raise
            except (KintsugiError, OSError) as error:
                failed.add(step.adapter)
                done.troubles.append(str(error))
                self.backoff.record_failure(step, self._clock())
            else:
                self.backoff.record_success(step)
        taker.tell()
        return done

    def _list_new_outages(self, look: Look) -> list[str]:
        """Return the errors of lost replicas, each once per outage."""
        new = [str(error) for url, error in look.lost.items() if url not in self._lost]
        self._lost = frozenset(look.lost)
        return new


class _Taker:
    def __init__(
        self,
        app: "App",
        fleet: Fleet,
        decisions: Decisions,
        situation: Situation,
        look: Look,
        done: ReconcileResult,
    ) -> None:
        self._app = app
        self._fleet = fleet
        self._decisions = decisions
        self._situation = situation
        self._holding = dict(look.holding)
        self._done = done
        self._roles = roles(situation)
        self._inheriting = list_heirs(situation)
        self._proofs: dict[str, dict[str, Proof]] = {}
        """Adapter -> replica -> its first proof there."""

    def take(self, step: Step) -> None:
        match step:
            case Unload():
                self._unload(step)
            case Load():
                self._load(step)
            case Note():
                self._move(step, "unloaded", "nobody holds it any more")
            case Retire():
                self._move(step, "draining", "the last version with it is unloaded", "retired")
            case Delete():
                self._delete(step)

    def tell(self) -> None:
        """Append an event for each adapter that newly answers on replicas."""
        for name, proofs in self._proofs.items():
            row = self._row(name)
            staged = AdapterStaged(
                adapter=name,
                replicas=tuple(sorted({*row.replicas, *proofs})),
                distance=max(proof.distance for proof in proofs.values()),
                from_base=min(proof.from_base for proof in proofs.values()),
            )
            try:
                self._decisions.take(staged, f"staged {name} {staged.replicas}", row.cause)
            except DecisionRefusal as error:
                # A rollback does not wait: the adapter went out of service meanwhile.
                self._done.troubles.append(str(error))

    def _row(self, name: str) -> AdapterRow:
        row = self._situation.table.adapter(name)
        assert row is not None, "steps are about adapters of the table"
        return row

    def _unload(self, step: Unload) -> None:
        self._fleet.engines[step.replica].replica.unload(step.adapter)
        self._hold(step.replica, self._holding[step.replica].adapters - {step.adapter})
        self._done.unloaded.append(step.adapter)

    def _load(self, step: Load) -> None:
        row, engine = self._row(step.adapter), self._fleet.engines[step.replica]
        started = engine.started
        folder = self._fleet.locate(row.path)
        intact(folder, row.sha256, started.checkpoint, started.max_lora_rank)
        holding, role = self._holding[step.replica], self._roles[step.adapter]
        for name in check_room(engine, holding, self._roles, {step.adapter: role}):
            if name == step.adapter:
                return  # it is only kept, and there is no room for that
            self._unload(Unload(step.replica, name))
        table = self._situation.table
        rivals = self._fleet.rivals(row, table.adapters)
        beside_base = None in collect_route_adapters(table.routes, row.base, table.adapters)
        routed = step.adapter in self._inheriting
        proof = self._fleet.admit(engine, row, rivals, beside_base=beside_base, routed=routed)
        self._hold(step.replica, self._holding[step.replica].adapters | {step.adapter})
        self._done.loaded.append(step.adapter)
        if step.replica not in row.replicas and row.state not in RETIRED:
            self._proofs.setdefault(step.adapter, {})[step.replica] = proof

    def _hold(self, url: str, adapters: frozenset[str]) -> None:
        self._holding[url] = replace(self._holding[url], adapters=adapters)

    def _move(self, step: Step, state: Retired, reason: str, name: str | None = None) -> None:
        """Append the adapter's new state; `name` is that of the decision, if not the state's."""
        row = self._row(step.adapter)
        moved = AdapterMoved(adapter=row.adapter, state=state, reason=reason)
        self._decisions.take(moved, f"{name or state} {row.adapter}", row.cause)

    def _delete(self, step: Delete) -> None:
        row = self._row(step.adapter)
        store, folder = self._app.settings.adapters, self._fleet.locate(row.path)
        ours = row.has_files and folder.parent == store
        if ours:
            _remove(folder)
        reason = "its files are deleted" if ours else f"its files are left in {folder}"
        if not row.has_files:
            reason = "it has no files of its own"
        self._move(step, "collected", reason)
        self._done.collected.append(row.adapter)


def _remove(folder: Path) -> None:
    """Remove a folder, or the rest of it after a kill. Raises OSError."""
    unfinished = folder.with_name(UNFINISHED + folder.name)
    if folder.exists():
        shutil.rmtree(unfinished, ignore_errors=True)
        folder.rename(unfinished)
    if unfinished.exists():
        shutil.rmtree(unfinished)
