"""What an agent can know: what the user says, and what reading tools tell from that.

Guarantee: pure; a fresh state of the task is asked, and the gold actions alone change it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Set
from itertools import combinations
from typing import Any, Final

from envs.environment import Environment
from envs.task import TaskDefinition
from events.canonical import exact_json
from events.messages import Action

_THOUSANDS: Final = re.compile(r"(?<=\d),(?=\d{3}\b)")

_DEPTH: Final = 6
"""Calls from what the user says to what is looked for."""
_CALLS: Final = 400
"""That are tried in all where the gold actions show no way."""

_WORD: Final = re.compile(r"\d+(?:\.\d+)+|[^\W_][\w#@+-]*(?:[.@][^\W_][\w@-]*)*|#\w+")
"""A number, an id, a mail address, or a word; without the punctuation around it."""

_NUMBERS: Final = 40
"""Of which something may be computed; the largest."""

Missing = tuple[str, str, Any]
"""Tool, argument and the value that nobody tells."""


def collect_user_text(task: TaskDefinition) -> str:
    """Everything that the user may say about what they want."""
    script = task.script
    lines = () if script is None else (script.opening, *(answer.says for answer in script.answers))
    return "\n".join((task.scenario.text(), *lines))


def words(text: str) -> set[str]:
    """The words of a text, in small letters."""
    return {word.lower() for word in _split_words(text)}


def _split_words(text: str) -> list[str]:
    """The words as they stand there; `1,000` is 1000 as well."""
    plain = _THOUSANDS.sub("", text)
    return _WORD.findall(text) + (_WORD.findall(plain) if plain != text else [])


def leaves(value: Any) -> Iterator[Any]:
    """The single values of an argument."""
    if isinstance(value, Mapping):
        for item in value.values():
            yield from leaves(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from leaves(item)
    else:
        yield value


def is_computable(value: float, numbers: Iterable[float]) -> bool:
    """Whether a number is up to three of others, added, up to nine times: a price for a party."""
    terms = sorted(set(numbers))[-_NUMBERS:]
    sums = {round(sum(parts), 2) for count in (1, 2, 3) for parts in combinations(terms, count)}
    return any(round(value / times, 2) in sums for times in range(1, 10))


class Knowledge:
    """What an agent can know after the gold actions of a task.

    What a gold call answers is known from then on if its own arguments are. Only where that is not
    enough, tools that read by one argument are tried on whatever is known.
    """

    def __init__(self, environment: Environment, task: TaskDefinition) -> None:
        self.missing: list[Missing] = []
        """Values of gold writes that it cannot know, in order of the gold actions."""
        self._tools = environment.toolset(environment.reset(task))
        self._choices = {
            schema["function"]["name"]: exact_json(schema).lower()
            for schema in environment.schemas(task)
        }
        self._readers = [
            (tool.name, tool.parameters[0])
            for tool in environment.toolset.tools().values()
            if tool.kind == "read" and len(tool.parameters) == 1
        ]
        self._texts: list[str] = []
        self._words: dict[str, str] = {}
        """In small letters -> as it was written."""
        self._tried: set[tuple[str, str]] = set()
        self._hear(collect_user_text(task))
        for action in task.criteria.gold_actions or ():
            self._follow(environment, action)

    def _follow(self, environment: Environment, action: Action) -> None:
        unknown = self._unknown(action.name, action.arguments)
        if unknown and action.name in environment.writes:
            self.look_around()
            unknown = self._unknown(action.name, action.arguments)
            self.missing += unknown
        if not unknown:
            self._call(action.name, action.arguments)

    @property
    def words(self) -> Set[str]:
        """Every word that was said or answered, in small letters."""
        return self._words.keys()

    def _call(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Make a call; what it answers is known from then on."""
        result = self._tools.call(name, dict(arguments))
        if not result.error:
            self._hear(result.content)

    def _unknown(self, tool: str, arguments: Mapping[str, Any]) -> list[Missing]:
        """Texts that nobody has told. A number is counted or computed, and what the tool's own
        description names is chosen."""
        return [
            (tool, name, value)
            for name, argument in arguments.items()
            for value in leaves(argument)
            if isinstance(value, str)
            and not self._can_know(value.lower(), self._choices.get(tool, ""))
        ]

    def look_around(self) -> None:
        """Everything that tools with one argument tell, some calls deep."""
        fresh = sorted(self._words)
        for _ in range(_DEPTH):
            before = set(self._words)
            for tool, argument in self._readers:
                for word in fresh:
                    if (tool, word) not in self._tried and len(self._tried) < _CALLS:
                        self._tried.add((tool, word))
                        self._call(tool, {argument: self._words[word]})
            fresh = sorted(self._words.keys() - before)

    def _hear(self, text: str) -> None:
        self._texts.append(text.lower())
        for word in _split_words(text):
            self._words.setdefault(word.lower(), word)

    def _can_know(self, value: str, choices: str) -> bool:
        """As a word; what is no single word may stand anywhere."""
        if _WORD.fullmatch(value):
            return value in self._words or value in words(choices)
        return any(value in text for text in (*self._texts, choices))
