"""Reads of panels: the calls of their members, and why the base answered instead."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, func, select

from consumers.reads import learning, serving
from consumers.reads.learning import CycleRow
from consumers.reads.serving import AdapterRow
from consumers.tables import Adapter, Call, Cycle, LifecycleStep
from events.lifecycle import State
from events.serving import AdapterMoved, GateDecided


@dataclass(slots=True)
class PanelTraffic:
    """Numbers of the calls that a panel answered."""

    calls: int = 0
    by_skill: dict[str | None, int] = field(default_factory=dict)
    """Skill that the router chose -> calls; None if the base answered because of a doubt."""
    doubts: dict[str, int] = field(default_factory=dict)
    """Doubt of the router -> calls that the base answered because of it."""


def list_panels(connection: Connection, alias: str | None = None) -> list[AdapterRow]:
    """Return the panels of an agent, or of all agents, the last changed first."""
    adapters = Adapter.table().c
    query = select(adapters.adapter).where(adapters.panel.is_not(None))
    if alias is not None:
        query = query.where(adapters.alias == alias)
    names = connection.execute(query.order_by(adapters.offset.desc(), adapters.adapter)).scalars()
    return [serving.find_adapter(connection, name) for name in list(names)]


def list_late_panels(connection: Connection, alias: str) -> list[tuple[AdapterRow, CycleRow]]:
    """Return (panel, cycle) of an agent's panels that are still unused after their cycle ended."""
    adapters, cycles = Adapter.table().c, Cycle.table().c
    query = (
        select(adapters.adapter, cycles.cycle)
        .join(Cycle.table(), cycles.panel == adapters.adapter)
        .where(
            adapters.alias == alias,
            adapters.state == State.PRODUCED.value,
            cycles.outcome.is_not(None),
        )
        .order_by(adapters.adapter)
    )
    late = [
        (serving.adapter_row(connection, row.adapter), learning.cycle(connection, row.cycle))
        for row in connection.execute(query).all()
    ]
    return [(row, cycle) for row, cycle in late if row is not None and cycle is not None]


def read_member_exits(
    connection: Connection, panel: AdapterRow, until: int | None = None
) -> dict[str, str]:
    """Return skill -> why no later panel may have this member's adapter. Since the panel was
    composed, a gate or a person rejected the adapter, a rollback took its sessions back, or a
    person retired it. An adapter that a route merely replaced stays a member. `until` ignores
    events from this offset of `learning` on.
    """
    assert panel.composition is not None, "it is a panel"
    composed = _read_steps(connection, panel.adapter)[0].offset
    lapsed: dict[str, str] = {}
    for member in panel.composition.members:
        if member.adapter is None:
            continue
        steps = [
            step
            for step in _read_steps(connection, member.adapter)
            if step.offset > composed and (until is None or step.offset < until)
        ]
        last = steps[-1] if steps else None
        if last is None or not _is_verdict(last.state, last.type):
            continue
        reason = f": {last.reason}" if last.reason else ""
        by_gate = " by a gate" if last.type == GateDecided.TYPE else ""
        lapsed[member.skill] = f"{member.adapter} is {last.state}{by_gate}{reason}"
    return lapsed


def _is_verdict(state: str, event_type: str) -> bool:
    """Return whether a step rejects an adapter, rolls it back, or retires it."""
    if state == State.DRAINING:
        return event_type == AdapterMoved.TYPE
    return state in (State.REJECTED, State.ROLLED_BACK)


def _read_steps(connection: Connection, adapter: str) -> Sequence[Any]:
    """Return the accepted steps of an adapter in order, without unloading and collection."""
    steps = LifecycleStep.table().c
    query = select(steps.state, steps.type, steps.reason, steps.offset).where(
        steps.kind == "adapter",
        steps.subject == adapter,
        steps.state.is_not(None),
        steps.state.not_in((State.UNLOADED.value, State.COLLECTED.value)),
    )
    return connection.execute(query.order_by(steps.number)).all()


def read_traffic(connection: Connection, panels: Collection[str]) -> dict[str, PanelTraffic]:
    """Return panel -> counts of its calls, without calls that no engine answered."""
    calls = Call.table().c
    lost = (func.coalesce(calls.outcome, "") == "failed") & calls.upstream.is_(None)
    query = (
        select(calls.policy, calls.skill, calls.router_doubt, func.count().label("number"))
        .where(calls.policy.in_(sorted(panels)), calls.member.is_not(None), ~lost)
        .group_by(calls.policy, calls.skill, calls.router_doubt)
        .order_by(calls.policy, calls.skill, calls.router_doubt)
    )
    traffic = {panel: PanelTraffic() for panel in sorted(panels)}
    for row in connection.execute(query):
        seen = traffic[row.policy]
        seen.calls += row.number
        # A call with a doubt may still name the skill whose member no engine had.
        skill = row.skill if row.router_doubt is None else None
        seen.by_skill[skill] = seen.by_skill.get(skill, 0) + row.number
        if row.router_doubt is not None:
            seen.doubts[row.router_doubt] = seen.doubts.get(row.router_doubt, 0) + row.number
    return traffic
