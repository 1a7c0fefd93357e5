"""Find what the user of an episode did wrong, from the transcript alone (pure).

    fault = find_user_fault(environment, task, messages)     None: the user kept to its situation

Where a model plays the user it may err, and the agent must not pay for it. The exact user of the
environment (users.py) hears the same texts of the agent, and what the played user says is held
against it, by rule:

    secret       the user tells a value of the gold actions or outputs that it cannot know
    instruction  it tells another value than its situation has, refuses what it was to confirm, or
                 never tells what it was asked for
    early_end    it hangs up where it had an answer to give
    tool         it calls a tool wrongly, or one that nobody asked for

Values are ids, numbers of four digits and more, and what the tables hold under the name of an
argument of a writing tool. A value counts as known where the scenario, the script, the agent or a
tool of the user named it, whatever the spelling. A user is free in its words, and may correct an
agent that asks about something else.

Guarantee: the exact user has no fault in any task of its environment. Not covered: manners, and
wrong words without a value in them. Source: AReaL-SEA, arXiv 2601.22607, which tells faults of the
task from faults of the trajectory; the user's are ours.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal

from envs.attribution.words import collect_user_text, leaves, split_words, words
from envs.environment import Environment
from envs.episode import hide_calls
from envs.task import TaskDefinition
from envs.users import STOP_TOKENS, User, is_end
from events.canonical import exact_json
from events.messages import Message, Requestor, ToolCall

FaultRule = Literal["secret", "instruction", "early_end", "tool"]
"""Which rule a user broke."""


@dataclass(frozen=True, slots=True)
class UserFault:
    """What a user did wrong."""

    rule: FaultRule
    place: int
    """Of the message in the transcript, from 0."""
    reason: str
    """In words, with the value that is wrong."""

    @property
    def summary(self) -> str:
        """Describe it in one line."""
        return f"the user's fault ({self.rule}), message {self.place}: {self.reason}"


_LONG_NUMBER: Final = 4
"""Digits from which on a number names something."""
_LONGEST: Final = 60
"""Characters of a value of the tables that a user may name."""
_SHORTEST: Final = 3
"""Characters below which a text of the tables is too common to be a value."""

_YES: Final = re.compile(r"\W*(yes|yeah|yep|sure|ok|okay|correct|please do|go ahead)\b", re.I)
_NO: Final = re.compile(r"\W*(no|nope|don't|do not|never mind|stop)\b", re.I)
_FAREWELL: Final = re.compile(
    r"\b(anything|something|what|how) else\b|\bfurther\b|\bmore I can\b|\bfeel free to\b"
    r"|\b(great|good|nice|wonderful) day\b|\bsafe travels\b",
    re.I,
)
"""What a user may answer by hanging up."""
_NOTHING: Final = re.compile(r"[^0-9a-z]+")
"""What spelling may change in a value."""
_WORDS_OF_ANY_TOOL: Final = frozenset(
    [
        "app",
        "change",
        "check",
        "connect",
        "device",
        "disconnect",
        "from",
        "mobile",
        "phone",
        "reset",
        "that",
        "this",
        "toggle",
        "turn",
        "user",
        "what",
        "when",
        "which",
        "with",
        "your",
    ]
)
"""Words of tools' names and descriptions that say nothing of what they act on."""
_SHORT_WORD: Final = 3
"""Letters of a word of a description that says as little."""


def find_user_fault(
    environment: Environment, task: TaskDefinition, messages: Sequence[Message]
) -> UserFault | None:
    """Return the first fault of the user in a transcript (without system prompt); None where it has
    none. What was not written in the episode, its prefix, is nobody's fault."""
    if task.solo:
        return None
    observer = _Observer(environment, task)
    for place, message in enumerate(messages):
        if message.role == "user" and message.sampled is not False:
            fault = observer.check(place, messages[:place], message)
            if fault is not None:
                return fault
        observer.hear(message)
    return observer.close()


class _Observer:
    """Follows one transcript."""

    def __init__(self, environment: Environment, task: TaskDefinition) -> None:
        self._environment, self._task = environment, task
        self._exact: User = environment.user(task)
        self._tools = environment.open_tools(task, environment.reset(task))
        self._situation = _squeeze(collect_user_text(task))
        self._heard = self._situation
        """What the user can know, without spaces and signs."""
        self._told = ""
        """What the user said, likewise."""
        self._asked: set[str] = set()
        """Words of the agent."""
        self._owed: list[tuple[int, str]] = []
        """Values that the exact user would have told, with the place where."""
        self._secrets = _list_secrets(task)
        self._names = _list_names(environment, task)

    def hear(self, message: Message) -> None:
        """Take in a message that was checked."""
        for call in message.tool_calls:
            requestor: Requestor = "user" if message.role == "user" else "assistant"
            answer = self._tools.call(call.name, call.arguments, requestor)
            if requestor == "user":
                self._heard += _squeeze(answer.content)
        if message.role == "user":
            self._told += _squeeze(message.text)
        elif message.role == "assistant" and message.text:
            self._heard += _squeeze(message.text)
            self._asked |= words(message.text)

    def check(self, place: int, before: Sequence[Message], message: Message) -> UserFault | None:
        """Return what is wrong with a message of the user."""
        expected = self._exact.reply(hide_calls(before, of="assistant"))
        for call in message.tool_calls:
            if problem := self._check_call(call, expected):
                return UserFault("tool", place, problem)
        if message.tool_calls:
            return None
        value = self._find_unknown(message.text)
        if value is not None:
            rule: FaultRule = "secret" if _squeeze(value) in self._secrets else "instruction"
            return UserFault(rule, place, f"it tells {value!r}, which its situation does not have")
        texts = [item.text for item in before if item.role == "assistant" and item.text]
        asked = texts[-1] if texts else ""
        if any(token in message.text for token in STOP_TOKENS):
            return self._check_end(place, asked, expected)
        if self._is_contrary(asked, expected.text, message.text):
            return UserFault(
                "instruction", place, f"it says {message.text[:80]!r} to {asked[:80]!r}"
            )
        if asked and self._task.script is not None and not expected.tool_calls:
            self._owed += ((place, value) for value in self._list_untold(expected.text, message))
        return None

    def close(self) -> UserFault | None:
        """Return what the user never told, though the agent waited for it."""
        for place, value in self._owed:
            if _squeeze(value) not in self._told:
                return UserFault("instruction", place, f"it was asked and never tells {value!r}")
        return None

    def _check_call(self, call: ToolCall, expected: Message) -> str | None:
        """Return what is wrong with a call of the user."""
        own = self._environment.user_toolset
        if own is None or call.name not in own.tools():
            return f"it calls {call.name}, which is no tool of the user"
        if isinstance(call.arguments, str):
            return f"it calls {call.name} with {call.arguments[:80]!r}, which is no JSON object"
        probe = self._tools.fork(self._tools.database.copy())
        if probe.call(call.name, call.arguments, "user").malformed:
            return f"it calls {call.name} with arguments that do not fit"
        gold = {action.name for action in self._task.criteria.gold_actions or ()}
        wanted = gold | {item.name for item in expected.tool_calls}
        if call.name not in self._environment.user_writes or call.name in wanted:
            return None
        description = own.tools()[call.name].schema["function"]["description"]
        subject = {word for word in words(description) if len(word) > _SHORT_WORD}
        if ((subject | set(call.name.split("_"))) - _WORDS_OF_ANY_TOOL) & self._asked:
            return None
        return f"it calls {call.name}, which nobody asked for"

    def _check_end(self, place: int, asked: str, expected: Message) -> UserFault | None:
        """Return whether the user hangs up too early."""
        script = self._task.script
        if expected.text and any(token in expected.text for token in STOP_TOKENS):
            return None
        if not asked:
            return UserFault("early_end", place, "it hangs up before the agent said anything")
        if _FAREWELL.search(asked) or (script is not None and is_end(script, asked)):
            return None
        answers = script is not None and (
            expected.text != script.otherwise or any(self._list_untold(expected.text))
        )
        if answers or expected.tool_calls or "?" in asked:
            return UserFault("early_end", place, f"it hangs up when the agent says {asked[-80:]!r}")
        return None

    def _list_untold(self, text: str, message: Message | None = None) -> Iterator[str]:
        """Yield the values of the user's situation in a text that the user has not told yet; what
        `message` tells is told."""
        told = self._told + ("" if message is None else _squeeze(message.text))
        for value in self._list_values(text):
            if _squeeze(value) in self._situation and _squeeze(value) not in told:
                yield value

    def _is_contrary(self, asked: str, expected: str, text: str) -> bool:
        """Whether the user refuses what it was to agree to, or agrees to what it was to refuse.
        What the agent asks about must be of the user's situation: else a correction is right."""
        if self._task.script is None or any(
            _squeeze(value) not in self._situation and _squeeze(value) not in self._secrets
            for value in self._list_values(asked)
        ):
            return False
        agrees = bool(_YES.match(expected)) and bool(_NO.match(text))
        return agrees or (bool(_NO.match(expected)) and bool(_YES.match(text)))

    def _find_unknown(self, text: str) -> str | None:
        """Return a value in a text of the user that it cannot know."""
        return next(
            (value for value in self._list_values(text) if _squeeze(value) not in self._heard), None
        )

    def _list_values(self, text: str) -> Iterator[str]:
        """Yield the values that a text names."""
        for word in split_words(text):
            if _is_value(word) and _squeeze(word) not in self._names.common:
                yield word
        yield from self._names.find(text.lower())


@dataclass(frozen=True, slots=True)
class _Names:
    """What the tables of an environment call things."""

    common: frozenset[str]
    """Words of policy and tools, which anybody may use."""
    values: Mapping[str, frozenset[str]]
    """First word of a value -> the values that begin with it, in lower case."""

    def find(self, text: str) -> Iterator[str]:
        """Yield the values that a text in lower case has as whole words."""
        for word in dict.fromkeys(split_words(text)):
            for value in self.values.get(word, ()):
                if re.search(rf"(?<!\w){re.escape(value)}(?!\w)", text):
                    yield value


def _list_names(environment: Environment, task: TaskDefinition) -> _Names:
    """Return the names in the tables in which a task begins."""
    policy = environment.policy(task)
    schemas = exact_json(environment.schemas(task)) + exact_json(environment.user_schemas(task))
    common = frozenset(_squeeze(word) for word in words(policy + " " + schemas.replace("_", " ")))
    values: dict[str, set[str]] = {}
    database = environment.reset(task)
    records = [record for table in database.names for record in database[table].values()]
    names = _find_fields(records, task).union(*_list_arguments(environment, task))
    for record in records:
        for name, text in _list_texts(record):
            if name in names and _SHORTEST <= len(text) <= _LONGEST:
                value = text.lower()
                first = split_words(value)[:1]
                if first and not set(map(_squeeze, words(value))) <= common:
                    values.setdefault(first[0], set()).add(value)
    return _Names(common, {word: frozenset(group) for word, group in values.items()})


def _list_arguments(environment: Environment, task: TaskDefinition) -> Iterator[set[str]]:
    """Yield the names of the arguments of each of the agent's tools."""
    for schema in environment.schemas(task):
        yield set(schema["function"].get("parameters", {}).get("properties", {}))


def _find_fields(records: Iterable[Any], task: TaskDefinition) -> frozenset[str]:
    """Return the names under which arguments of the gold actions stand in records."""
    gold = {
        leaf
        for action in task.criteria.gold_actions or ()
        for leaf in leaves(action.arguments)
        if isinstance(leaf, str)
    }
    return frozenset(
        name for record in records for name, text in _list_texts(record) if text in gold
    )


def _list_texts(record: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield the texts in a record, each with the name of the field that it stands under."""
    if isinstance(record, str):
        yield name, record
    elif isinstance(record, Mapping):
        for key, value in record.items():
            yield from _list_texts(value, key)
    elif isinstance(record, list | tuple):
        for item in record:
            yield from _list_texts(item, name)


def _list_secrets(task: TaskDefinition) -> frozenset[str]:
    """Return the values of gold actions and outputs, without spaces and signs."""
    criteria = task.criteria
    texts = [
        str(leaf) for action in criteria.gold_actions or () for leaf in leaves(action.arguments)
    ]
    outputs = (word for output in criteria.outputs for word in split_words(output))
    return frozenset(_squeeze(text) for text in (*texts, *outputs))


def _is_value(word: str) -> bool:
    """Whether a word names something: an id of letters and digits, or a long number."""
    digits = sum(character.isdigit() for character in word)
    letters = any(character.isalpha() for character in word)
    if not digits:
        return False
    return digits >= _LONG_NUMBER or (
        letters and not re.fullmatch(r"(?i)\d+(st|nd|rd|th|am|pm)", word)
    )


@lru_cache(maxsize=4096)
def _squeeze(text: str) -> str:
    """Return the letters and digits of a text, in lower case."""
    return _NOTHING.sub("", text.lower())
