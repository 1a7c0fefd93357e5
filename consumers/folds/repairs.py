"""The fold of RepairSearched: what is proven of a failed rollout, beside what the rules say of it.

Nothing is replayed here. The rollout itself may be folded later, and no other table is read, so it
means nothing in which order the two come. A redo of a search changes nothing: of the events of one
version of the rules the first that could replay the rollout counts.
"""

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
