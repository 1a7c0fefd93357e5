"""Reads of the rollouts and sessions of each member of a panel, and how many passed. A session
counts for the member that answered last; the base counts under its own name."""

from dataclasses import dataclass

from sqlalchemy import Connection, Integer, Subquery, case, cast, func, null, select

from consumers.reads.outcomes.canary import read_first_verdicts
from consumers.rows import make_row
from consumers.tables import Call, Rollout


@dataclass(frozen=True, slots=True)
class MemberShare:
    """Counts of the rollouts that a member answered, for one kind of task."""

    capability: str | None
    """Kind of the tasks; None if unknown, as for most live rollouts."""
    member: str
    """The adapter, or the base under its name."""
    skill: str | None
    """Skill that the router chose; None if the base answered."""
    purpose: str
    """`live`, or `evaluate` for trials."""
    rollouts: int
    judged: int
    """Rollouts with a verdict."""
    passed: int


def read_member_shares(connection: Connection, policy: str) -> list[MemberShare]:
    """Return a panel's rollouts by kind of task, member, skill and purpose, most frequent first."""
    rollouts = Rollout.table().c
    count, verdict = func.count(), cast(rollouts.success, Integer)
    query = (
        select(
            rollouts.capability,
            rollouts.member,
            rollouts.skill,
            rollouts.purpose,
            count.label("rollouts"),
            func.count(rollouts.success).label("judged"),
            func.coalesce(func.sum(case((verdict == 1, 1), else_=0)), 0).label("passed"),
        )
        .where(rollouts.policy == policy, rollouts.member.is_not(None))
        .group_by(rollouts.capability, rollouts.member, rollouts.skill, rollouts.purpose)
        .order_by(
            rollouts.purpose,
            func.coalesce(rollouts.capability, ""),
            count.desc(),
            rollouts.member,
            func.coalesce(rollouts.skill, ""),
        )
    )
    rows = connection.execute(query)
    return [make_row(MemberShare, row, passed=int(row.passed)) for row in rows]


@dataclass(slots=True)
class MemberSessions:
    """Counts of a panel's sessions that a member answered for one skill."""

    skill: str | None
    """Skill that the router chose; None if it chose none or no engine had the skill's member."""
    member: str
    """The adapter, or the base under its name."""
    sessions: int
    judged: int = 0
    """Number of sessions with a verdict by a grader or by a person who may judge."""
    passed: int = 0


def read_member_sessions(
    connection: Connection, alias: str, panel: str, since: str
) -> list[MemberSessions]:
    """Return the numbers of a panel's live sessions by skill and member, the largest first.
    Sessions since `since` count (RFC 3339 as stored)."""
    sessions = _list_sessions(alias, panel, since)
    groups = (sessions.c.skill, sessions.c.member)
    rows = connection.execute(select(*groups, func.count().label("number")).group_by(*groups))
    counts = {
        (row.skill, row.member): MemberSessions(row.skill, row.member, row.number) for row in rows
    }
    for verdict in read_first_verdicts(connection, sessions):
        own = counts[verdict.skill, verdict.member]
        own.judged += 1
        own.passed += bool(verdict.success)
    return sorted(counts.values(), key=lambda own: (-own.sessions, own.skill or "", own.member))


def _list_sessions(alias: str, panel: str, since: str) -> Subquery:
    """Return a subquery of (session, skill, member) of each session's last call that a panel
    answered. Calls that no engine answered are left out. The skill is null if no engine had its
    member."""
    calls = Call.table().c
    lost = (func.coalesce(calls.outcome, "") == "failed") & calls.upstream.is_(None)
    order = (calls.started.desc(), calls.call.desc())
    last = (
        select(
            calls.session,
            calls.member,
            case((calls.router_doubt.is_(None), calls.skill), else_=null()).label("skill"),
            func.row_number().over(partition_by=calls.session, order_by=order).label("place"),
        )
        .where(
            calls.alias == alias, calls.started >= since, calls.purpose == "live",
            calls.policy == panel, calls.member.is_not(None), ~lost,
        )
        .subquery()
    )  # fmt: skip
    return (
        select(last.c.session, last.c.skill, last.c.member)
        .where(last.c.place == 1)
        .subquery("sessions")
    )
