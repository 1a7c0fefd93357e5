"""Who plays a trial, from the rows of adapters and panels (tables -> plan)."""

from typing import TYPE_CHECKING

from consumers.reads import serving
from consumers.reads.serving import AdapterRow
from daemon.evaluation.trial import Adapter, PanelPlayer, Player
from events.errors import KintsugiError
from events.lifecycle import State

if TYPE_CHECKING:
    from sqlalchemy import Connection


class NoSuchPart(KintsugiError):
    """An adapter of a panel is unknown, or its files are gone."""


def build_player(connection: "Connection", row: AdapterRow | None) -> Player:
    """Return the player of an adapter or a panel; None, the base, for no row. Raises
    NoSuchPart."""
    if row is None:
        return None
    if row.panel is None:
        return _describe(row)
    parts = {name: _read_part(connection, row, name) for name in row.panel.adapters}
    router = row.panel.router
    return PanelPlayer(
        name=row.adapter,
        members={
            member.skill: None if member.adapter is None else parts[member.adapter]
            for member in row.panel.members
        },
        router=router,
        router_adapter=None if router.adapter is None else parts[router.adapter],
    )


def list_member_kinds(connection: "Connection", row: AdapterRow) -> tuple[str, ...]:
    """Return the kinds of task that a panel's members are for, each once, in the order of the
    members; of an adapter its own. Members without a kind add none."""
    if row.panel is None:
        return () if row.capability is None else (row.capability,)
    rows = (
        serving.adapter_row(connection, member.adapter)
        for member in row.panel.members
        if member.adapter is not None
    )
    kinds = (part.capability for part in rows if part is not None)
    return tuple(dict.fromkeys(kind for kind in kinds if kind is not None))


def _read_part(connection: "Connection", panel: AdapterRow, name: str) -> Adapter:
    row = serving.adapter_row(connection, name)
    if row is None or row.state is State.COLLECTED:
        raise NoSuchPart(
            f"{panel.adapter} has {name} as a part, "
            f"{'which is not known' if row is None else 'whose files were collected'}; compose a "
            "panel of adapters that are there"
        )
    return _describe(row)


def _describe(row: AdapterRow) -> Adapter:
    return Adapter(name=row.adapter, folder=row.path, sha256=row.sha256)
