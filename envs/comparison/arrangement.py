"""Sort lists whose order has no meaning, before a verdict compares them.

The environment's catalog declares these lists (`unordered`, `unordered_fields`). Only tasks with
rules are compared so. Lists are sorted in the arguments of calls before a replay, and in the
records of final states. Whole numbers in records are compared by value: 250 is 250.0.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from envs.catalog import Columns, ToolCatalog, sort_lists
from envs.database import Database
from envs.environment import Environment
from envs.task import TaskDefinition
from envs.tools import unusable
from events.messages import ExecutedCall


def arrange_task(environment: Environment, task: TaskDefinition) -> TaskDefinition:
    """Return the task with the unordered lists in its gold actions sorted."""
    criteria = task.criteria
    if criteria.rules is None or criteria.gold_actions is None:
        return task
    catalog = environment.catalog
    gold = tuple(
        action.model_copy(update={"arguments": catalog.arrange(action.name, action.arguments)})
        for action in criteria.gold_actions
    )
    arranged = criteria.model_copy(update={"gold_actions": gold})
    return task.model_copy(update={"criteria": arranged})


def arrange_calls(
    environment: Environment, task: TaskDefinition, calls: Sequence[ExecutedCall]
) -> Sequence[ExecutedCall]:
    """Return the calls with the unordered lists in their arguments sorted."""
    if task.criteria.rules is None:
        return calls
    catalog = environment.catalog
    return [_arrange_call(item, catalog) for item in calls]


def _arrange_call(item: ExecutedCall, catalog: ToolCatalog) -> ExecutedCall:
    call = item.call
    if isinstance(call.arguments, str) or unusable(call.arguments) is not None:
        return item
    arguments = catalog.arrange(call.name, call.arguments)
    return item._replace(call=call.model_copy(update={"arguments": arguments}))


def arrange_states(
    environment: Environment, task: TaskDefinition, expected: Database, actual: Database
) -> tuple[Database, Database]:
    """Return both states with the unordered lists sorted in those records that differ."""
    if task.criteria.rules is None:
        return expected, actual
    places = list(expected.find_mismatches(actual))
    fields = environment.catalog.unordered_fields
    return _arrange_records(expected, places, fields), _arrange_records(actual, places, fields)


def _arrange_records(
    state: Database, places: Iterable[tuple[str, str]], fields: Mapping[str, Sequence[Columns]]
) -> Database:
    arranged = state.copy()
    for table, key in places:
        if table in arranged.names and key in arranged[table]:
            arranged.put(table, key, _arrange_value(arranged[table][key], table, fields))
    return arranged


def _arrange_value(value: Any, path: str, fields: Mapping[str, Sequence[Columns]]) -> Any:
    if isinstance(value, dict):
        items = {key: _arrange_value(item, f"{path}/{key}", fields) for key, item in value.items()}
        return sort_lists(items, fields.get(path, ()))
    if isinstance(value, list | tuple):
        return [_arrange_value(item, path, fields) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
