"""The fold of the gate that an adapter has which plays users."""

from sqlalchemy import select

from consumers.batch import Batch, Row
from consumers.folds.adapters import (
    find_adapter,
    move_adapter,
    note_step,
    refuse_step,
    step_adapter,
)
from consumers.folds.record import FoldInput
from consumers.tables import Adapter
from events.lifecycle import State
from events.serving import UserEvaluated


def fold_user_evaluation(folding: FoldInput, data: UserEvaluated, batch: Batch) -> None:
    """An adapter plays users from here on, or does not; the one before it goes out of service."""
    row = find_adapter(batch, data.adapter)
    if row is not None and row["role"] != "user":
        refused = f"{data.adapter} is an agent's, and was measured as a user"
        refuse_step(folding, batch, "adapter", data.adapter, refused, data.reason)
        return
    others = [] if row is None or not data.passed else _list_users(batch, row)
    gate = {"user_gate": data.model_dump_json()}
    if not step_adapter(folding, data, batch, gate, data.reason):
        return
    for other in others:
        reason = f"{data.adapter} plays users in its place"
        move_adapter(folding, batch, other, State.DRAINING, reason)
        note_step(folding, batch, "adapter", other["adapter"], State.DRAINING, reason)


def _list_users(batch: Batch, row: Row) -> list[Row]:
    """Return the other adapters that play users of the same agent and base."""
    adapters = Adapter.table()
    query = (
        select(adapters)
        .where(
            adapters.c.role == "user",
            adapters.c.alias == row["alias"],
            adapters.c.base == row["base"],
            adapters.c.state == State.GATED.value,
            adapters.c.adapter != row["adapter"],
        )
        .order_by(adapters.c.adapter)
    )
    return [dict(other) for other in batch.connection.execute(query).mappings()]
