"""Check that a request tells which calls are meant, and invents nothing (pure).

    problem = find_ambiguity(environment, task, calls, known)     None if there is none

The checks of tasks ask whether an agent *can* know the values of a write. A model's words may still
be ambiguous ("cancel an order", of a customer with two). By rule:

    who      the request has the arguments that identify the customer
    known    if something is changed, an id or a long number that the user names is in a call, an
             answer, the policy or the customer's description; others are invented
    which    a write's value that the user does not say must differ from each other value that the
             tools gave in its place. The user names no other value, unless as an exception ("all
             but the umbrella"). If the tool would take another value, the request must tell it
             apart: by a word that only the right one's answers or records have ("the oak stool"
             of an order with two items), or by a comparison ("the cheapest")

Not covered: whether the words mean what they name; a comparison is believed as it is.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from daemon.methods.synthesis.models.exploration import SandboxCall
from daemon.methods.synthesis.models.gold import has_effect
from envs.environment import Environment
from envs.evidence.words import collect_user_text, leaves, words
from envs.task import TaskDefinition
from events.canonical import exact_json
from events.json_text.guard import UnstorableJson, parse_json
from events.messages import Action

_MOST_OTHERS: Final = 16
"""Most other values that are tried in place of one value."""
_LONG: Final = 5
"""A number with so many digits is taken for an id, not for an amount."""
_TELLING: Final = 3
"""A word with so many letters can tell two records apart."""
_COMPARISONS: Final = words(
    "biggest cheapest dearest earliest fastest first fewest highest largest last latest least "
    "longest lowest most newest next oldest shortest slowest smallest"
)

_EXCEPTIONS: Final = words(
    "but except excluding instead keep leave not other others rather without"
)

_Path = tuple[str, ...]


def find_ambiguity(
    environment: Environment, task: TaskDefinition, calls: Sequence[SandboxCall], known: str
) -> str | None:
    """Return what a task's request leaves open or invents, or None. `known` describes the user."""
    user_words = words(collect_user_text(task))
    gold = task.criteria.gold_actions or ()
    return (
        _check_identity(environment, gold, user_words)
        or _find_invention(environment, user_words, calls, f"{environment.policy(task)} {known}")
        or _find_open_value(environment, task, calls, user_words)
    )


def _check_identity(
    environment: Environment, gold: Sequence[Action], user_words: set[str]
) -> str | None:
    for action in gold:
        if action.name in environment.catalog.authenticating:
            missing = sorted(words(" ".join(_list_texts(action.arguments))) - user_words)
            if missing:
                return f"the user does not say {missing[0]!r}, by which {action.name} finds them"
            return None
    return None


def _find_invention(
    environment: Environment, user_words: set[str], calls: Sequence[SandboxCall], known: str
) -> str | None:
    if not any(call.action.name in environment.changes for call in calls):
        return None  # the request for a refused change may name things that do not exist
    texts = [known, *(f"{exact_json(call.action.arguments)} {call.result}" for call in calls)]
    invented = sorted(filter(_is_id, user_words - words(" ".join(texts))))
    if invented:
        return f"the user names {invented[0]!r}, which no call has or is answered"
    return None


def _is_id(word: str) -> bool:
    """Return whether a word is an id or a long number, and no amount, date or ordinal."""
    digits = sum(character.isdigit() for character in word)
    return digits >= _LONG or (digits > 0 and not word[0].isdigit())


def _find_open_value(
    environment: Environment,
    task: TaskDefinition,
    calls: Sequence[SandboxCall],
    user_words: set[str],
) -> str | None:
    gold = task.criteria.gold_actions or ()
    wishes = user_words - words(task.scenario.known_info)
    answers = _read_answers(calls)
    places = _collect_places(answers)
    for number, action in enumerate(gold):
        if action.requestor != "assistant" or not has_effect(environment, action):
            continue
        twins = [twin.arguments for twin in gold if twin.name == action.name]
        taken = set(_list_texts(twins))
        for value in _list_texts(action.arguments):
            if words(value) <= user_words | _list_choices(environment, task, action.name):
                continue
            others = [other for other in _list_others(places, value) if other not in taken]
            named = [other for other in others if words(other) <= user_words]
            if named and not user_words & (_EXCEPTIONS | _COMPARISONS):
                return f"the user names {named[0]!r}, and {action.name} has {value!r}"
            for other in others[:_MOST_OTHERS]:
                if _has_distinction(calls, user_words, value, other):
                    continue
                if any(_names_record(answer, wishes, value, other) for _, answer in answers):
                    continue
                if _can_replace(environment, task, number, value, other):
                    return (
                        f"the request does not tell whether {value!r} or {other!r} is meant for "
                        f"{action.name}"
                    )
    return None


def _read_answers(calls: Sequence[SandboxCall]) -> list[tuple[str, Any]]:
    """Return (tool, answer) for the calls whose answers are JSON."""
    answers = []
    for call in calls:
        with suppress(UnstorableJson):
            answers.append((call.action.name, parse_json(call.result)))
    return answers


def _collect_places(answers: Sequence[tuple[str, Any]]) -> dict[_Path, dict[str, None]]:
    """Return (tool and path in its answer) -> the texts found there."""
    places: dict[_Path, dict[str, None]] = {}
    for tool, answer in answers:
        for path, text in _walk(answer, (tool,)):
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
    others = {
        text: None for texts in places.values() if value in texts for text in texts if text != value
    }
    return list(others)


def _has_distinction(
    calls: Sequence[SandboxCall], user_words: set[str], value: str, other: str
) -> bool:
    own, foreign = words(value), words(other)
    if user_words & _COMPARISONS or foreign <= user_words:
        return True
    if user_words & (words(value.replace("_", " ")) - words(other.replace("_", " "))):
        return True
    for call in calls:
        answer = words(call.result)
        if own <= answer and not foreign <= answer and user_words & answer:
            return True
    return False


def _names_record(answer: Any, wishes: set[str], value: str, other: str) -> bool:
    """Return whether a word of `wishes` is in the answer's records of `value`, not of `other`."""
    own, foreign = (_collect_record_words(answer, text) for text in (value, other))
    return bool(foreign) and any(len(word) >= _TELLING for word in wishes & (own - foreign))


def _collect_record_words(answer: Any, text: str) -> set[str]:
    """Return all words of the records that have `text` as a value or as their key."""
    collected: set[str] = set()
    for record in _list_records(answer):
        for key, item in record.items():
            if key == text:
                collected |= words(" ".join(map(str, leaves(item))))
            elif item == text:
                collected |= words(" ".join(map(str, leaves(record))))
    return collected


def _list_records(answer: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(answer, Mapping):
        yield answer
        for item in answer.values():
            yield from _list_records(item)
    elif isinstance(answer, list):
        for item in answer:
            yield from _list_records(item)


def _can_replace(
    environment: Environment, task: TaskDefinition, number: int, value: str, other: str
) -> bool:
    """Return whether a gold call would succeed with `other` in place of `value`."""
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
    """Return the words of a tool's own schema, which names the possible choices."""
    for schema in environment.schemas(task):
        if schema["function"]["name"] == tool:
            return words(exact_json(schema))
    return set()
