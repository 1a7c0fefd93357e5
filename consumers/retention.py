"""Find the events of `rollouts` that are still read from the log after they were folded.

Those are the events of a session with loose calls, since a rollout is made from them. Transcripts
that a person looks at are not covered.
"""

from sqlalchemy import Connection, case, func, select

from consumers.tables import Call


def find_retention_offset(connection: Connection, partition: int, before: int) -> int:
    """Return the offset from which all events are needed; `before` if none before it is."""
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
