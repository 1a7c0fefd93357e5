"""Which events of `rollouts` are still read from the log after they were folded.

    needed_from(connection, partition, before)    the first of them before an offset

A session that did not end, whose rollout is not there yet, or that went on after the offset: its
rollout is made from the events of its calls. Not covered: transcripts that a person looks at.
"""

from sqlalchemy import Connection, func, select

from consumers.tables import Call, Rollout, SessionEnd


def needed_from(connection: Connection, partition: int, before: int) -> int:
    """The offset from which on all is needed; `before`, where nothing before it is.

    Offsets of the log that was folded."""
    calls = Call.table().c
    session = (
        select(
            calls.session,
            func.min(calls.started_offset).label("first"),
            func.max(func.coalesce(calls.ended_offset, calls.started_offset)).label("last"),
            func.max(func.coalesce(calls.ended, calls.started)).label("time"),
        )
        .where(calls.partition == partition)
        .group_by(calls.session)
        .subquery()
    )
    ends, rollouts = SessionEnd.table().c, Rollout.table().c
    done = (
        select(ends.session_end)
        .join(Rollout.table(), rollouts.rollout == ends.rollout)
        .where(ends.session == session.c.session, ends.time >= session.c.time)
        .exists()
    )
    query = select(func.min(session.c.first))
    while True:
        # What is kept for one session may be where another one went on.
        goes_on = session.c.last >= before
        found = connection.execute(query.where(session.c.first < before, goes_on | ~done)).scalar()
        if found is None:
            return before
        before = int(found)
