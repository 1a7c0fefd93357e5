"""Which category of failure a repair proves, and at which tool.

    drop        policy_violation
    arguments   wrong_entity on another record; wrong_item_selection where an argument that selects
                differs; else, and for a write that the tool refused, incorrect_arguments
    tool        wrong_tool
    insert      over_cautious where the agent handed over or refused; premature_termination where
                it was cut off or broke off; else missing_write_action

Of several edits the category is the first in the order of the rules (detectors.py), and the pivot
the tool of the first gold write that the edits make, `*` where they make none. Where the agent
tried nothing at all because it never reached the user's record, `user_id_failure` stays.
"""

from collections.abc import Sequence
from typing import Final

from consumers.diagnosis.detectors import CATEGORIES, USER_ID
from consumers.diagnosis.facts import Facts
from consumers.diagnosis.matching import GoldWrite
from consumers.diagnosis.rules import find_early_end, find_refusals
from daemon.repair.search import Operation, RepairSearch, WriteEdit
from envs.catalog import ToolCatalog

ANY_TOOL: Final = "*"
"""The pivot of a failure that is at no gold write."""


def categorize(
    search: RepairSearch, edits: Sequence[WriteEdit], facts: Facts, rule: str | None
) -> tuple[str, str]:
    """Category and pivot of a repair; `rule` is the primary category by the rules."""
    names = [_categorize_edit(search, edit, facts) for edit in edits]
    category = USER_ID if rule == USER_ID else min(names, key=CATEGORIES.index)
    gold = [edit.gold for edit in edits if edit.gold is not None]
    pivot = search.gold[min(gold)].action.name if gold else ANY_TOOL
    return category, pivot


def _categorize_edit(search: RepairSearch, edit: WriteEdit, facts: Facts) -> str:
    if edit.operation is Operation.DROP:
        return "policy_violation"
    if edit.operation is Operation.TOOL:
        return "wrong_tool"
    if edit.operation is Operation.ARGUMENTS:
        return _categorize_arguments(search, edit, facts.catalog)
    if find_refusals(facts, [_gold(search, edit)]):
        return "over_cautious"
    return "premature_termination" if find_early_end(facts) else "missing_write_action"


def _categorize_arguments(search: RepairSearch, edit: WriteEdit, catalog: ToolCatalog) -> str:
    arguments = search.writes[edit.place].call.arguments
    if search.refused[edit.place] or isinstance(arguments, str):
        return "incorrect_arguments"
    if catalog.record(arguments) != _gold(search, edit).record:
        return "wrong_entity"
    if catalog.selection_arguments.intersection(_find_differences(search, edit)):
        return "wrong_item_selection"
    return "incorrect_arguments"


def _find_differences(search: RepairSearch, edit: WriteEdit) -> tuple[str, ...]:
    assert edit.gold is not None, "only a drop has no gold write"
    return search.find_differences(edit.place, edit.gold)


def _gold(search: RepairSearch, edit: WriteEdit) -> GoldWrite:
    assert edit.gold is not None, "only a drop has no gold write"
    return search.gold[edit.gold]
