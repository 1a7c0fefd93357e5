"""The fold of SkillsContrasted: the skills of an agent are those of its last comparison.

A skill that this one does not have any more stays in the tables with its last figures, as absent:
an adapter may carry its name. A comparison of earlier rounds than the last changes nothing.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sqlalchemy import Table, select

from consumers.batch import Batch
from consumers.folds.record import FoldInput
from consumers.methods.skills.measures import SkillState, measure_skills
from consumers.tables import Skill, SkillComparison
from events.canonical import exact_json
from events.learning import SkillsContrasted


def fold_skill_contrast(folding: FoldInput, data: SkillsContrasted, batch: Batch) -> None:
    """Store the comparison, its candidates and what follows from their labels."""
    batch.flush()
    whose = {"alias": data.alias, "base": data.base}
    last = _read_rows(batch, SkillComparison.table(), whose)
    if any(row["round"] > data.round for row in last):
        return
    place = {"round": data.round, "time": folding.time, **folding.place()}
    names = ("since", "failures", "successes", "labeller", "left_out", "refused")
    whole = {name: getattr(data, name) for name in names}
    batch.stage(SkillComparison, {**whose, **whole, **place})
    measured = measure_skills(data)
    for item in data.skills:
        figures = asdict(measured[item.skill])
        batch.stage(
            Skill,
            {
                **whose,
                **item.model_dump(include={"skill", "description", "failures", "successes"}),
                **figures,
                "state": figures["state"].value,
                "patterns": exact_json(list(item.patterns)),
                "examples": exact_json(list(item.examples)),
                "labeller": data.labeller,
                **place,
            },
        )
    for row in _read_rows(batch, Skill.table(), whose):
        if row["skill"] not in measured:
            batch.stage(Skill, {**row, "state": SkillState.ABSENT.value})


def _read_rows(batch: Batch, table: Table, whose: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the rows of an agent on a base."""
    query = select(table).where(table.c.alias == whose["alias"], table.c.base == whose["base"])
    return [dict(row) for row in batch.connection.execute(query).mappings()]
