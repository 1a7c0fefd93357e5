"""Typed reads of adapters and routes, for the commands, the gateways and the reconciler.

Within one `database.read_transaction` all reads are of one moment. Positions are offsets in the one
partition of `learning`. A row's `offset` is of the event that changed it last; a reader at a higher
position has applied that event.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Row, func, select

from consumers.folds.adapters import has_members, parse_route_state
from consumers.folds.routing import Candidate, RouteState
from consumers.position import next_offset
from consumers.rows import find_by_prefix, make_row
from consumers.tables import Adapter, Evaluation, LifecycleStep, OperatorAction, Route
from events.errors import KintsugiError
from events.gate import GateReport
from events.jobs import CHOOSER, Chooser
from events.learning import BRANCH, VERSION
from events.lifecycle import State
from events.serving import (
    ROLE_GATE,
    AdapterMerge,
    Composition,
    GateDecided,
    Role,
    RoleEvaluated,
    UserFaultRate,
)
from events.streams import LEARNING


class UnknownAdapter(KintsugiError):
    """No adapter has this name, or several names begin with it."""


@dataclass(frozen=True, slots=True)
class AdapterLine:
    """An adapter in a list, as in tables.py."""

    adapter: str
    state: str
    base: str
    capability: str | None
    job: str | None
    gate: dict[str, Any] | None
    alias: str
    since: str | None
    reason: str
    members: dict[str, str | None] | None = None
    """Name of a member -> adapter that answers (None for the base); None for an adapter."""
    role: Role = "agent"
    role_gate: dict[str, Any] | None = None

    @property
    def role_passed(self) -> bool | None:
        """Return whether it passed the gate of its role; None for an agent or before that gate."""
        return None if self.role_gate is None else bool(self.role_gate["passed"])


@dataclass(frozen=True, slots=True)
class RouteLine:
    """A share of an alias' sessions, and the adapter that answers it."""

    alias: str
    adapter: str | None
    """None for the base."""
    share: float
    """Share of all sessions; 0 for a shadow, because clients never get its answers."""
    since: str | None
    cause: str
    base: str
    shadow: bool
    why: str
    reason: str
    holdout: bool = False
    """Whether these sessions are held out, so that the base always answers them."""
    members: dict[str, str | None] | None = None
    """Name of a member -> adapter that answers (None for the base); None for an adapter."""


@dataclass(frozen=True, slots=True)
class AdapterRow:
    """All facts about an adapter, as in tables.py."""

    adapter: str
    alias: str
    base: str
    sha256: str
    path: str
    capability: str | None
    job: str | None
    origin: str
    state: State
    reason: str
    replicas: tuple[str, ...]
    distance: float | None
    from_base: float | None
    incumbent: str | None
    gate: GateReport | None
    since: str | None
    cause: str
    offset: int
    merge: AdapterMerge | None = None
    composition: Composition | None = None
    """Members and chooser of a version without files; None for a version with files."""
    role: Role = "agent"
    role_gate: RoleEvaluated | None = None

    @property
    def role_rates(self) -> Mapping[str, UserFaultRate]:
        """Return the fault rates measured last at the gate of its role; empty for an agent."""
        return {} if self.role_gate is None else self.role_gate.rates

    @property
    def has_files(self) -> bool:
        """Return whether it is an adapter with files; a version with members has none."""
        return self.composition is None

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the adapters that an engine must hold: itself, or its members' and chooser's."""
        return (self.adapter,) if self.composition is None else self.composition.adapters

    @property
    def members(self) -> dict[str, str | None]:
        """Return member -> adapter (None for the base); empty for a version with files."""
        return {} if self.composition is None else self.composition.by_name

    @property
    def chooser(self) -> Chooser | None:
        """Return the chooser of members for sessions; None for a version with files."""
        return None if self.composition is None else self.composition.chooser

    def describe_members(self) -> str:
        """Describe its members and chooser in words; return "" for a version with files."""
        if self.chooser is None:
            return ""
        members = ", ".join(f"{name} by {by or self.base}" for name, by in self.members.items())
        return f"answers {members}; the {CHOOSER} is {self.chooser.adapter or self.base}"

    @property
    def candidate(self) -> Candidate:
        """Return the facts that decide whether a route takes it (consumers/folds/routing.py)."""
        return Candidate(
            self.alias, self.base, self.state, bool(self.replicas), self.incumbent, self.role
        )


@dataclass(frozen=True, slots=True)
class RouteRow:
    """All facts about an alias' route."""

    alias: str
    standing: RouteState
    why: str
    reason: str
    since: str | None
    cause: str
    offset: int


@dataclass(frozen=True, slots=True)
class RouteTable:
    """All routes and all adapters that have files, at one position."""

    position: int
    """The table includes exactly the events of `learning` before this offset."""
    routes: tuple[RouteRow, ...]
    """Routes in the order of their aliases. The base answers any alias without a route."""
    adapters: tuple[AdapterRow, ...]

    def route(self, alias: str) -> RouteRow | None:
        """Return the route of an alias; None if nothing was ever decided about it."""
        return next((row for row in self.routes if row.alias == alias), None)

    def adapter(self, name: str) -> AdapterRow | None:
        """Return an adapter by its name; None if it has no files or is unknown."""
        return next((row for row in self.adapters if row.adapter == name), None)


@dataclass(frozen=True, slots=True)
class Step:
    """The change that an event made to an adapter or a route, or its refusal, as in tables.py."""

    kind: str
    subject: str
    number: int
    type: str
    state: State | None
    refused: str | None
    reason: str
    event: str
    cause: str | None
    time: str | None


@dataclass(frozen=True, slots=True)
class EvaluationLine:
    """A measurement of an adapter and of the incumbent on the same tasks."""

    adapter: str
    number: int
    incumbent: str | None
    environment: str
    tasks: int
    trials: int
    incumbent_pass: float
    candidate_pass: float
    event: str
    time: str | None


@dataclass(frozen=True, slots=True)
class OperatorActionLine:
    """An action that a person asked for."""

    event: str
    actor: str
    action: str
    arguments: dict[str, str]
    reason: str
    time: str | None


_COLUMNS: Final = {"composition": VERSION, "role_gate": ROLE_GATE}
"""Field of a row -> column of the table, if their names differ."""


def list_fields(row: AdapterRow | AdapterLine) -> dict[str, Any]:
    """Return column name -> value of a row, as commands show it."""
    return {_COLUMNS.get(name, name): getattr(row, name) for name in row.__dataclass_fields__}


def adapter_lines(
    connection: Connection, alias: str | None = None, *, collected: bool = True
) -> list[AdapterLine]:
    """Return adapters, the last changed first; with `collected` also those without files."""
    adapters = Adapter.table()
    query = select(adapters).order_by(adapters.c.offset.desc(), adapters.c.adapter)
    if not collected:
        query = query.where(adapters.c.state != State.COLLECTED.value)
    if alias is not None:
        query = query.where(adapters.c.alias == alias)
    return [
        make_row(
            AdapterLine,
            row,
            gate=json.loads(row.gate) if row.gate else None,
            members=_read_members(row._mapping[VERSION]),
            role_gate=json.loads(row._mapping[ROLE_GATE]) if row._mapping[ROLE_GATE] else None,
        )
        for row in connection.execute(query)
    ]


def route_lines(connection: Connection, alias: str | None = None) -> list[RouteLine]:
    """Return routes by alias: the largest share first, then held-out sessions, then the shadow."""
    routes = Route.table()
    query = select(routes).order_by(routes.c.alias)
    if alias is not None:
        query = query.where(routes.c.alias == alias)
    rows = connection.execute(query).all()
    members = _read_all_members(connection)
    return [line for row in rows for line in _route_lines(row, members)]


def _read_all_members(connection: Connection) -> dict[str, dict[str, str | None] | None]:
    adapters = Adapter.table().c
    query = select(adapters.adapter, adapters[VERSION].label("composition")).where(
        has_members(), adapters.state != State.COLLECTED.value
    )
    return {row.adapter: _read_members(row.composition) for row in connection.execute(query)}


def _read_members(composition: str | None) -> dict[str, str | None] | None:
    if composition is None:
        return None
    return {member[BRANCH]: member["adapter"] for member in json.loads(composition)["members"]}


def _route_lines(row: Any, members: dict[str, dict[str, str | None] | None]) -> list[RouteLine]:
    held_out = row.holdout or 0.0
    shares = [
        (part["adapter"], (1 - held_out) * part["share"], False, False)
        for part in json.loads(row.shares)
    ]
    shares.sort(key=lambda part: (-part[1], part[0] or ""))
    if held_out:
        shares.append((None, held_out, False, True))
    if row.shadow is not None:
        shares.append((row.shadow, 0.0, True, False))
    return [
        RouteLine(row.alias, name, share, row.since, row.cause, row.base, shadow, row.why,
                  row.reason, holdout, None if name is None else members.get(name))
        for name, share, shadow, holdout in shares
    ]  # fmt: skip


def adapter_row(connection: Connection, name: str) -> AdapterRow | None:
    """Return an adapter by its name; None if there is none."""
    adapters = Adapter.table()
    row = connection.execute(select(adapters).where(adapters.c.adapter == name)).first()
    return None if row is None else parse_adapter(row)


def read_job_adapter(connection: Connection, job: str) -> AdapterRow | None:
    """Return the adapter of a job; None without one."""
    adapters = Adapter.table().c
    name = connection.execute(select(adapters.adapter).where(adapters.job == job)).scalar()
    return None if name is None else adapter_row(connection, name)


def list_user_adapters(connection: Connection, alias: str) -> list[AdapterRow]:
    """Return an agent's user adapters on any base, in any state, by their last change."""
    adapters = Adapter.table()
    query = (
        select(adapters)
        .where(adapters.c.alias == alias, adapters.c.role == "user")
        .order_by(adapters.c.offset, adapters.c.adapter)
    )
    return [parse_adapter(row) for row in connection.execute(query)]


def find_adapter(connection: Connection, name: str) -> AdapterRow:
    """Return an adapter by its name or a unique prefix of it. Raise UnknownAdapter."""
    row = adapter_row(connection, name)
    if row is not None:
        return row
    names = find_by_prefix(connection, Adapter.table().c.adapter, name, 3)
    if len(names) > 1:
        raise UnknownAdapter(f"several adapters begin with {name!r}: {', '.join(names)}, ...")
    row = adapter_row(connection, names[0]) if names else None
    if row is None:
        raise UnknownAdapter(f"there is no adapter {name!r}; see kintsugi adapters ls")
    return row


def route_row(connection: Connection, alias: str) -> RouteRow | None:
    """Return the route of an alias; None if nothing was ever decided about it."""
    routes = Route.table()
    row = connection.execute(select(routes).where(routes.c.alias == alias)).first()
    return None if row is None else _parse_route(row)


def read_decision_offset(connection: Connection) -> int:
    """Return the next offset of `learning` to fold. While it stays the same, so do routes and
    adapters, except after a rebuild by a new fold version."""
    return next_offset(connection, LEARNING.name, 0)


def route_table(connection: Connection) -> RouteTable:
    """Return the routes and adapters that gateways and the reconciler follow. Call it within
    `database.read_transaction`, so that they and the position are of one moment."""
    routes, adapters = Route.table(), Adapter.table()
    kept = select(adapters).where(adapters.c.state != State.COLLECTED.value)
    return RouteTable(
        position=read_decision_offset(connection),
        routes=tuple(
            map(_parse_route, connection.execute(select(routes).order_by(routes.c.alias)))
        ),
        adapters=tuple(map(parse_adapter, connection.execute(kept.order_by(adapters.c.adapter)))),
    )


def adapter_steps(connection: Connection, name: str) -> list[Step]:
    """Return the steps of an adapter in order, including refused ones."""
    steps = LifecycleStep.table()
    query = select(steps).where(steps.c.kind == "adapter", steps.c.subject == name)
    return [_step(row) for row in connection.execute(query.order_by(steps.c.number))]


def steps_of(connection: Connection, event: str) -> list[Step]:
    """Return an event's steps. They tell its writer whether it was accepted. The list is empty
    until the event is folded, and for events that change no adapter or route."""
    steps = LifecycleStep.table()
    order = (steps.c.kind, steps.c.subject, steps.c.number)
    query = select(steps).where(steps.c.event == event).order_by(*order)
    return [_step(row) for row in connection.execute(query)]


def count_gate_passes(connection: Connection, adapter: str) -> int:
    """Return the number of gates that an adapter has passed, against any incumbent."""
    steps = LifecycleStep.table().c
    query = select(func.count()).where(
        steps.kind == "adapter", steps.subject == adapter, steps.type == GateDecided.TYPE,
        steps.state == State.GATED, steps.refused.is_(None),
    )  # fmt: skip
    return int(connection.execute(query).scalar_one())


def evaluation_lines(connection: Connection, adapter: str) -> list[EvaluationLine]:
    """Return the measurements of an adapter, first to last."""
    evaluations = Evaluation.table()
    query = select(evaluations).where(evaluations.c.adapter == adapter)
    rows = connection.execute(query.order_by(evaluations.c.number))
    return [make_row(EvaluationLine, row) for row in rows]


def operator_action(connection: Connection, event: str) -> OperatorActionLine | None:
    """Return a person's action by the id of its event; None without one."""
    actions = _operator_actions(connection, OperatorAction.table().c.event == event)
    return actions[0] if actions else None


def operator_actions(connection: Connection, *named: str) -> list[OperatorActionLine]:
    """Return people's actions in log order: the `named` ones, or all."""
    wanted = [OperatorAction.table().c.action.in_(named)] if named else []
    return _operator_actions(connection, *wanted)


def _operator_actions(connection: Connection, *where: Any) -> list[OperatorActionLine]:
    actions = OperatorAction.table()
    query = select(actions).where(*where).order_by(actions.c.offset)
    return [
        make_row(OperatorActionLine, row, arguments=json.loads(row.arguments))
        for row in connection.execute(query)
    ]


def _step(row: Any) -> Step:
    return make_row(Step, row, state=State(row.state) if row.state else None)


def parse_adapter(row: Row[Any]) -> AdapterRow:
    """Return an adapter from its row of the table."""
    composition, role_gate = row._mapping[VERSION], row._mapping[ROLE_GATE]
    return make_row(
        AdapterRow,
        row,
        merge=AdapterMerge.model_validate_json(row.merge) if row.merge else None,
        composition=Composition.model_validate_json(composition) if composition else None,
        state=State(row.state),
        replicas=tuple(json.loads(row.replicas)),
        gate=GateReport.model_validate_json(row.gate) if row.gate else None,
        role_gate=RoleEvaluated.model_validate_json(role_gate) if role_gate else None,
    )


def _parse_route(row: Row[Any]) -> RouteRow:
    return make_row(RouteRow, row, standing=parse_route_state(dict(row._mapping)))
