"""The values that an agent can know, from the user's words and results of reading tools. Pure: the
tools run on a fresh state of the task, and only the gold actions change it."""

from collections.abc import Iterable, Mapping, Set
from itertools import combinations
from typing import Any, Final

from envs.environment import Environment
from envs.evidence.words import WORD, collect_user_text, leaves, split_words, words
from envs.task import TaskDefinition
from events.canonical import exact_json
from events.messages import Action

_DEPTH: Final = 6
"""Largest number of calls in a chain that leads from the user's words to a value."""
_CALLS: Final = 400
"""Largest number of calls that are tried in all if the gold actions do not yield a value."""

_NUMBERS: Final = 40
"""How many of the largest known numbers are used to compute another number."""

Missing = tuple[str, str, Any]
"""A tool, an argument, and a value of this argument that an agent cannot know."""


def is_computable(value: float, numbers: Iterable[float]) -> bool:
    """Return whether `value` is a sum of one to three `numbers`, times 1 to 9 (for a group)."""
    terms = sorted(set(numbers))[-_NUMBERS:]
    sums = {round(sum(parts), 2) for count in (1, 2, 3) for parts in combinations(terms, count)}
    return any(round(value / times, 2) in sums for times in range(1, 10))


class Knowledge:
    """An agent's possible knowledge after a task's gold actions. The result of a gold call is known
    if its arguments are. Else reading tools with one argument are tried with all known words."""

    def __init__(self, environment: Environment, task: TaskDefinition) -> None:
        self.missing: list[Missing] = []
        """Values of gold writes that an agent cannot know, in the order of the gold actions."""
        self.silent: list[Missing] = []
        """The values of `missing`, and further ones that only extra look-ups reveal: neither the
        user nor an earlier gold result says them."""
        self._tools = environment.open_tools(task, environment.reset(task))
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
        """Word in lower case -> the word in its original case."""
        self._tried: set[tuple[str, str]] = set()
        self._hear(collect_user_text(task))
        for action in task.criteria.gold_actions or ():
            self._follow(environment, action)

    def _follow(self, environment: Environment, action: Action) -> None:
        if action.requestor == "user":
            # The user makes this call at the agent's request and reports the result.
            self._call(action)
            return
        unknown = self._unknown(action.name, action.arguments)
        if unknown and action.name in environment.writes:
            self.silent += unknown
            self.look_around()
            unknown = self._unknown(action.name, action.arguments)
            self.missing += unknown
        if not unknown:
            self._call(action)

    @property
    def words(self) -> Set[str]:
        """Every word in the user's text or in a result, in lower case."""
        return self._words.keys()

    def _call(self, action: Action) -> None:
        result = self._tools.call(action.name, dict(action.arguments), action.requestor)
        if not result.error:
            self._hear(result.content)

    def _unknown(self, tool: str, arguments: Mapping[str, Any]) -> list[Missing]:
        """Return the text values in the arguments that are not known. Numbers are exempt, because
        they can be computed; so are values in the tool's own schema."""
        return [
            (tool, name, value)
            for name, argument in arguments.items()
            for value in leaves(argument)
            if isinstance(value, str)
            and not self._can_know(value.lower(), self._choices.get(tool, ""))
        ]

    def look_around(self) -> None:
        """Call every reading tool of one argument with all known words, up to `_DEPTH` times."""
        fresh = sorted(self._words)
        for _ in range(_DEPTH):
            before = set(self._words)
            for tool, argument in self._readers:
                for word in fresh:
                    if (tool, word) not in self._tried and len(self._tried) < _CALLS:
                        self._tried.add((tool, word))
                        self._call(Action(name=tool, arguments={argument: self._words[word]}))
            fresh = sorted(self._words.keys() - before)

    def _hear(self, text: str) -> None:
        self._texts.append(text.lower())
        for word in split_words(text):
            self._words.setdefault(word.lower(), word)

    def _can_know(self, value: str, choices: str) -> bool:
        if WORD.fullmatch(value):
            return value in self._words or value in words(choices)
        return any(value in text for text in (*self._texts, choices))
