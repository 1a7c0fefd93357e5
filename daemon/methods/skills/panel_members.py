"""The members of the panels that answer now: their shares of the sessions, and what they won.

    read_panel_states(connection, now)    each panel that has a share of its alias' sessions

A member's share is of the sessions of the last day that its panel answered. What it won is what its
own gate measured of it beside the incumbent, on the tasks of its skill, and how many of its judged
sessions passed. Not covered: whether the base would have passed the same sessions.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from consumers.methods.skills.members import MemberSessions, read_member_sessions
from consumers.reads import counts, serving
from consumers.reads.counts import Measurement
from events.envelope import timestamp

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from consumers.reads.serving import AdapterRow

RECENT: Final = timedelta(hours=24)
"""Age beyond which sessions are in no figure, so that the figures show the present."""


@dataclass(frozen=True, slots=True)
class MemberState:
    """A member of a panel, or the base that answers where no member does."""

    skill: str | None
    """None for the sessions that no member answered: the router was in doubt, or no engine had the
    member."""
    adapter: str | None
    """None for the base."""
    sessions: int
    """Sessions of the last day that it answered."""
    share: float | None
    """Share of the panel's sessions; None where the panel has none."""
    judged: int
    """Sessions with a verdict."""
    passed: int
    gate: Measurement | None
    """Its pass^1 and that of the incumbent when it was measured last; None for the base, and for
    an adapter that was not measured."""


@dataclass(frozen=True, slots=True)
class PanelState:
    """A panel that answers a share of an alias' sessions."""

    alias: str
    base: str
    panel: str
    state: str
    """State of its row among adapters, such as `canary` or `promoted`."""
    members: tuple[MemberState, ...]
    """In the order of its composition; the base, where no member answers, last."""


def read_panel_states(connection: "Connection", now: datetime) -> list[PanelState]:
    """Return the panels that have a share, by alias and name."""
    table = serving.route_table(connection)
    since = timestamp(now - RECENT)
    return [
        _read_state(connection, route.alias, row, since)
        for route in table.routes
        for name in sorted(part.adapter for part in route.standing.shares if part.adapter)
        if (row := table.adapter(name)) is not None and row.panel is not None
    ]


def _read_state(connection: "Connection", alias: str, row: "AdapterRow", since: str) -> PanelState:
    assert row.panel is not None, "it is a panel"
    sessions: dict[str | None, MemberSessions] = {}
    for own in read_member_sessions(connection, alias, row.adapter, since):
        sessions[own.skill] = own
    total = sum(own.sessions for own in sessions.values())
    adapters = {member.skill: member.adapter for member in row.panel.members}
    measured = counts.read_measurements(connection, filter(None, adapters.values()))

    def build(skill: str | None, adapter: str | None) -> MemberState:
        own = sessions.get(skill)
        number = 0 if own is None else own.sessions
        return MemberState(
            skill, adapter, number, number / total if total else None,
            0 if own is None else own.judged, 0 if own is None else own.passed,
            None if adapter is None else measured.get(adapter),
        )  # fmt: skip

    members = [build(skill, adapter) for skill, adapter in adapters.items()]
    members.append(build(None, None))
    return PanelState(alias, row.base, row.adapter, row.state.value, tuple(members))
