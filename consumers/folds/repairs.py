"""The fold of RepairSearched: the proven label of a failed rollout. It reads no other table, so its
order with the rollout does not matter. Of the events of one version of the rules, only the first
that could replay the rollout counts."""

from sqlalchemy import select

from consumers.batch import Batch
from consumers.folds.record import FoldInput
from consumers.tables import SKIPPED, Repair
from events.canonical import exact_json
from events.learning import RepairSearched


def fold_repair(folding: FoldInput, data: RepairSearched, batch: Batch) -> None:
    """Store the result of a search, unless the same search has one already."""
    batch.flush()
    table = Repair.table()
    query = select(table.c.rules, table.c.outcome).where(table.c.rollout == data.rollout)
    row = batch.connection.execute(query).first()
    if row is not None and row.rules == data.rules and row.outcome != SKIPPED:
        return
    edits = [edit.model_dump(mode="json", exclude_defaults=True) for edit in data.edits]
    batch.stage(
        Repair,
        {
            **data.model_dump(exclude={"edits"}),
            "edits": exact_json(edits),
            "time": folding.time,
            **folding.place(),
        },
    )
