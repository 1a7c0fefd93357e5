"""Find the events of `rollouts` that are still needed after they were folded, because a rollout is
made from them: events of sessions with loose calls, or that continue after an offset."""

from sqlalchemy import Connection, case, func, select

from consumers.tables import Call


def find_retention_offset(connection: Connection, partition: int, before: int) -> int:
    """Return the first offset of a partition that is still needed, at most `before`."""
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
