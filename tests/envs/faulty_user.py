"""A user that commits one fault, for measuring what finds it.

The exact user of the environment speaks, up to the first turn at which its line can be spoilt in
the way that was asked for. Which value is put in follows from task, fault and seed.
"""

import re
from collections.abc import Iterator, Sequence
from random import Random
from typing import Final, Literal

from envs.environment import Environment
from envs.evidence.names import list_texts
from envs.evidence.words import collect_user_text, leaves, split_words, words
from envs.task import TaskDefinition
from envs.users import STOP, STOP_TOKENS
from events.messages import Message, ToolCall

FaultKind = Literal["other_value", "secret", "refusal", "early_end", "withheld", "tool"]
"""What a planted user does wrong: it names another value of the same kind, tells what it cannot
know, refuses to confirm, hangs up, leaves a value out of every line, or calls a tool unasked."""

FAULTS: Final[tuple[FaultKind, ...]] = (
    "other_value", "secret", "refusal", "early_end", "withheld", "tool",
)  # fmt: skip

_YES: Final = re.compile(r"\W*yes\b", re.IGNORECASE)


class FaultyUser:
    """Plays the exact user of a task, with one fault."""

    def __init__(
        self, environment: Environment, task: TaskDefinition, fault: FaultKind, seed: int
    ) -> None:
        self._environment, self._task, self._fault = environment, task, fault
        self._exact = environment.user(task)
        self._chance = Random(f"planted {task.id} {fault} {seed}")
        self._withheld: str | None = None
        self.planted: int | None = None
        """Messages of the user's view before the fault; None while there is none."""

    def reply(self, messages: Sequence[Message]) -> Message:
        """Return the next line or call."""
        line = self._exact.reply(messages)
        if self._withheld is not None:
            return line.model_copy(update={"content": _cut(line.text, self._withheld)})
        if self.planted is not None or any(token in line.text for token in STOP_TOKENS):
            return line
        is_first = not any(message.role == "user" for message in messages)
        spoilt = self._spoil(line, is_first=is_first)
        if spoilt is None:
            return line
        self.planted = len(messages)
        return spoilt

    def _spoil(self, line: Message, *, is_first: bool) -> Message | None:
        """Return a line with the fault; None where it cannot have it."""
        if self._fault == "tool":
            return None if is_first else self._call_tool()
        if line.tool_calls:
            return None
        text = self._spoil_text(line.text, is_first=is_first)
        return None if text is None else Message(role="user", content=text)

    def _spoil_text(self, text: str, *, is_first: bool) -> str | None:
        if self._fault == "early_end":
            return None if is_first else STOP
        if self._fault == "refusal":
            return "No, leave it." if _YES.match(text) else None
        if self._fault == "secret":
            secret = next(self._list_secrets(), None)
            return None if secret is None else f"{text} It is {secret}."
        values = self._list_values(text)
        if not values:
            return None
        value = self._chance.choice(values)
        if self._fault == "withheld":
            self._withheld = value
            return _cut(text, value)
        others = sorted({v for v in self._list_likes(value) if v.lower() not in text.lower()})
        return text.replace(value, self._chance.choice(others)) if others else None

    def _list_arguments(self) -> Iterator[str]:
        """Yield the texts among the arguments of the gold actions."""
        for action in self._task.criteria.gold_actions or ():
            yield from (leaf for leaf in leaves(action.arguments) if isinstance(leaf, str))

    def _list_values(self, text: str) -> list[str]:
        """Return the arguments of gold actions that a text names, in order."""
        named = {value for value in self._list_arguments() if len(value) > 1}
        return sorted(value for value in named if re.search(_whole(value), text))

    def _list_likes(self, value: str) -> Iterator[str]:
        """Yield what else stands in the tables under the names under which this value does."""
        database = self._environment.reset(self._task)
        fields = [
            pair
            for table in database.names
            for key, record in database[table].items()
            for pair in ((table, key), *list_texts(record))
        ]
        names = {name for name, text in fields if text == value}
        yield from (text for name, text in fields if name in names and text != value)

    def _list_secrets(self) -> Iterator[str]:
        """Yield values with a digit, of gold actions and outputs, that no text of the user has."""
        known = words(collect_user_text(self._task))
        outputs = (word for text in self._task.criteria.outputs for word in split_words(text))
        for value in (*self._list_arguments(), *outputs):
            if re.search(r"\d", value) and value.lower() not in known:
                yield value

    def _call_tool(self) -> Message | None:
        """Return a call that changes something, which the task does not need; None where the user
        has no tools."""
        own = self._environment.user_toolset
        if own is None:
            return None
        gold = {action.name for action in self._task.criteria.gold_actions or ()}
        tools = own.tools().values()
        names = [t.name for t in tools if t.kind == "write" and not t.parameters]
        name = self._chance.choice(sorted(set(names) - gold))
        return Message(role="user", tool_calls=(ToolCall(name=name, arguments={}, id="planted"),))


def _whole(value: str) -> str:
    """The pattern of a value as whole words."""
    return rf"(?<!\w){re.escape(value)}(?!\w)"


def _cut(text: str, value: str) -> str:
    return " ".join(re.sub(_whole(value), "", text).split()) or "Well."
