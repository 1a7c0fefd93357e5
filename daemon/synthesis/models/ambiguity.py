"""Whether a request tells which calls are meant (pure).

    problem = find_ambiguity(environment, task, calls)     None: it does

The checks see whether an agent *can* know what a write needs; a template's words also tell which of
several things is meant, and a model's may not ("cancel an order", of a customer with two). By rule:

    who      the arguments by which the customer is identified are said
    which    a value of a write that the user does not say is told apart from each other value that
             the tools gave in its place, and that the tool would take: by a word of the request
             that only the right one's answers have, or by a comparison ("the cheapest"); one that
             the user names instead is an exception, or a contradiction, which is another rule's

Not covered: whether the words mean what they name; a comparison is believed as it is.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from daemon.synthesis.models.exploration import SandboxCall
from daemon.synthesis.models.gold import has_effect
from envs.attribution.words import collect_user_text, leaves, words
from envs.environment import Environment
from envs.task import TaskDefinition
from events.canonical import exact_json
from events.messages import Action

_MOST_OTHERS: Final = 16
"""Other values that are tried in the place of one."""
_COMPARISONS: Final = words(
    "biggest cheapest dearest earliest fastest first fewest highest largest last latest least "
    "longest lowest most newest next oldest shortest slowest smallest"
)

_Path = tuple[str, ...]


def find_ambiguity(
    environment: Environment, task: TaskDefinition, calls: Sequence[SandboxCall]
) -> str | None:
    """Return what the request of a task leaves open, in words; `calls` are those that were made to
    explore the tools."""
    said = words(collect_user_text(task))
    gold = task.criteria.gold_actions or ()
    return _find_unnamed_customer(environment, gold, said) or _find_open_value(
        environment, task, calls, said
    )


def _find_unnamed_customer(
    environment: Environment, gold: Sequence[Action], said: set[str]
) -> str | None:
    for action in gold:
        if action.name in environment.catalog.authenticating:
            missing = sorted(words(" ".join(_list_texts(action.arguments))) - said)
            if missing:
                return f"the user does not say {missing[0]!r}, by which {action.name} finds them"
            return None
    return None


def _find_open_value(
    environment: Environment,
    task: TaskDefinition,
    calls: Sequence[SandboxCall],
    said: set[str],
) -> str | None:
    gold = task.criteria.gold_actions or ()
    places = _collect_places(calls)
    for number, action in enumerate(gold):
        if action.requestor != "assistant" or not has_effect(environment, action):
            continue
        for value in _list_texts(action.arguments):
            if words(value) <= said | _list_choices(environment, task, action.name):
                continue
            for other in _list_others(places, value):
                used = any(
                    other in _list_texts(twin.arguments)
                    for twin in gold
                    if twin.name == action.name
                )
                if used or _are_told_apart(calls, said, value, other):
                    continue
                if _is_taken(environment, task, number, value, other):
                    return (
                        f"the request does not tell whether {value!r} or {other!r} is meant for "
                        f"{action.name}"
                    )
    return None


def _collect_places(calls: Sequence[SandboxCall]) -> dict[_Path, dict[str, None]]:
    """Return the texts that the tools gave, by where they stood in which tool's answers."""
    places: dict[_Path, dict[str, None]] = {}
    for call in calls:
        try:
            answer = json.loads(call.result)
        except ValueError:
            continue  # a sentence, in which nothing stands at a place
        for path, text in _walk(answer, (call.action.name,)):
            places.setdefault(path, {})[text] = None
    return places


def _walk(value: Any, path: _Path) -> Iterator[tuple[_Path, str]]:
    """Yield the texts in an answer with their paths; keys of a table are texts too."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield (*path, "{}"), key
            yield from _walk(item, (*path, key))
    elif isinstance(value, list):
        for item in value:
            yield from _walk(item, (*path, "[]"))
    elif isinstance(value, str):
        yield path, value


def _list_others(places: Mapping[_Path, Mapping[str, None]], value: str) -> list[str]:
    """Return the texts that stood where a value stood."""
    others = {
        text: None for texts in places.values() if value in texts for text in texts if text != value
    }
    return list(others)[:_MOST_OTHERS]


def _are_told_apart(calls: Sequence[SandboxCall], said: set[str], value: str, other: str) -> bool:
    own, foreign = words(value), words(other)
    if said & _COMPARISONS or foreign <= said:
        return True
    if said & (words(value.replace("_", " ")) - words(other.replace("_", " "))):
        return True
    for call in calls:
        answer = words(call.result)
        if own <= answer and not foreign <= answer and said & answer:
            return True
    return False


def _is_taken(
    environment: Environment, task: TaskDefinition, number: int, value: str, other: str
) -> bool:
    """Whether a gold call would succeed with another value in the place of one."""
    gold = task.criteria.gold_actions or ()
    tools = environment.open_tools(task, environment.reset(task))
    for action in gold[:number]:
        tools.call(action.name, action.arguments, action.requestor)
    changed = _replace(gold[number].arguments, value, other)
    return not tools.call(gold[number].name, changed).error


def _replace(value: Any, old: str, new: str) -> Any:
    if isinstance(value, Mapping):
        return {key: _replace(item, old, new) for key, item in value.items()}
    if isinstance(value, list):
        return [_replace(item, old, new) for item in value]
    return new if value == old else value


def _list_texts(arguments: Any) -> list[str]:
    return [leaf for leaf in leaves(arguments) if isinstance(leaf, str)]


def _list_choices(environment: Environment, task: TaskDefinition, tool: str) -> set[str]:
    """Return the words of a tool's own description, which names what may be chosen."""
    for schema in environment.schemas(task):
        if schema["function"]["name"] == tool:
            return words(exact_json(schema))
    return set()
