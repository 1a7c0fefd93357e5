"""Choose the adapter that a job for a skill trains on from.

    find_member_parent(connection, cycle, skill, incumbent)

A job for a skill trains on from the member that answers for it now, unless that was rejected,
rolled back or retired since; then it trains on from the base. Where no member answers, it trains on
from what the last job for this skill left, if that passed the gate of a member or was rejected
without harm (daemon/cycle/parent.py). Else it trains on from the base. It never trains on from
another skill's adapter, or from an adapter for everything.
"""

from typing import TYPE_CHECKING

from consumers.methods.skills import panel_reads
from consumers.methods.skills.old_members import has_panel_history
from consumers.reads import serving, succession
from consumers.reads.learning import CycleRow
from consumers.reads.serving import AdapterRow
from daemon.cycle.parent import (
    KEPT,
    MOST_TRIES,
    count_tries,
    describe_parent,
    is_worth_training,
)
from events.lifecycle import State

if TYPE_CHECKING:
    from sqlalchemy import Connection


def find_member_parent(
    connection: "Connection", cycle: CycleRow, skill: str, incumbent: AdapterRow | None
) -> tuple[AdapterRow | None, str | None]:
    """The adapter from which a job for a skill trains on, None for the base; and why, where that is
    not a member of the incumbent."""
    if incumbent is not None and incumbent.panel is not None:
        name = incumbent.panel.find_adapter(skill)
        member = None if name is None else serving.adapter_row(connection, name)
        if member is not None and skill in panel_reads.read_member_exits(connection, incumbent):
            # What a gate or a person had against it is learnt by no one's weights.
            return None, None
        if member is not None:
            return member, None
    row = succession.find_last_candidate(connection, cycle.alias, skill)
    if row is None or row.base != cycle.base or row.state is State.COLLECTED or row.gate is None:
        return None, None
    if row.incumbent != (None if incumbent is None else incumbent.adapter):
        return None, None
    if has_panel_history(connection, row.adapter):
        # Live traffic has spoken of it: what took its panel back is learnt by no one's weights.
        return None, None
    has_passed = row.gate.decision == "PROMOTE"
    if not (has_passed or (row.state in KEPT and is_worth_training(row.gate))):
        return None, None
    if count_tries(connection, row, None) > MOST_TRIES:
        return None, None
    if has_passed:
        return row, f"it passed the gate of a member for {skill}, and no panel with it answers"
    return row, describe_parent(row)
