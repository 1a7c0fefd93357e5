"""Decide which adapters replicas should hold, and by which steps (pure functions).

A role is the reason to load an adapter. A version with members has a role but no files: its parts,
the adapters of its members and chooser, inherit the role. A part loaded only for such versions is
retired after the last of them is unloaded. An adapter that plays users keeps its slot until another
replaces it, while its agent runs on the same base; no gateway routes to it. The same situation
always gives the same steps, also after a kill or a replica's restart.

Guarantees: an adapter is unloaded only when it is no part of a version with a role, and every live
gateway has applied the route without it. No gateway may have a call or an open session on it,
unless it has been retired for the longest age of a session. Its files go only when every replica
was asked and none names it, the grace has passed, no job or gate may need them, and every version
with it is collected. Not covered: calls that bypass the gateways; the room (residency.py).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from consumers.reads.gateways import GatewayState
from consumers.reads.serving import AdapterRow, OperatorActionLine, RouteTable
from daemon.serving.residency import Role, pick_stronger
from events.envelope import parse_timestamp
from events.lifecycle import LOADED, RETIRED, State

PIN: Final = "adapters pin"
UNPIN: Final = "adapters pin --off"
"""Names of operators' actions, as the events have them (also `PIN`)."""

PROBATION: Final = "~probation"
"""Suffix of the name under which an adapter is proven before it is loaded under its own name."""

ADMISSIBLE: Final = LOADED - RETIRED
"""States of an adapter that may be loaded on further replicas."""


@dataclass(frozen=True, slots=True)
class ReplicaContents:
    """Base and adapters that one replica holds."""

    url: str
    base: str
    adapters: frozenset[str]


@dataclass(frozen=True, slots=True)
class Retention:
    """How long adapters without traffic are kept."""

    max_session_age: timedelta
    grace: timedelta
    versions: int
    """Number of former adapters per alias whose files are kept."""


@dataclass(frozen=True, slots=True)
class Situation:
    """All inputs from which the steps are computed, at one moment."""

    table: RouteTable
    gateways: Sequence[GatewayState]
    pinned: frozenset[str]
    replicas: Sequence[ReplicaContents]
    """The replicas that answered, with their contents."""
    lost: frozenset[str]
    """URLs of the replicas that did not answer."""
    now: datetime
    keeping: Retention
    needed: frozenset[str] = frozenset()
    """Adapters whose files a job or gate may still read, and versions with such adapters."""
    away: frozenset[str] = frozenset()
    """Adapters that play users for an agent that now runs on another base."""


@dataclass(frozen=True, slots=True)
class Unload:
    """Unload an adapter that no gateway routes to, on one replica."""

    replica: str
    adapter: str
    """Name of the adapter on the replica."""


@dataclass(frozen=True, slots=True)
class Load:
    """Load an adapter on a replica that lacks it, or prove it there again."""

    replica: str
    adapter: str


@dataclass(frozen=True, slots=True)
class Note:
    """Append an event which says that no replica has the adapter any more."""

    adapter: str


@dataclass(frozen=True, slots=True)
class Retire:
    """Append an event that retires an adapter which was loaded only as a part of versions."""

    adapter: str


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete an adapter's files and append the event; a version with members has no files."""

    adapter: str


Step = Unload | Load | Note | Retire | Delete


def read_pins(actions: Iterable[OperatorActionLine]) -> frozenset[str]:
    """Return the adapters that are pinned after these operators' actions, given in log order."""
    pins: dict[str, None] = {}
    for action in actions:
        name = action.arguments.get("adapter", "")
        if action.action == PIN:
            pins[name] = None
        elif action.action == UNPIN:
            pins.pop(name, None)
    return frozenset(pins)


def roles(situation: Situation) -> dict[str, Role]:
    """Return adapter -> reason to load it (role); the ones whose state changed last come last. A
    version with members is replaced by its parts, each with its strongest role."""
    inherited = _inherit_roles(situation)
    reasons: dict[str, tuple[int, Role]] = {}
    for row in situation.table.adapters:
        offset, of_whole = inherited.get(row.adapter, (-1, None))
        role = _role(row, situation)
        if role == "staged" and _is_remainder(row, situation.table):
            # Unless a version with a role has it as a part, it is retired next (`_retirements`).
            role = of_whole or "draining"
        role = pick_stronger(role, of_whole)
        if row.has_files and role is not None:
            reasons[row.adapter] = (max(row.offset, offset), role)
    order = sorted(reasons, key=lambda name: (reasons[name][0], name))
    return {name: reasons[name][1] for name in order}


def list_heirs(situation: Situation) -> frozenset[str]:
    """Return the adapters that are loaded as parts of versions."""
    return frozenset(_inherit_roles(situation))


def _inherit_roles(situation: Situation) -> dict[str, tuple[int, Role]]:
    """Return part -> (offset of the last change of its versions, their strongest role)."""
    inherited: dict[str, tuple[int, Role]] = {}
    for row in situation.table.adapters:
        role = None if row.has_files else _role(row, situation)
        if role is None:
            continue
        for name in row.parts:
            offset, other = inherited.get(name, (-1, role))
            inherited[name] = max(offset, row.offset), pick_stronger(role, other) or role
    return inherited


def describe_user_adapter(row: AdapterRow) -> str:
    """Return the error text of a command that refuses an adapter because it plays users."""
    return f"{row.adapter} plays users of {row.alias}, and answers no client"


def list_wholes(table: RouteTable, adapter: str) -> list[AdapterRow]:
    """Return the versions with members that an adapter is part of."""
    return [row for row in table.adapters if not row.has_files and adapter in row.parts]


def _is_remainder(row: AdapterRow, table: RouteTable) -> bool:
    """Return whether an adapter without a route is loaded only as a part: one of its versions has
    gone out of service, and none waits to be staged."""
    wholes = list_wholes(table, row.adapter)
    return all(whole.state is not State.PRODUCED for whole in wholes) and any(
        whole.state in RETIRED | {State.UNLOADED} and whole.offset > row.offset for whole in wholes
    )


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
    if row.role == "user" and row.state is State.GATED:
        return "user" if row.replicas and row.adapter not in situation.away else None
    if row.state not in RETIRED:
        return "staged"
    if not row.replicas:
        return None
    if not is_idle(row, situation):
        return "draining"
    return "kept" if row.adapter in _former(situation.table, 1) else None


def is_idle(row: AdapterRow, situation: Situation) -> bool:
    """Return whether no live gateway routes to a retired version or has a call or session on it."""
    old = _age(row, situation) >= situation.keeping.max_session_age
    return all(
        seen.report.position > row.offset and (old or not seen.report.uses(row.adapter))
        for seen in situation.gateways
    )


def steps(situation: Situation) -> list[Step]:
    """Return the steps that are due. If a step fails, only steps of the same adapter wait."""
    wanted = roles(situation)
    return [
        *_unloads(situation, wanted),
        *_loads(situation, wanted),
        *_notes(situation, wanted),
        *_retirements(situation),
        *_deletions(situation),
    ]


def _unloads(situation: Situation, wanted: Mapping[str, Role]) -> Iterator[Step]:
    ours = {row.adapter for row in situation.table.adapters if row.has_files}
    for replica in situation.replicas:
        for name in sorted(replica.adapters):
            # Adapters that were loaded by another program are left alone.
            if (name in ours and name not in wanted) or name.endswith(PROBATION):
                yield Unload(replica.url, name)


def _loads(situation: Situation, wanted: Mapping[str, Role]) -> Iterator[Step]:
    inherited = list_heirs(situation)
    for name in wanted:
        row = situation.table.adapter(name)
        assert row is not None, "roles are those of rows"
        for replica in situation.replicas:
            if replica.base == row.base and _lacks(replica, row, name in inherited):
                yield Load(replica.url, name)


def _lacks(replica: ReplicaContents, row: AdapterRow, inherits: bool) -> bool:
    there = row.adapter in replica.adapters
    if replica.url in row.replicas:
        return not there
    if row.state in RETIRED:
        # The adapter was proven as a part and needs no event: an adapter on a replica was proven.
        return inherits and not there
    return inherits or row.state in ADMISSIBLE


def _notes(situation: Situation, wanted: Mapping[str, Role]) -> Iterator[Step]:
    """Yield versions with members first: their parts stay loaded as long as they do."""
    for row in sorted(situation.table.adapters, key=lambda row: row.has_files):
        used = row.adapter in wanted if row.has_files else _role(row, situation) is not None
        if row.state in RETIRED and not used:
            yield Note(row.adapter)


def _retirements(situation: Situation) -> Iterator[Step]:
    """Retire each adapter that was loaded as a part alone, once all its versions are unloaded."""
    for row in situation.table.adapters:
        wholes = list_wholes(situation.table, row.adapter)
        if (
            _role(row, situation) == "staged"
            and _is_remainder(row, situation.table)
            and all(whole.state is State.UNLOADED for whole in wholes)
        ):
            yield Retire(row.adapter)


def _deletions(situation: Situation) -> Iterator[Step]:
    if situation.lost:
        return
    kept = (
        _former(situation.table, situation.keeping.versions) | situation.pinned | situation.needed
    )
    named = {name for replica in situation.replicas for name in replica.adapters}
    wholes = (row for row in situation.table.adapters if not row.has_files)
    named.update(name for row in wholes for name in row.parts)
    for row in situation.table.adapters:
        gone = row.state is State.UNLOADED and _age(row, situation) >= situation.keeping.grace
        if gone and row.adapter not in kept | named:
            yield Delete(row.adapter)


def _age(row: AdapterRow, situation: Situation) -> timedelta:
    if row.since is None:
        return timedelta()
    return situation.now - parse_timestamp(row.since)


def _shadows(table: RouteTable) -> frozenset[str | None]:
    return frozenset(route.standing.shadow for route in table.routes)


def _former(table: RouteTable, versions: int) -> frozenset[str | None]:
    return frozenset(name for route in table.routes for name in route.standing.before[:versions])
