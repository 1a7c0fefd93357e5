"""The fold of PanelComposed: a panel begins its life, and its cycle has it."""

from collections.abc import Mapping

from consumers.batch import Batch, Row
from consumers.folds.adapters import read_adapter_rows, refuse_step, step_adapter
from consumers.folds.cycles import find_cycle, find_open_cycle
from consumers.folds.record import FoldInput
from consumers.tables import Cycle
from events.lifecycle import State
from events.serving import PanelComposed


def fold_panel_composition(folding: FoldInput, data: PanelComposed, batch: Batch) -> None:
    """A panel begins its life. Its adapters are known, of its agent and base, and have files; its
    cycle, if any, is open and has no other panel."""
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
    """Return why an adapter cannot be a part of a panel; None where it can."""
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
    """Return why a cycle takes no panel; None where it does, and for a panel of no known cycle. A
    panel that is composed after the cycle's end would wait for a next step for ever."""
    row = None if data.cycle is None else find_cycle(batch, data.cycle)
    if row is None or row["panel"] == data.adapter:
        return None
    if row["panel"] is not None:
        return f"cycle {data.cycle} has the panel {row['panel']}"
    return None if row["outcome"] is None else f"cycle {data.cycle} is over"


def _store_in_cycle(data: PanelComposed, batch: Batch) -> None:
    """An open cycle has its panel: the first one that was composed for it."""
    row = None if data.cycle is None else find_open_cycle(batch, data.cycle)
    if row is not None and row["panel"] is None:
        batch.stage(Cycle, {**row, "panel": data.adapter})
