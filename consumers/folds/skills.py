"""The fold of SkillsContrasted: the skills of an agent are those of its last discovery.

A skill that this one does not have any more stays in the tables with its last figures, as absent:
an adapter may carry its name. A discovery that read an earlier round than the last changes nothing.
"""

from sqlalchemy import select

from consumers.batch import Batch
from consumers.diagnosis.skills import SkillState, measure_skills
from consumers.folds.record import FoldInput
from consumers.tables import Skill
from events.canonical import exact_json
from events.learning import SkillsContrasted


def fold_skill_contrast(folding: FoldInput, data: SkillsContrasted, batch: Batch) -> None:
    """Store the candidates and what follows from their labels."""
    batch.flush()
    table = Skill.table()
    query = select(table).where(table.c.alias == data.alias, table.c.base == data.base)
    known = {row["skill"]: dict(row) for row in batch.connection.execute(query).mappings()}
    if any(row["round"] > data.round for row in known.values()):
        return
    measured = measure_skills(data)
    for item in data.skills:
        figures = measured[item.skill]
        batch.stage(
            Skill,
            {
                "alias": data.alias,
                "base": data.base,
                "skill": item.skill,
                "description": item.description,
                "patterns": exact_json(list(item.patterns)),
                "state": figures.state.value,
                "delta": figures.delta,
                "delta_deviation": figures.delta_deviation,
                "coverage": figures.coverage,
                "coverage_deviation": figures.coverage_deviation,
                "selected": figures.selected,
                "labellings": figures.labellings,
                "failures": item.failures,
                "successes": item.successes,
                "within": item.within,
                "examples": exact_json(list(item.examples)),
                "round": data.round,
                "time": folding.time,
                **folding.place(),
            },
        )
    for name in known.keys() - measured.keys():
        batch.stage(Skill, {**known[name], "state": SkillState.ABSENT.value})
