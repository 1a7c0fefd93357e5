"""A user that commits one fault, for measuring what finds it.

The exact user of the environment speaks, until the first turn at which its line can be spoilt in
the way that was asked for. Which value is put in follows from the seed.
"""

import re
from collections.abc import Iterator, Sequence
from random import Random
from typing import Final, Literal

from envs.attribution.words import leaves, split_words
from envs.environment import Environment
from envs.task import TaskDefinition
from envs.users import STOP, STOP_TOKENS
from events.messages import Message, ToolCall

PlantedFault = Literal["other_value", "secret", "refusal", "early_end", "withheld", "tool"]
"""What a planted user does wrong."""

FAULTS: Final[tuple[PlantedFault, ...]] = (
    "other_value", "secret", "refusal", "early_end", "withheld", "tool",
)  # fmt: skip


class PlantedUser:
    """Plays the exact user of a task, with one fault."""

    def __init__(
        self, environment: Environment, task: TaskDefinition, fault: PlantedFault, seed: int
    ) -> None:
        self._exact = environment.user(task)
        self._environment, self._task, self._fault = environment, task, fault
        self._chance = Random(f"planted {task.id} {fault} {seed}")
        self._withheld: str | None = None
        self.planted: int | None = None
        """Messages before the one with the fault; None while there is none."""

    def reply(self, messages: Sequence[Message]) -> Message:
        """Return the next line or call."""
        line = self._exact.reply(messages)
        if self._withheld is not None:
            return line.model_copy(update={"content": _cut(line.text, self._withheld)})
        if self.planted is not None or any(token in line.text for token in STOP_TOKENS):
            return line
        spoilt = self._spoil(line, is_first=not any(m.role == "user" for m in messages))
        if spoilt is None:
            return line
        self.planted = len(messages)
        return spoilt

    def _spoil(self, line: Message, *, is_first: bool) -> Message | None:
        """Return the line with the fault; None where it cannot have it."""
        if self._fault == "tool":
            return None if is_first else self._call_unasked()
        if line.tool_calls:
            return None
        text = self._spoil_text(line.text, is_first=is_first)
        return None if text is None else Message(role="user", content=text)

    def _spoil_text(self, text: str, *, is_first: bool) -> str | None:
        if self._fault == "early_end":
            return None if is_first else STOP
        if self._fault == "refusal":
            return "No, leave it." if re.match(r"\W*yes\b", text, re.I) else None
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
        return self._replace(text, value)

    def _replace(self, text: str, value: str) -> str | None:
        """Return a text with another value of the same kind."""
        others = sorted({item for item in self._list_likes(value) if item.lower() not in text.lower()})
        return text.replace(value, self._chance.choice(others)) if others else None

    def _list_values(self, text: str) -> list[str]:
        """Return the arguments of gold actions that a text names."""
        named = {str(leaf) for action in self._task.criteria.gold_actions or ()
                 for leaf in leaves(action.arguments)}  # fmt: skip
        return sorted(v for v in named if len(v) > 1 and re.search(rf"(?<!\w){re.escape(v)}(?!\w)", text))

    def _list_likes(self, value: str) -> Iterator[str]:
        """Yield the values that stand in the tables under the names under which this one does."""
        names: set[str] = set()
        pairs: list[tuple[str, str]] = []
        database = self._environment.reset(self._task)
        for table in database.names:
            for key, record in database[table].items():
                pairs.append((table, key))
                pairs += ((name, item) for name, item in _list_fields(record))
        names = {name for name, item in pairs if item == value}
        yield from (item for name, item in pairs if name in names and item != value)

    def _list_secrets(self) -> Iterator[str]:
        """Yield arguments of gold writes, and outputs, that no text of the user has."""
        from envs.attribution.words import collect_user_text, words

        known = words(collect_user_text(self._task))
        for action in self._task.criteria.gold_actions or ():
            for leaf in leaves(action.arguments):
                if isinstance(leaf, str) and any(map(str.isdigit, leaf)) and leaf.lower() not in known:
                    yield leaf
        for output in self._task.criteria.outputs:
            for word in split_words(output):
                if any(map(str.isdigit, word)) and word.lower() not in known:
                    yield word

    def _call_unasked(self) -> Message | None:
        own = self._environment.user_toolset
        if own is None:
            return None
        gold = {action.name for action in self._task.criteria.gold_actions or ()}
        tools = [t.name for t in own.tools().values()
                 if t.kind == "write" and not t.parameters and t.name not in gold]  # fmt: skip
        call = ToolCall(name=self._chance.choice(sorted(tools)), arguments={}, id="planted")
        return Message(role="user", tool_calls=(call,))


def _cut(text: str, value: str) -> str:
    return " ".join(re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", "", text).split()) or "Hm."


def _list_fields(record: object) -> Iterator[tuple[str, str]]:
    if isinstance(record, dict):
        for name, value in record.items():
            if isinstance(value, str):
                yield name, value
            else:
                yield from _list_fields(value)
    elif isinstance(record, list | tuple):
        for item in record:
            yield from _list_fields(item)
