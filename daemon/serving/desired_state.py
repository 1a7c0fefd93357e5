"""What replicas should hold, and the steps that lead there from what they hold: pure.

    roles(situation)    adapter -> why it should be loaded; adapters not in it should not be
    steps(situation)    what is to be done about it, in this order: unload, load, note, delete

Level-triggered: nothing here remembers what was done before. The same situation gives the same
steps, so a process that was killed in the middle, or finds a restarted replica, asks again.

Guarantees: an adapter is unloaded only when every live gateway has applied the route without it and
has neither a call nor an open session on it (or it has been retired for the longest age of a
session); its files go only when no replica names it, every replica was asked, the grace has passed,
and neither a job nor a gate may need them. Not covered: calls that reach an engine by no gateway;
and the room (residency.py).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from consumers.reads.gateways import GatewayState
from consumers.reads.serving import AdapterRow, OperatorActionLine, RouteTable
from daemon.serving.residency import Role
from events.envelope import parse_timestamp
from events.lifecycle import LOADED, RETIRED, State

PIN: Final = "adapters pin"
UNPIN: Final = "adapters pin --off"
"""Names of an operator's actions (also `PIN`)."""

PROBATION: Final = "~probation"
"""Suffix of the name under which an adapter is proven before it gets its own again."""

ADMISSIBLE: Final = LOADED - RETIRED
"""States in which an adapter may be staged on more replicas."""


@dataclass(frozen=True, slots=True)
class ReplicaContents:
    """Base and adapters that a replica was seen to serve."""

    url: str
    base: str
    adapters: frozenset[str]


@dataclass(frozen=True, slots=True)
class Retention:
    """How long adapters without traffic are kept."""

    max_session_age: timedelta
    grace: timedelta
    versions: int
    """Number of former adapters per alias that keep their files."""


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything the steps depend on, at one moment."""

    table: RouteTable
    gateways: Sequence[GatewayState]
    """Live gateways."""
    pinned: frozenset[str]
    replicas: Sequence[ReplicaContents]
    """Replicas that answered."""
    lost: frozenset[str]
    """URLs of the replicas that did not answer."""
    now: datetime
    keeping: Retention
    needed: frozenset[str] = frozenset()
    """Adapters whose files a job or a gate may read yet."""


@dataclass(frozen=True, slots=True)
class Unload:
    """Unload an adapter that no gateway routes to, on one replica."""

    replica: str
    adapter: str
    """Name of the adapter on the replica."""


@dataclass(frozen=True, slots=True)
class Load:
    """Load an adapter that a replica should have and does not, or was not seen to answer with."""

    replica: str
    adapter: str


@dataclass(frozen=True, slots=True)
class Note:
    """Append an event: the adapter is on no replica any more."""

    adapter: str


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the files of an adapter that is not needed any more."""

    adapter: str


Step = Unload | Load | Note | Delete


def read_pins(actions: Iterable[OperatorActionLine]) -> frozenset[str]:
    """Return the adapters that operators want loaded under their own names; `actions` in log
    order."""
    pins: dict[str, None] = {}
    for action in actions:
        name = action.arguments.get("adapter", "")
        if action.action == PIN:
            pins[name] = None
        elif action.action == UNPIN:
            pins.pop(name, None)
    return frozenset(pins)


def roles(situation: Situation) -> dict[str, Role]:
    """Return the reason why each adapter should be loaded, the most recently moved ones last."""
    rows = sorted(situation.table.adapters, key=lambda row: (row.offset, row.adapter))
    pairs = ((row.adapter, _role(row, situation)) for row in rows)
    return {name: role for name, role in pairs if role is not None}


def _role(row: AdapterRow, situation: Situation) -> Role | None:
    if row.state not in LOADED:
        return None
    if row.state is State.PROMOTED:
        return "stable"
    if row.state is State.CANARY:
        return "canary"
    if row.adapter in _shadows(situation.table):
        return "shadow"
    if row.adapter in situation.pinned:
        return "pinned"
    if row.state not in RETIRED:
        return "staged"
    if not row.replicas:
        return None
    if not is_idle(row, situation):
        return "draining"
    return "kept" if row.adapter in _former(situation.table, 1) else None


def is_idle(row: AdapterRow, situation: Situation) -> bool:
    """Whether no live gateway routes to a retired adapter or has a call or open session on it."""
    old = _age(row, situation) >= situation.keeping.max_session_age
    return all(
        seen.report.position > row.offset and (old or not seen.report.uses(row.adapter))
        for seen in situation.gateways
    )


def steps(situation: Situation) -> list[Step]:
    """Return the steps that are due. A failing step delays only those of the same adapter."""
    wanted = roles(situation)
    return [
        *_unloads(situation, wanted),
        *_loads(situation, wanted),
        *_notes(situation, wanted),
        *_deletions(situation),
    ]


def _unloads(situation: Situation, wanted: Mapping[str, Role]) -> Iterator[Step]:
    ours = {row.adapter for row in situation.table.adapters}
    for replica in situation.replicas:
        for name in sorted(replica.adapters):
            # Adapters that another program loaded are left alone.
            if (name in ours and name not in wanted) or name.endswith(PROBATION):
                yield Unload(replica.url, name)


def _loads(situation: Situation, wanted: Mapping[str, Role]) -> Iterator[Step]:
    for name in wanted:
        row = situation.table.adapter(name)
        assert row is not None, "roles are those of rows"
        for replica in situation.replicas:
            if replica.base == row.base and _lacks(replica, row):
                yield Load(replica.url, name)


def _lacks(replica: ReplicaContents, row: AdapterRow) -> bool:
    proven = replica.url in row.replicas
    there = row.adapter in replica.adapters
    return (proven and not there) or (not proven and row.state in ADMISSIBLE)


def _notes(situation: Situation, wanted: Mapping[str, Role]) -> Iterator[Step]:
    for row in situation.table.adapters:
        if row.state in RETIRED and row.adapter not in wanted:
            yield Note(row.adapter)


def _deletions(situation: Situation) -> Iterator[Step]:
    if situation.lost:
        return
    kept = (
        _former(situation.table, situation.keeping.versions) | situation.pinned | situation.needed
    )
    named = {name for replica in situation.replicas for name in replica.adapters}
    for row in situation.table.adapters:
        gone = row.state is State.UNLOADED and _age(row, situation) >= situation.keeping.grace
        if gone and row.adapter not in kept | named:
            yield Delete(row.adapter)


def _age(row: AdapterRow, situation: Situation) -> timedelta:
    """Return the time since the adapter came into its state."""
    if row.since is None:
        return timedelta()
    return situation.now - parse_timestamp(row.since)


def _shadows(table: RouteTable) -> frozenset[str | None]:
    return frozenset(route.standing.shadow for route in table.routes)


def _former(table: RouteTable, versions: int) -> frozenset[str | None]:
    """Return the last `versions` adapters of each route that a rollback may return to."""
    return frozenset(name for route in table.routes for name in route.standing.before[:versions])
