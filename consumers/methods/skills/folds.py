"""The folds of skills and panels. A skill that the last comparison lacks stays in the tables as
absent with its last figures, because an adapter may carry its name. A comparison that read older
rounds than the stored one changes nothing."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from sqlalchemy import Table, select

from consumers.batch import Batch, Row
from consumers.folds.adapters import read_adapter_rows, refuse_step, step_adapter
from consumers.folds.cycles import find_cycle, find_open_cycle
from consumers.folds.record import FoldInput
from consumers.methods.skills.measures import SkillState, measure_skills
from consumers.tables import Cycle, Skill, SkillComparison
from events.canonical import exact_json
from events.learning import SkillsContrasted
from events.lifecycle import State
from events.serving import PanelComposed


def fold_skill_contrast(folding: FoldInput, data: SkillsContrasted, batch: Batch) -> None:
    """Store a comparison, and its candidate skills with figures computed from their labels."""
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
    query = select(table).where(table.c.alias == whose["alias"], table.c.base == whose["base"])
    return [dict(row) for row in batch.connection.execute(query).mappings()]


def fold_panel_composition(folding: FoldInput, data: PanelComposed, batch: Batch) -> None:
    """Store a new panel, also in its cycle. Its adapters must be known, belong to its agent and
    base, and have files. Its cycle, if any, must be open and have no other panel."""
    rows = read_adapter_rows(batch, data.panel.adapters)
    reasons = (_refuse_part(data, rows, name) for name in data.panel.adapters)
    refused = _refuse_cycle(data, batch) or next(filter(None, reasons), None)
    if refused is not None:
        refuse_step(folding, batch, "adapter", data.adapter, refused, "")
        return
    born: Row = {
        **data.model_dump(include={"adapter", "alias", "base", "sha256"}),
        "path": "",
        "origin": "panel",
        "panel": data.panel.model_dump_json(),
    }
    if step_adapter(folding, data, batch, born):
        _store_in_cycle(data, batch)


def _refuse_part(data: PanelComposed, rows: Mapping[str, Row], name: str) -> str | None:
    row = rows.get(name)
    if row is None:
        return f"nobody produced an adapter {name}"
    if row["panel"] is not None:
        return f"{name} is a panel, and no panel is a part of another"
    if row["role"] != "agent":
        return f"{name} plays users, and answers no client"
    if (row["alias"], row["base"]) != (data.alias, data.base):
        return f"{name} is for {row['alias']} on {row['base']}, not for {data.alias} on {data.base}"
    if row["state"] == State.COLLECTED:
        return f"{name} is collected: its files are gone"
    return None


def _refuse_cycle(data: PanelComposed, batch: Batch) -> str | None:
    """Return why a cycle cannot take the panel; None if it can, or if the panel has no known cycle.
    A panel composed after the cycle's end would never get a next step."""
    row = None if data.cycle is None else find_cycle(batch, data.cycle)
    if row is None or row["panel"] == data.adapter:
        return None
    if row["panel"] is not None:
        return f"cycle {data.cycle} has the panel {row['panel']}"
    return None if row["outcome"] is None else f"cycle {data.cycle} is over"


def _store_in_cycle(data: PanelComposed, batch: Batch) -> None:
    row = None if data.cycle is None else find_open_cycle(batch, data.cycle)
    if row is not None and row["panel"] is None:
        batch.stage(Cycle, {**row, "panel": data.adapter})
