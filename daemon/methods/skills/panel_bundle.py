"""Build the bundle of a panel: its adapters, their skills, and the router's prompt.

NAME/panel.json        members and router, as the log has them
NAME/gate.json, lineage.json, README.md, MANIFEST.json     as of an adapter (adapters/bundle.py)
NAME/ADAPTER/          the bundle of each of its adapters, without a manifest
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from consumers.reads import serving
from consumers.reads.serving import AdapterRow
from daemon.adapters.bundle import BundleFacts, as_json, read_contents
from daemon.adapters.model_card import Measured, describe_numbers, escape_cell
from daemon.serving.export import build_gate, build_lineage, collect_facts, list_measured

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from daemon.core.app import App

PANEL: Final = "panel.json"


def read_panel_files(app: "App", connection: "Connection", row: AdapterRow) -> dict[str, bytes]:
    """Return path in the bundle -> content. Raise BundleRefusal, BadAdapter, NoFingerprint."""
    assert row.composition is not None, "it is a panel"
    parts = [
        collect_facts(app, connection, serving.find_adapter(connection, part)) for part in row.parts
    ]
    measured = serving.evaluation_lines(connection, row.adapter)
    lineage = {
        **build_lineage(connection, row, _find_base_digest(parts)),
        "parents": [{"adapter": part.card.adapter, "sha256": part.card.sha256} for part in parts],
    }
    panel = {
        "panel": row.adapter, "alias": row.alias, "base": row.base, "sha256": row.sha256,
        **row.composition.model_dump(mode="json"),
    }  # fmt: skip
    contents = {
        "README.md": build_panel_card(row, list_measured(measured)).encode(),
        "gate.json": as_json(build_gate(app, row, measured)),
        "lineage.json": as_json(lineage),
        PANEL: as_json(panel),
    }
    for part in parts:
        files = read_contents(part)
        contents |= {f"{part.card.adapter}/{path}": content for path, content in files.items()}
    return contents


def _find_base_digest(parts: Sequence[BundleFacts]) -> str | None:
    known = (part.lineage["base"]["sha256"] for part in parts)
    return next((digest for digest in known if digest is not None), None)


def build_panel_card(row: AdapterRow, measured: Sequence[Measured]) -> str:
    """Return the panel's README as Markdown."""
    assert row.composition is not None, "it is a panel"
    chooser = row.composition.router
    texts = {option.skill: option.description for option in chooser.options}
    rows = [
        f"| {escape_cell(skill)} | `{adapter or row.base}` | {escape_cell(texts.get(skill, ''))} |"
        for skill, adapter in row.members.items()
    ]
    router = f"`{chooser.adapter}`" if chooser.adapter else f"`{row.base}`, without training"
    head = f"""---
base_model: {row.base}
tags: [lora, kintsugi]
---

# {row.adapter}

Adapters of `{row.base}` behind a router, served as one policy for the agent `{row.alias}`.
When it was exported it was {row.state.value.replace("_", " ")}.

| skill | answered by | as the router reads it |
|---|---|---|
"""
    loading = f"""## How to use it

Each folder beside this file is an adapter with a card of its own. The router is {router}: it
reads the options of `panel.json` and the conversation in two orders of the labels, and what both
choose answers; anything else goes to the base. Push the adapters into another home of kintsugi,
then compose them there:

    kintsugi panels compose {" ".join(f"{s}={a or 'base'}" for s, a in row.members.items())}
"""
    numbers = describe_numbers(row.gate, measured)
    return head + "\n".join([*rows, "", numbers, loading])
