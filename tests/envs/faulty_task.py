"""Tasks with one fault each, for measuring what finds it.

What is put in follows from task, fault and seed.
"""

import re
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Final, Literal

from envs.environment import Environment
from envs.evidence.names import list_texts
from envs.evidence.words import collect_user_text, leaves
from envs.task import TaskDefinition
from events.messages import Action

TaskFaultKind = Literal["other_value", "other_text", "silent", "refused"]
"""What is wrong with a planted task: a gold write has another value of the same kind, the user
names another value of the same kind, the user does not name a value, or a gold write lacks an
argument."""

TASK_FAULTS: Final[tuple[TaskFaultKind, ...]] = ("other_value", "other_text", "silent", "refused")


def plant_task_fault(
    environment: Environment, task: TaskDefinition, fault: TaskFaultKind, seed: int
) -> TaskDefinition | None:
    """Return the task with a fault; None where it cannot have this one."""
    chance = Random(f"planted {task.id} {fault} {seed}")
    writes = [
        (place, action)
        for place, action in enumerate(task.criteria.gold_actions or ())
        if action.name in environment.writes and action.arguments
    ]
    if not writes:
        return None
    place, action = chance.choice(writes)
    if fault == "refused":
        name = chance.choice(sorted(action.arguments))
        rest = {key: value for key, value in action.arguments.items() if key != name}
        return _replace_action(task, place, action.model_copy(update={"arguments": rest}))
    text = collect_user_text(task)
    values = sorted(
        {
            leaf
            for leaf in leaves(action.arguments)
            if isinstance(leaf, str) and len(leaf) > 1 and _find_whole(leaf, text)
        }
    )
    if not values:
        return None
    value = chance.choice(values)
    if fault == "silent":
        return _rewrite_texts(task, lambda line: _replace_whole(value, "", line))
    others = sorted(
        {other for other in _list_likes(environment, task, value) if not _find_whole(other, text)}
    )
    if not others:
        return None
    other = chance.choice(others)
    if fault == "other_text":
        return _rewrite_texts(task, lambda line: _replace_whole(value, other, line))
    arguments = _replace_leaf(action.arguments, value, other)
    return _replace_action(task, place, action.model_copy(update={"arguments": arguments}))


def _replace_action(task: TaskDefinition, place: int, action: Action) -> TaskDefinition:
    gold = list(task.criteria.gold_actions or ())
    gold[place] = action
    criteria = task.criteria.model_copy(update={"gold_actions": tuple(gold)})
    return task.model_copy(update={"criteria": criteria})


def _rewrite_texts(task: TaskDefinition, rewrite: Callable[[str], str]) -> TaskDefinition:
    """Return the task with everything that the user may say rewritten."""
    fields = {name: rewrite(text) for name, text in task.scenario.model_dump().items()}
    scenario = task.scenario.model_copy(update=fields)
    script = task.script
    if script is not None:
        answers = tuple(
            answer.model_copy(update={"says": rewrite(answer.says) or "Well."})
            for answer in script.answers
        )
        script = script.model_copy(
            update={
                "opening": rewrite(script.opening) or "Hello.",
                "answers": answers,
                "otherwise": rewrite(script.otherwise) or "Well.",
            }
        )
    return task.model_copy(update={"scenario": scenario, "script": script})


def _list_likes(environment: Environment, task: TaskDefinition, value: str) -> Iterator[str]:
    """Yield what else stands in the tables under the names under which a value does."""
    database = environment.reset(task)
    fields = [
        pair
        for table in database.names
        for record in database[table].values()
        for pair in list_texts(record)
    ]
    names = {name for name, text in fields if text == value}
    yield from (text for name, text in fields if name in names and text != value)


def _replace_leaf(value: Any, leaf: str, other: str) -> Any:
    if isinstance(value, dict):
        return {name: _replace_leaf(item, leaf, other) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_leaf(item, leaf, other) for item in value]
    return other if value == leaf else value


def _find_whole(value: str, text: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(value)}(?!\w)", text) is not None


def _replace_whole(value: str, other: str, text: str) -> str:
    return re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", lambda _: other, text)
