"""Find the events of `rollouts` that are still read from the log after they were folded: those of
sessions with loose calls or that went on after an offset, since a rollout is made from them."""

from sqlalchemy import Connection, case, func, select

from consumers.tables import Call


def find_retention_offset(connection: Connection, partition: int, before: int) -> int:
    """Return the offset of the folded log from which all is needed, at most `before`."""
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
        # The events kept for one session may include those of another.
        kept = (session.c.last >= before) | (session.c.loose == 1)
        offset = connection.execute(query.where(session.c.first < before, kept)).scalar()
        if offset is None:
            return before
        before = int(offset)
