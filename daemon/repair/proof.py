"""Prove the category of a failed rollout by its smallest repair, and return the proof as an event.

The recorded task gives the goal, and the environment's task gives the first state. A repair is
accepted only if the replay agrees with the record: the tools accept and refuse the same writes, and
the final state is wrong exactly if the grader found it wrong. If the state is right but a required
output is missing, the category is `information_error`. Each edit of a repair proves a category:

    drop        policy_violation
    arguments   incorrect_arguments for a refused write; else wrong_entity if the record differs,
                wrong_item_selection if a selecting argument differs, or incorrect_arguments
    tool        wrong_tool
    insert      over_cautious if the agent handed over or refused; premature_termination if it was
                cut off or broke off; else missing_write_action

If a repair has several edits, the first category in the order of `CATEGORIES` (detectors.py)
counts. The pivot is the tool of the first gold write that the edits make, or `*` without one. If
the rules said `user_id_failure` (no access to the user's record), this category stays.
"""

from collections.abc import Sequence
from typing import Final, cast, get_args

from consumers.diagnosis.detectors import CATEGORIES, USER_ID, diagnose
from consumers.diagnosis.facts import Facts
from consumers.diagnosis.matching import GoldWrite
from consumers.diagnosis.rules import find_early_end, find_refusals
from consumers.reads.repairs import REPAIR_RULES
from daemon.repair.search import Operation, RepairSearch, SearchResult, WriteEdit
from envs.catalog import ToolCatalog, catalog
from envs.environment import Environment
from envs.episode import REGULAR, Termination
from envs.grading import grade
from envs.task import Basis, TaskDefinition
from events.learning import RepairEdit, RepairOutcome, RepairSearched
from events.rollouts import RolloutEnded, Task, clip_reason

ANY_TOOL: Final = "*"
"""Pivot of a failure whose repair makes no gold write."""
_NAMES: Final = 100


def prove(environment: Environment, known: TaskDefinition, data: RolloutEnded) -> RepairSearched:
    """Search the smallest repair of a failed rollout and return the event. `known` is the
    environment's task with the rollout's task id. Raise the environment's errors."""
    task = _recorded_task(known, data.task)
    if "DB" not in task.criteria.reward_basis or task.criteria.gold_actions is None:
        return skip(data.rollout, "the verdict of its task does not compare states with gold's")
    facts = Facts(data, environment.catalog)
    if any(
        call.is_success and not call.is_own and call.name in environment.changes
        for call in facts.calls
    ):
        return skip(data.rollout, "its task begins after writes, which no edit can take back")
    search = RepairSearch(
        environment, task, [call.item for call in facts.calls], environment.catalog
    )
    result = search.run()
    trouble = result.mismatch or _find_contradiction(facts, result)
    if trouble:
        return skip(data.rollout, f"the replay is not what was recorded: {trouble}")
    if result.edits is None:
        return _conclude(data, result, "exhausted")
    if not result.edits:
        lacks_output = _lacks_only_outputs(environment, task, data)
        proven = ("information_error", ANY_TOOL) if lacks_output else (None, None)
        return _conclude(data, result, "state_right", *proven)
    rule = diagnose(data, catalog(environment.name)).category
    return _conclude(
        data,
        result,
        "repaired",
        *_categorize(search, result.edits, facts, rule),
        edits=[_describe(environment, search, edit, facts) for edit in result.edits],
    )


def skip(rollout: str, reason: str) -> RepairSearched:
    """Return the event for a rollout that cannot be searched, with the reason."""
    return RepairSearched(
        rollout=rollout, rules=REPAIR_RULES, outcome="skipped", reason=clip_reason(reason)
    )


def _conclude(
    data: RolloutEnded,
    result: SearchResult,
    outcome: RepairOutcome,
    category: str | None = None,
    pivot: str | None = None,
    edits: Sequence[RepairEdit] = (),
) -> RepairSearched:
    return RepairSearched(
        rollout=data.rollout,
        rules=REPAIR_RULES,
        outcome=outcome,
        edits=tuple(edits),
        replays=result.replays,
        category=category,
        pivot=pivot,
        reason=f"none within {result.bound}" if result.bound else "",
    )


def _recorded_task(known: TaskDefinition, recorded: Task | None) -> TaskDefinition:
    """Return the environment's task with the goal that the rollout recorded."""
    if recorded is None or recorded.gold_actions is None or recorded.definition == known.digest():
        return known
    basis = tuple(part for part in recorded.reward_basis if part in get_args(Basis))
    criteria = known.criteria.model_copy(
        update={
            "gold_actions": recorded.gold_actions,
            "outputs": recorded.outputs,
            # The rules are about the outputs of the environment's definition, which differ.
            "rules": None,
            **({"reward_basis": cast("tuple[Basis, ...]", basis)} if basis else {}),
        }
    )
    return known.model_copy(update={"criteria": criteria})


def _find_contradiction(facts: Facts, result: SearchResult) -> str:
    """Return a clause on how the replay's final state contradicts the recorded grade, or ""."""
    recorded = facts.state_verdict
    if recorded is None or (recorded == 1.0) == (result.edits == ()):
        return ""
    return f"the state was graded {recorded:g} and is {'right' if result.edits == () else 'wrong'}"


def _lacks_only_outputs(environment: Environment, task: TaskDefinition, data: RolloutEnded) -> bool:
    """Return whether missing outputs are the only reward part that fails."""
    if data.termination in frozenset(Termination) - REGULAR:
        return False
    messages = data.content.messages if data.content else ()
    spoken = [message for message in messages if message.role not in ("system", "developer")]
    parts = grade(environment, task, spoken, Termination.USER_STOP).parts
    return {name for name, value in parts.items() if value == 0.0} == {"COMMUNICATE"}


def _categorize(
    search: RepairSearch, edits: Sequence[WriteEdit], facts: Facts, rule: str | None
) -> tuple[str, str]:
    """Return a repair's category and pivot. `rule` is the category that diagnosis by rules gave."""
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
    if find_refusals(facts, [_find_gold(search, edit)]):
        return "over_cautious"
    return "premature_termination" if find_early_end(facts) else "missing_write_action"


def _categorize_arguments(search: RepairSearch, edit: WriteEdit, catalog: ToolCatalog) -> str:
    arguments = search.writes[edit.place].call.arguments
    if search.refused[edit.place] or isinstance(arguments, str):
        return "incorrect_arguments"
    if catalog.record(arguments) != _find_gold(search, edit).record:
        return "wrong_entity"
    if catalog.selection_arguments.intersection(_find_differences(search, edit)):
        return "wrong_item_selection"
    return "incorrect_arguments"


def _find_differences(search: RepairSearch, edit: WriteEdit) -> tuple[str, ...]:
    assert edit.gold is not None, "only a drop has no gold write"
    return search.find_differences(edit.place, edit.gold)


def _find_gold(search: RepairSearch, edit: WriteEdit) -> GoldWrite:
    assert edit.gold is not None, "only a drop has no gold write"
    return search.gold[edit.gold]


def _describe(
    environment: Environment, search: RepairSearch, edit: WriteEdit, facts: Facts
) -> RepairEdit:
    """Return an edit as a record for the event. It has the names of arguments, never values."""
    gold = None if edit.gold is None else search.gold[edit.gold]
    if edit.operation is Operation.INSERT:
        assert gold is not None, "only a drop has no gold write"
        name = gold.action.name
        return RepairEdit(operation="insert", tool=name, expected=name, gold=gold.place)
    written = search.writes[edit.place]
    differing: tuple[str, ...] = ()
    if edit.operation is Operation.ARGUMENTS and edit.gold is not None:
        differing = search.find_differences(edit.place, edit.gold)
    return RepairEdit(
        operation=edit.operation.word,
        turn=written.turn,
        call=next(place for place, call in enumerate(facts.calls) if call.item is written),
        tool=written.call.name,
        expected=None if gold is None else gold.action.name,
        gold=None if gold is None else gold.place,
        arguments=tuple(
            name for name in differing if name in _known_names(environment, search, edit)
        )[:_NAMES],
    )


def _known_names(environment: Environment, search: RepairSearch, edit: WriteEdit) -> set[str]:
    """Return the argument names of the tool or the gold write; the agent invented all others."""
    tool = environment.toolset.tools().get(search.writes[edit.place].call.name)
    names = set() if tool is None else set(tool.schema["function"]["parameters"]["properties"])
    return names | (set() if edit.gold is None else set(search.gold[edit.gold].arguments))
