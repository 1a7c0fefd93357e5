"""The names in an environment's tables that a user may say (pure).

    names = list_names(environment, task)
    names.find("send it to aldgate")        the values of the tables that a text has as whole words

The tables of a first state are read once for all tasks that share it, because a real benchmark's
tables have a hundred thousand texts. The fields that count differ by task and are looked up.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from envs.environment import Environment
from envs.evidence.words import leaves, split_words, squeeze_word, words
from envs.task import TaskDefinition
from events.canonical import exact_json

_LONGEST: Final = 60
"""Largest number of characters of a table value that a user may say."""
_SHORTEST: Final = 3
"""Number of characters below which a text of the tables is too common to count as a value."""
_STATES: Final = 64
"""Number of first states whose tables are kept in memory."""

_ValuesByWord = Mapping[str, frozenset[str]]
"""First word of a value -> all values that begin with it, in lower case."""


@dataclass(frozen=True, slots=True)
class Names:
    """Names of things in the tables of a task's first state."""

    common: frozenset[str]
    """Words of the policy and the tools, which any user may say."""
    values: Sequence[_ValuesByWord]
    """For each field whose values are names, the values by their first word."""

    def find(self, text: str) -> Iterator[str]:
        """Yield each value that stands in `text` (in lower case) as whole words, once."""
        values = {
            value: None
            for word in dict.fromkeys(split_words(text))
            for group in self.values
            for value in sorted(group.get(word, ()))
            if _has_whole(text, value)
        }
        for value in values:
            if not set(map(squeeze_word, words(value))) <= self.common:
                yield value


def list_names(environment: Environment, task: TaskDefinition) -> Names:
    """Return the names in the tables of a task's first state."""
    tables = _find_tables(environment, task)
    gold = {
        leaf
        for action in task.criteria.gold_actions or ()
        for leaf in leaves(action.arguments)
        if isinstance(leaf, str)
    }
    fields = {name for leaf in gold for name in tables.fields.get(leaf, ())}
    fields.update(*_list_arguments(environment, task))
    return tables.select(list_common_words(environment, task), fields)


def list_names_like(
    environment: Environment,
    task: TaskDefinition,
    argument: str,
    value: str,
    common: frozenset[str],
) -> Names:
    """Return the names of the same kind as an argument's value: those in fields called `argument`,
    and those in fields that also hold `value`. `common`: list_common_words."""
    tables = _find_tables(environment, task)
    return tables.select(common, {argument, *tables.fields.get(value, ())})


def is_in_tables(environment: Environment, task: TaskDefinition, value: str) -> bool:
    """Return whether `value` is a text or a key in the tables of a task's first state."""
    tables = _find_tables(environment, task)
    return value in tables.fields or value in tables.keys


def list_common_words(environment: Environment, task: TaskDefinition) -> frozenset[str]:
    """Return the words of policy and tools, as lower-case letters and digits. Any user may say
    them, so they are no names."""
    policy = environment.policy(task)
    schemas = exact_json(environment.schemas(task)) + exact_json(environment.user_schemas(task))
    return frozenset(map(squeeze_word, words(policy + " " + schemas.replace("_", " "))))


def list_plain_words(environment: Environment, task: TaskDefinition) -> frozenset[str]:
    """Return the words of the policy and the tools that contain no underscore."""
    schemas = exact_json(environment.schemas(task)) + exact_json(environment.user_schemas(task))
    every = words(f"{environment.policy(task)} {schemas}")
    return frozenset(word for word in every if "_" not in word)


def _find_tables(environment: Environment, task: TaskDefinition) -> "_Tables":
    return _read_tables(_FirstState(environment, environment.state_key(task), task))


@dataclass(frozen=True, slots=True)
class _FirstState:
    environment: Environment
    key: str
    task: TaskDefinition = field(compare=False)


@dataclass(frozen=True, slots=True)
class _Tables:
    values: Mapping[str, _ValuesByWord]
    """Field -> its values that a user may say."""
    fields: Mapping[str, frozenset[str]]
    """Text -> the names of the fields that hold it."""
    keys: frozenset[str]
    """Keys of records, and all keys inside the records."""

    def select(self, common: frozenset[str], fields: Iterable[str]) -> Names:
        """Return the names in the given fields; `common` are words that are no names."""
        groups = [self.values[name] for name in sorted(fields) if name in self.values]
        return Names(common, groups)


@lru_cache(maxsize=_STATES)
def _read_tables(state: _FirstState) -> _Tables:
    database = state.environment.reset(state.task)
    fields: dict[str, set[str]] = {}
    keys: set[str] = set()
    for table in database.names:
        for key, record in database[table].items():
            keys.add(key)
            keys.update(_list_keys(record))
            for name, text in list_texts(record):
                fields.setdefault(text, set()).add(name)
    values: dict[str, dict[str, set[str]]] = {}
    for text, names in fields.items():
        first = split_words(text.lower())[:1] if _SHORTEST <= len(text) <= _LONGEST else []
        for name in names if first else ():
            values.setdefault(name, {}).setdefault(first[0], set()).add(text.lower())
    return _Tables(
        {
            name: {word: frozenset(group) for word, group in groups.items()}
            for name, groups in values.items()
        },
        {text: frozenset(names) for text, names in fields.items()},
        frozenset(keys),
    )


def _list_keys(record: Any) -> Iterator[str]:
    if isinstance(record, dict):
        yield from record
        for value in record.values():
            yield from _list_keys(value)
    elif isinstance(record, list | tuple):
        for item in record:
            yield from _list_keys(item)


def _has_whole(text: str, value: str) -> bool:
    """Return whether `text` has `value` with no letter, digit or underscore directly beside it."""
    place = text.find(value)
    while place >= 0:
        beside = text[max(place - 1, 0) : place] + text[place + len(value) : place + len(value) + 1]
        if not any(character.isalnum() or character == "_" for character in beside):
            return True
        place = text.find(value, place + 1)
    return False


def _list_arguments(environment: Environment, task: TaskDefinition) -> Iterator[set[str]]:
    for schema in environment.schemas(task):
        yield set(schema["function"].get("parameters", {}).get("properties", {}))


def list_texts(record: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield each text in a record, with the name of the field that holds it."""
    if isinstance(record, str):
        yield name, record
    elif isinstance(record, dict):
        for key, value in record.items():
            yield from list_texts(value, key)
    elif isinstance(record, list | tuple):
        for item in record:
            yield from list_texts(item, name)
