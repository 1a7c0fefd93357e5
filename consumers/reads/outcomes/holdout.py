"""The sessions that a draw held out or did not hold out, for the cumulative lift. A session counts
by its draw, whatever policy answered it later. Sessions that were not drawn once are left out:
those that asked for a policy by name, began before the holdout, or were drawn again after the share
changed. The first verdict counts, as in canary.py; a session with a verdict under older rules than
others of its kind of task is left out.
"""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Integer, Subquery, case, cast, func, select

from consumers.reads.outcomes.canary import split_by_rules
from consumers.tables import Adapter, Call, LifecycleStep, Rollout
from events.envelope import parse_timestamp
from events.lifecycle import State


@dataclass(frozen=True, slots=True)
class DrawnSession:
    """A session, whether it was held out, and its verdict."""

    session: str
    held_out: bool
    share: float
    """Held-out share at the draw: the probability of `held_out`."""
    began: str
    ended: bool
    success: bool | None = None
    age: float | None = None
    """Seconds from the session's draw to its verdict, if known."""


def read_drawn_sessions(
    connection: Connection, alias: str, base: str, since: str
) -> list[DrawnSession]:
    """Return the sessions that were drawn since `since` (RFC 3339), in the order of their draws."""
    sessions = _select_sessions(alias, base, since)
    counted, older = split_by_rules(connection, sessions)
    verdicts = {row.session: row for row in counted}
    left_out = {row.session for row in older}
    rollouts = Rollout.table().c
    ended = select(rollouts.rollout).where(
        rollouts.session == sessions.c.session, rollouts.purpose == "live"
    )
    rows = connection.execute(
        select(sessions, case((ended.exists(), 1), else_=0).label("ended")).order_by(
            sessions.c.began, sessions.c.session
        )
    )
    return [
        DrawnSession(
            row.session, bool(row.held_out), row.share, row.began, bool(row.ended),
            *_describe_verdict(row.began, verdicts.get(row.session)),
        )
        for row in rows
        if row.session not in left_out
    ]  # fmt: skip


def _describe_verdict(began: str, verdict: Any) -> tuple[bool | None, float | None]:
    if verdict is None:
        return None, None
    return bool(verdict.success), _measure_age(began, verdict.time) if verdict.time else None


def _measure_age(began: str, judged: str) -> float:
    return max(0.0, (parse_timestamp(judged) - parse_timestamp(began)).total_seconds())


def find_first_promotion(connection: Connection, alias: str, base: str) -> str | None:
    """Return the time when an adapter first answered an alias alone on a base, or None."""
    steps, adapters = LifecycleStep.table().c, Adapter.table().c
    promotions = (
        select(steps.time)
        .where(
            steps.kind == "adapter", steps.state == State.PROMOTED.value, steps.refused.is_(None),
            steps.time.is_not(None), steps.subject == adapters.adapter,
            adapters.alias == alias, adapters.base == base,
        )
        .order_by(steps.offset)
    )  # fmt: skip
    time: str | None = connection.execute(promotions.limit(1)).scalar()
    return time


def find_last_draw(connection: Connection, alias: str, base: str) -> float | None:
    """Return the held-out share at the last draw of a session, or None before any draw."""
    calls = Call.table().c
    query = (
        select(calls.holdout)
        .where(
            calls.alias == alias, calls.base == base, calls.purpose == "live",
            calls.holdout.is_not(None),
        )
        .order_by(calls.started.desc(), calls.call)
    )  # fmt: skip
    share: float | None = connection.execute(query.limit(1)).scalar()
    return share


def _select_sessions(alias: str, base: str, since: str) -> Subquery:
    """Return a subquery of (session, held_out, share, began), without sessions drawn again."""
    calls = Call.table().c
    held_out = cast(calls.held_out, Integer)
    return (
        select(
            calls.session, func.min(held_out).label("held_out"),
            func.min(calls.holdout).label("share"), func.min(calls.started).label("began"),
        )
        .where(
            calls.alias == alias, calls.base == base, calls.purpose == "live",
            calls.started >= since, calls.holdout.is_not(None),
        )
        .group_by(calls.session)
        .having(
            func.min(held_out) == func.max(held_out),
            func.min(calls.holdout) == func.max(calls.holdout),
        )
        .subquery("sessions")
    )  # fmt: skip
