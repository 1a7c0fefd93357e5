"""Find which events of `rollouts` are still read from the log after they were folded.

    find_retention_offset(connection, partition, before)    the first of them before an offset

Those of a session with loose calls, which no rollout names yet, or that went on after the offset: a
rollout is made from the events of its calls. Not covered: transcripts that a person looks at.
"""

from sqlalchemy import Connection, case, func, select

from consumers.tables import Call


def find_retention_offset(connection: Connection, partition: int, before: int) -> int:
    """The offset from which on all is needed; `before`, where nothing before it is.

    Offsets of the log that was folded."""
    calls = Call.table().c
    session = (
        select(
            calls.session,
            func.min(calls.started_offset).label("first"),
            func.max(func.coalesce(calls.ended_offset, calls.started_offset)).label("last"),
            func.max(case((Call.loose(), 1), else_=0)).label("loose"),
        )
        .where(calls.partition == partition)
        .group_by(calls.session)
        .subquery()
    )
    query = select(func.min(session.c.first))
    while True:
        # What is kept for one session may be where another one went on.
        kept = (session.c.last >= before) | (session.c.loose == 1)
        offset = connection.execute(query.where(session.c.first < before, kept)).scalar()
        if offset is None:
            return before
        before = int(offset)
