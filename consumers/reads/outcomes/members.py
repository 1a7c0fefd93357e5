"""Which member of a panel played or answered which kind of task.

A rollout counts by the member that answered last, the base under its own name. Rollouts without a
task, as most live ones are, have no kind.
"""

from dataclasses import dataclass

from sqlalchemy import Connection, Integer, case, cast, func, select

from consumers.tables import Rollout


@dataclass(frozen=True, slots=True)
class MemberShare:
    """The rollouts of a kind of task that a member had."""

    capability: str | None
    """Kind of the tasks; None for rollouts without one."""
    member: str
    """The adapter, or the base under its name."""
    skill: str | None
    """Skill that the router found; None: none, so that the base answered."""
    purpose: str
    """`live`, or `evaluate` of a trial."""
    rollouts: int
    judged: int
    """Rollouts with a verdict."""
    passed: int


def read_member_shares(connection: Connection, policy: str) -> list[MemberShare]:
    """Return how often the router of a panel chose which member, for each kind of task and purpose;
    the most frequent member of a kind first. Empty for a policy that is no panel."""
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
    return [
        MemberShare(
            row.capability, row.member, row.skill, row.purpose, row.rollouts, row.judged,
            int(row.passed),
        )
        for row in connection.execute(query)
    ]  # fmt: skip
