"""The folds of adapters and routes. An event changes one only if its present state allows it.

If two writers decide at once, the second one's event is refused: `serving_steps` says why and the
other tables stay as they are. A repeated event that already counted changes nothing. A repeated
event that was refused is checked again, because its obstacle may be gone. Guarantee: folds read
only their event and the tables, so every log gives the same rows.
"""

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, func, select

from consumers.batch import Batch, Row
from consumers.folds.overrides import apply_pattern_override
from consumers.folds.record import FoldInput
from consumers.folds.routing import Candidate, RouteRefusal, RouteState, apply_route_change
from consumers.tables import (
    Adapter,
    Evaluation,
    LifecycleStep,
    OperatorAction,
    ProjectionTable,
    Route,
)
from events.canonical import exact_json
from events.learning import VERSION
from events.lifecycle import LOADED, State, after
from events.serving import (
    AdapterEvaluated,
    AdapterMoved,
    AdapterProduced,
    AdapterStaged,
    Composition,
    GateDecided,
    OperatorActed,
    RouteChanged,
    RouteShare,
    ServingEvent,
)


def fold_adapter_production(folding: FoldInput, data: AdapterProduced, batch: Batch) -> None:
    """Store a new adapter in its first state."""
    named = {"adapter", "alias", "base", "sha256", "path", "capability", "job", "origin", "role"}
    merge = None if data.merge is None else data.merge.model_dump_json()
    step_adapter(folding, data, batch, {**data.model_dump(include=named), "merge": merge})


def fold_adapter_staging(folding: FoldInput, data: AdapterStaged, batch: Batch) -> None:
    """Store the proof that replicas hold an adapter and answer with it."""
    proof: Row = {
        "replicas": exact_json(data.replicas),
        "distance": data.distance,
        "from_base": data.from_base,
    }
    step_adapter(folding, data, batch, proof)


def fold_adapter_evaluation(folding: FoldInput, data: AdapterEvaluated, batch: Batch) -> None:
    """Store an adapter's measurement, on which the gate decides."""
    if _is_refused_user(folding, data, batch):
        return
    evaluations = Evaluation.table().c
    taken = step_adapter(folding, data, batch, {})
    if not taken:
        return
    batch.stage(
        Evaluation,
        {
            "adapter": data.adapter,
            "number": _count(batch, Evaluation, evaluations.adapter == data.adapter),
            "incumbent": data.incumbent,
            "environment": data.environment,
            "tasks": data.tasks,
            "trials": data.trials,
            "incumbent_pass": data.pass_hat_1.incumbent,
            "candidate_pass": data.pass_hat_1.candidate,
            "event": folding.event.envelope.id,
            "time": folding.time,
            **folding.place(),
        },
    )


def fold_gate_decision(folding: FoldInput, data: GateDecided, batch: Batch) -> None:
    """Store the gate's decision and report with the adapter."""
    if _is_refused_user(folding, data, batch):
        return
    report = exact_json(data.report.model_dump(mode="json"))
    step_adapter(folding, data, batch, {"incumbent": data.incumbent, "gate": report})


def _is_refused_user(
    folding: FoldInput, data: AdapterEvaluated | GateDecided, batch: Batch
) -> bool:
    """Refuse the event if its adapter plays users, because such adapters have their own gate.
    Return whether it was refused."""
    row = find_adapter(batch, data.adapter)
    if row is None or row["role"] != "user":
        return False
    refused = f"{data.adapter} plays users, and was measured as an agent"
    refuse_step(folding, batch, "adapter", data.adapter, refused, "")
    return True


def fold_adapter_move(folding: FoldInput, data: AdapterMoved, batch: Batch) -> None:
    """Move an adapter out of service. Never unload one that a route or loaded version names."""
    unloaded = State(data.state) in (State.UNLOADED, State.COLLECTED)
    refused = _find_user(batch, data.adapter) if unloaded else None
    if refused is not None:
        refuse_step(folding, batch, "adapter", data.adapter, refused, data.reason)
        return
    step_adapter(folding, data, batch, {"replicas": "[]"} if unloaded else {}, data.reason)


def fold_route_change(folding: FoldInput, data: RouteChanged, batch: Batch) -> None:
    """Change a route as a whole or not at all, and the states of its adapters with it."""
    if _is_repeat(folding, batch):
        return
    route = _read_route_state(batch, data.alias)
    rows = _adapters(batch, data, route)
    try:
        following = apply_route_change(
            route, {name: candidate(row) for name, row in rows.items()}, data
        )
    except RouteRefusal as refused:
        refuse_step(folding, batch, "alias", data.alias, str(refused), data.reason)
        return
    note_step(folding, batch, "alias", data.alias, None, data.reason)
    for name, row in sorted(rows.items()):
        state = after(name, State(row["state"]), data)
        if state is not None and state != row["state"]:
            move_adapter(folding, batch, row, state, data.reason)
            note_step(folding, batch, "adapter", name, state, data.reason)
    if data.why == "holdout":
        # Only the holdout changes. The answering policies, and the time and reason of their choice,
        # stay.
        routes = Route.table()
        kept = batch.connection.execute(select(routes).where(routes.c.alias == data.alias))
        changed = {"holdout": following.holdout or None, **folding.place()}
        batch.stage(Route, {**kept.mappings().one(), **changed})
    else:
        batch.stage(Route, _route_row(folding, data, following))


def fold_operator_action(folding: FoldInput, data: OperatorActed, batch: Batch) -> None:
    """Store an operator's action, and apply it if it overrides a pattern."""
    batch.stage(
        OperatorAction,
        {
            "event": folding.event.envelope.id,
            "actor": data.actor,
            "action": data.action,
            "arguments": exact_json(data.arguments),
            "reason": data.reason,
            "time": folding.time,
            **folding.place(),
        },
    )
    apply_pattern_override(data, batch)


def candidate(row: Row) -> Candidate:
    """Return the facts in an adapter's row that decide whether a route may name it."""
    return Candidate(
        alias=row["alias"],
        base=row["base"],
        state=State(row["state"]),
        proven=row["replicas"] != "[]",
        incumbent=row["incumbent"],
        role=row["role"],
    )


def parse_route_state(row: Row) -> RouteState:
    """Return a route's state from its row."""
    return RouteState(
        base=row["base"],
        shares=tuple(RouteShare.model_validate(part) for part in json.loads(row["shares"])),
        shadow=row["shadow"],
        incumbent=row["incumbent"],
        previous=tuple(json.loads(row["previous"])),
        holdout=row["holdout"] or 0.0,
    )


def step_adapter(
    folding: FoldInput, data: ServingEvent, batch: Batch, changes: Row, reason: str = ""
) -> bool:
    """Move the event's adapter to its next state and write `changes` into its row. Return False if
    the event is refused or repeated."""
    assert not isinstance(data, RouteChanged), "a route moves several"
    if _is_repeat(folding, batch):
        return False
    row = find_adapter(batch, data.adapter)
    state = after(data.adapter, None if row is None else State(row["state"]), data)
    if state is None:
        refuse_step(folding, batch, "adapter", data.adapter, _refusal(data, row), reason)
        return False
    unknown: Row = {**Adapter.blank(), "role": "agent", "replicas": "[]"}
    known = {**(row or unknown), **changes}
    if row is None or row["state"] != state:
        move_adapter(folding, batch, known, state, reason)
    else:
        batch.stage(Adapter, known)
    note_step(folding, batch, "adapter", data.adapter, state, reason)
    return True


def _refusal(data: ServingEvent, row: Row | None) -> str:
    assert not isinstance(data, RouteChanged), "a route says why itself"
    if row is None:
        return f"nobody produced an adapter {data.adapter}"
    wanted = data.state if isinstance(data, AdapterMoved) else data.TYPE
    return f"{data.adapter} is {row['state']}: no {wanted} from there"


def move_adapter(folding: FoldInput, batch: Batch, row: Row, state: State, reason: str) -> None:
    """Stage an adapter's row with a new state, reason and cause."""
    batch.stage(
        Adapter,
        {
            **row,
            "state": state.value,
            "reason": reason,
            "since": folding.time,
            "cause": folding.event.envelope.id,
            **folding.place(),
        },
    )


def _route_row(folding: FoldInput, data: RouteChanged, following: RouteState) -> Row:
    return {
        "alias": data.alias,
        "base": following.base,
        "shares": exact_json([part.model_dump() for part in following.shares]),
        "holdout": following.holdout or None,
        "shadow": following.shadow,
        "incumbent": following.incumbent,
        "previous": exact_json(following.previous),
        "why": data.why,
        "reason": data.reason,
        "since": folding.time,
        "cause": folding.event.envelope.id,
        **folding.place(),
    }


def note_step(
    folding: FoldInput, batch: Batch, kind: str, subject: str, state: State | None, reason: str,
    refused: str | None = None,
) -> None:  # fmt: skip
    """Add a row to `serving_steps`. `refused` is the reason if the step was not taken."""
    steps = LifecycleStep.table().c
    envelope = folding.event.envelope
    batch.stage(
        LifecycleStep,
        {
            "kind": kind,
            "subject": subject,
            "number": _count(batch, LifecycleStep, steps.kind == kind, steps.subject == subject),
            "type": envelope.type,
            "state": None if state is None else state.value,
            "refused": refused,
            "reason": reason,
            "event": envelope.id,
            "cause": envelope.cause,
            "time": folding.time,
            **folding.place(),
        },
    )


def refuse_step(
    folding: FoldInput, batch: Batch, kind: str, subject: str, refused: str, reason: str
) -> None:
    """Record in `serving_steps` why an event changed nothing; a repetition records nothing."""
    if not _is_repeat(folding, batch):
        note_step(folding, batch, kind, subject, None, reason, refused)


def _is_repeat(folding: FoldInput, batch: Batch) -> bool:
    """Return whether this event already counted. A process killed after an append appends again."""
    batch.flush()
    steps = LifecycleStep.table().c
    same = select(steps.event).where(
        steps.event == folding.event.envelope.id, steps.refused.is_(None)
    )
    return batch.connection.execute(same.limit(1)).first() is not None


def _count(batch: Batch, table: type[ProjectionTable], *where: Any) -> int:
    query = select(func.count()).select_from(table.table()).where(*where)
    return int(batch.connection.execute(query).scalar_one())


def find_adapter(batch: Batch, name: str) -> Row | None:
    """Return the row of an adapter; None if it was never produced."""
    return read_adapter_rows(batch, [name]).get(name)


def read_adapter_rows(batch: Batch, names: Iterable[str]) -> dict[str, Row]:
    """Return name -> row of the known adapters."""
    adapters = Adapter.table()
    query = select(adapters).where(adapters.c.adapter.in_(sorted(names)))
    return {row["adapter"]: dict(row) for row in batch.connection.execute(query).mappings()}


def _adapters(batch: Batch, data: RouteChanged, route: RouteState | None) -> dict[str, Row]:
    """Return the rows of the adapters that the route names now or will name."""
    named = {part.adapter for part in data.shares} | {data.shadow}
    if route is not None:
        named |= route.adapters
    return read_adapter_rows(batch, (name for name in named if name is not None))


def _read_route_state(batch: Batch, alias: str) -> RouteState | None:
    routes = Route.table()
    row = batch.connection.execute(select(routes).where(routes.c.alias == alias)).mappings().first()
    return None if row is None else parse_route_state(dict(row))


def _find_user(batch: Batch, adapter: str) -> str | None:
    """Return a sentence that names a use of the adapter, or None. A route may name it as shadow, or
    a version that replicas may hold may have it as a part."""
    batch.flush()
    routes = Route.table().c
    query = select(routes.alias).where(routes.shadow == adapter).limit(1)
    alias: str | None = batch.connection.execute(query).scalar()
    if alias is not None:
        return f"the route of {alias} names {adapter} as its shadow"
    loaded = Adapter.table().c.state.in_(sorted(state.value for state in LOADED))
    for name, (origin, parts) in read_compositions(batch.connection, loaded).items():
        if adapter in parts:
            return f"the {origin} {name} has {adapter} as a part"
    return None


class VersionParts(NamedTuple):
    """A served version that consists of members and has no files of its own."""

    origin: str
    parts: tuple[str, ...]
    """Adapters that an engine must hold to serve the version."""


def has_members() -> ColumnElement[bool]:
    """Return the SQL condition that a row of `adapters` is a version with members."""
    return Adapter.table().c[VERSION].is_not(None)


def read_compositions(
    connection: Connection, *where: ColumnElement[bool]
) -> dict[str, VersionParts]:
    """Return the versions with members that meet the conditions `where`, by name."""
    adapters = Adapter.table().c
    columns = (adapters.adapter, adapters.origin, adapters[VERSION].label("composition"))
    query = select(*columns).where(has_members(), *where)
    return {
        row.adapter: VersionParts(
            row.origin, Composition.model_validate_json(row.composition).adapters
        )
        for row in connection.execute(query.order_by(adapters.adapter))
    }
