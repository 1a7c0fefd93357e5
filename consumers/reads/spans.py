"""Reads of the rows from which spans of agents and of decisions are made, with all columns.
Guarantee: lists have a fixed order. An event's trace context is in the log alone."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, Row, select

from consumers.tables import (
    Adapter,
    Call,
    Cycle,
    Evaluation,
    Job,
    LifecycleStep,
    ProjectionTable,
    Rollout,
    SessionEnd,
)
from events.serving import AdapterEvaluated


def read_calls(connection: Connection, calls: Sequence[str]) -> Sequence[Row[Any]]:
    """Return the calls with these ids, ordered by their start."""
    table = Call.table()
    query = select(table).where(table.c.call.in_(calls)).order_by(table.c.started)
    return connection.execute(query).all()


def read_rollout_calls(
    connection: Connection, session: str | None, rollout: str
) -> Sequence[Row[Any]]:
    """Return the calls of a session that belong to a rollout, ordered by their start."""
    table = Call.table()
    query = select(table).where(table.c.session == session, table.c.rollout == rollout)
    return connection.execute(query.order_by(table.c.started)).all()


def read_session_end_times(
    connection: Connection, sessions: Collection[str]
) -> dict[str, list[str]]:
    """Return session -> its end times, first to last, with at most one query."""
    times: dict[str, list[str]] = {}
    if not sessions:
        return times
    ends = SessionEnd.table().c
    query = select(ends.session, ends.time).where(ends.session.in_(sessions))
    for row in connection.execute(query.where(ends.time.is_not(None)).order_by(ends.time)):
        times.setdefault(row.session, []).append(row.time)
    return times


def find_cycle(connection: Connection, cycle: str) -> Row[Any] | None:
    """Return a cycle by its id."""
    return _find_row(connection, Cycle, "cycle", cycle)


def find_job(connection: Connection, job: str) -> Row[Any] | None:
    """Return a training job by its id."""
    return _find_row(connection, Job, "job", job)


def find_adapter(connection: Connection, adapter: str) -> Row[Any] | None:
    """Return an adapter by its id."""
    return _find_row(connection, Adapter, "adapter", adapter)


def find_rollout(connection: Connection, rollout: str) -> Row[Any] | None:
    """Return a rollout by its id."""
    return _find_row(connection, Rollout, "rollout", rollout)


def find_cycle_by_event(connection: Connection, event: str) -> Row[Any] | None:
    """Return the cycle that an event started."""
    return _find_row(connection, Cycle, "event", event)


def find_job_by_event(connection: Connection, event: str) -> Row[Any] | None:
    """Return the training job that an event requested."""
    return _find_row(connection, Job, "event", event)


def find_step_by_event(connection: Connection, event: str) -> Row[Any] | None:
    """Return a lifecycle step that an event caused."""
    return _find_row(connection, LifecycleStep, "event", event)


def find_newest_rollout(
    connection: Connection, alias: str, base: str, source: str
) -> Row[Any] | None:
    """Return an agent's newest rollout of a source that no round has counted."""
    table = Rollout.table().c
    query = (
        select(Rollout.table())
        .where(table.round.is_(None), table.alias == alias, table.base == base)
        .where(table.source == source)
        .order_by(table.time.desc(), table.rollout.desc())
        .limit(1)
    )
    return connection.execute(query).first()


def read_evaluations(connection: Connection, adapter: str, until: str) -> Iterator[Row[Any]]:
    """Yield the measurements of an adapter up to and including a time, first to last."""
    table = Evaluation.table()
    query = select(table).where(table.c.adapter == adapter, table.c.time <= until)
    yield from connection.execute(query.order_by(table.c.number))


def read_adapter_steps(connection: Connection, event: str) -> Iterator[tuple[Row[Any], Row[Any]]]:
    """Yield (step, previous step of the same adapter) for each accepted step that an event caused.
    First steps and steps without a time are left out."""
    steps = LifecycleStep.table()
    of_event = select(steps).where(
        steps.c.event == event, steps.c.kind == "adapter", steps.c.refused.is_(None)
    )
    for step in connection.execute(of_event.order_by(steps.c.subject)).all():
        earlier = select(steps).where(
            steps.c.kind == "adapter",
            steps.c.subject == step.subject,
            steps.c.number < step.number,
            steps.c.refused.is_(None),
            # A measurement and its decision are one step.
            steps.c.type != AdapterEvaluated.TYPE,
        )
        newest = earlier.order_by(steps.c.number.desc()).limit(1)
        before = connection.execute(newest).first()
        if before is not None and before.time is not None and step.time is not None:
            yield step, before


def _find_row(
    connection: Connection, model: type[ProjectionTable], column: str, value: str
) -> Row[Any] | None:
    table = model.table()
    return connection.execute(select(table).where(table.c[column] == value)).first()
