"""Find the fault of an episode's user from the transcript alone (pure). A model that plays the user
may err, and the agent must not be judged for it. The environment's exact user (users.py) hears the
same texts, and the played user's words are compared with its own. The rules:

    secret       the user tells a value of the gold actions or outputs that it cannot know
    instruction  it tells a wrong value, refuses to confirm its own request, never tells a value it
                 was asked for, hangs up without a value of its opening, says nothing about its
                 request in its first lines, or repeats one line over and over
    early_end    it hangs up although it had an answer to give
    tool         it calls a tool wrongly, without being asked, or repeats a call over and over

Values are ids, numbers of four digits and more, and what the tables hold under the name of an
argument of a writing tool. A value is known where the scenario, the script, the agent or a tool of
the user named it, in any spelling (spelling.py). A user is free in its words, may correct an agent
that asks about something else, and may wait for one that has not done its part after it told what
it wants. It may hang up where the task is a success or the agent turns the request down. An agent
that failed before the fault (`is_lost`) is not excused.

Guarantee: the exact user has no fault in any task of its environment. Not covered: manners, wrong
words without a value, and, in other languages than English, an end in answer to a question that the
situation has no answer to. Source: AReaL-SEA, arXiv 2601.22607, for faults of the task and of the
trajectory; the user's are ours.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from envs.comparison.arrangement import arrange_calls, arrange_task
from envs.environment import Environment
from envs.episode import Termination, hide_calls
from envs.evidence.names import list_names
from envs.evidence.proposals import Proposals
from envs.evidence.requests import has_request, list_request_roots
from envs.evidence.spelling import has_number_words, has_value, is_value
from envs.evidence.utterances import (
    agrees,
    is_farewell,
    is_readable,
    refuses,
    turns_down,
    wants_answer,
)
from envs.evidence.words import (
    collect_user_text,
    leaves,
    split_words,
    squeeze,
    squeeze_word,
    words,
)
from envs.grading import compare_states, grade, replay, replay_gold
from envs.task import Script, TaskDefinition
from envs.users import HEARD_CHARACTERS, OUT_OF_SCOPE, STOP_TOKENS, User, is_end
from events.messages import ExecutedCall, Message, Requestor, ToolCall, executed_calls

FaultRule = Literal["secret", "instruction", "early_end", "tool"]


@dataclass(frozen=True, slots=True)
class UserFault:
    """A fault of a user in an episode."""

    rule: FaultRule
    place: int
    """Position of the message in the transcript, from 0."""
    reason: str
    """Description of the fault, with the wrong value."""

    @property
    def summary(self) -> str:
        """The fault in one line."""
        return f"the user's fault ({self.rule}), message {self.place}: {self.reason}"


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
"""Words in tools' names and descriptions that do not tell what the tool acts on."""
_REPEATS: Final = 4
"""Number of equal calls or lines in a row that are a fault if the exact user acts otherwise. So
many lines after the exact user hangs up are a fault too."""
_OPENING_LINES: Final = 5
"""Number of lines within which a user must say something about its request."""
_STEM: Final = 5
"""Number of first letters in which two forms of a word agree, such as restart and restarting."""
_SHORT_WORD: Final = 3
"""Length up to which a word of a description is too short to tell what the tool acts on."""


def find_user_fault(
    environment: Environment, task: TaskDefinition, messages: Sequence[Message]
) -> UserFault | None:
    """Return the user's first fault in a transcript (without system prompt). Return None if there
    is none or the agent had already failed. The prefix has no faults."""
    if task.solo:
        return None
    fault = _find_first_fault(environment, task, messages)
    if fault is None or is_lost(environment, task, messages[: fault.place]):
        return None
    return fault


def _find_first_fault(
    environment: Environment, task: TaskDefinition, messages: Sequence[Message]
) -> UserFault | None:
    observer = _Observer(environment, task)
    for place, message in enumerate(messages):
        if message.role == "user" and message.sampled is not False:
            fault = observer.check(place, messages[:place], message)
            if fault is not None:
                return fault
        observer.hear(message)
    return observer.close()


class _Observer:
    def __init__(self, environment: Environment, task: TaskDefinition) -> None:
        self._environment, self._task = environment, task
        self._exact: User = environment.user(task)
        self._tools = environment.open_tools(task, environment.reset(task))
        self._situation = squeeze(collect_user_text(task))
        self._heard = self._situation
        """Everything that the user can know so far, as lower-case letters and digits only."""
        self._agent_text = ""
        """The part of `_heard` that the agent said."""
        self._told = ""
        """Everything that the user has said, as lower-case letters and digits only."""
        self._has_number_words = False
        """Whether the user has written a number in words."""
        self._asked: set[str] = set()
        self._lookups: list[tuple[str, str]] = []
        self._transferred = False
        self._owed: list[tuple[int, str]] = []
        """Values that the exact user would have told, each with the position in the transcript."""
        self._first = 0
        """Position of the first message of the user that was checked."""
        self._last = -1
        self._expected: list[str] = []
        """For each line of the user, the line of the exact user at that point."""
        self._overdue: list[int] = []
        """Positions at which the user spoke although the exact user hangs up."""
        self._secrets = _list_secrets(task)
        self._names = list_names(environment, task)
        self._proposals = Proposals(environment, task, self._situation)
        self._roots = list_request_roots(environment, task)
        """Roots of the words in the user's request (requests.py)."""
        self._has_opened = False
        """Whether the user has said something about its request."""
        self._idle_lines: list[str] = []
        """The user's lines so far that say nothing about its request."""

    def hear(self, message: Message) -> None:
        """Take in a message after it was checked, and replay its calls."""
        for call in message.tool_calls:
            requestor: Requestor = "user" if message.role == "user" else "assistant"
            answer = self._tools.call(call.name, call.arguments, requestor).content
            if requestor == "user":
                self._heard += squeeze(answer)
            else:
                self._lookups.append((str(call.arguments), answer))
                self._transferred |= call.name in self._environment.catalog.transfer
        if message.role == "user":
            self._told += squeeze(message.text)
            self._has_opened = self._has_opened or self._opens(message.text)
            self._has_number_words |= has_number_words(message.text)
        elif message.role == "assistant" and message.text:
            text = squeeze(message.text)
            self._heard += text
            self._agent_text += text
            self._asked |= words(message.text)

    def check(self, place: int, before: Sequence[Message], message: Message) -> UserFault | None:
        """Return the fault of a message of the user, or None. `before` are the earlier messages."""
        self._first = place if self._last < 0 else self._first
        self._last = place
        expected = self._exact.reply(hide_calls(before, of="assistant"))
        for call in message.tool_calls:
            if problem := self._check_call(call, expected):
                return UserFault("tool", place, problem)
        if message.tool_calls:
            return self._check_repeated_call(place, before, message, expected)
        value = self._find_unknown(message.text)
        if value is not None:
            rule: FaultRule = "secret" if squeeze(value) in self._secrets else "instruction"
            return UserFault(rule, place, f"it tells {value!r}, which its situation does not have")
        texts = [item.text for item in before if item.role == "assistant" and item.text]
        asked = texts[-1] if texts else ""
        self._expected.append(expected.text)
        if any(token in message.text for token in STOP_TOKENS):
            fault = self._check_end(place, asked, message, expected) or self._check_opening(asked)
            # After a success the user may hang up, whatever the agent says.
            return None if fault is None or self._has_success([*before, message]) else fault
        if self._is_contrary(asked, expected.text, message.text):
            return UserFault(
                "instruction", place, f"it says {message.text[:80]!r} to {asked[:80]!r}"
            )
        if problem := self._check_idle_line(message.text):
            return UserFault("instruction", place, problem)
        if problem := self._check_repeated_line(before, texts, message, expected):
            return UserFault("instruction", place, problem)
        has_answer = self._task.script is not None and not expected.tool_calls
        if has_answer and wants_answer(asked):
            self._owed += ((place, value) for value in self._list_untold(expected.text, message))
        return None

    def close(self) -> UserFault | None:
        """Return a fault if the user was asked for a value, spoke again and never told it."""
        for place, value in self._owed:
            if place < self._last and not self._has_answer(value):
                return UserFault("instruction", place, f"it was asked and never tells {value!r}")
        return None

    def _has_answer(self, value: str) -> bool:
        """Return whether the user told a value, or a tool did. A call that has the value itself
        does not count. For a gold value from a tool, the agent's text must have it, as a look-up
        may show many."""
        if has_value(self._told, value) or (self._has_number_words and value.isdigit()):
            return True
        text = squeeze(value)
        return (text not in self._secrets or text in self._agent_text) and any(
            text in squeeze(answer) and text not in squeeze(call) for call, answer in self._lookups
        )

    def _has_success(self, messages: Sequence[Message]) -> bool:
        """Return whether the task is not failed if the transcript ends here."""
        verdict = grade(self._environment, self._task, messages, Termination.USER_STOP)
        return verdict.success is not False

    def _check_call(self, call: ToolCall, expected: Message) -> str | None:
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
        subject = (subject | set(call.name.split("_"))) - _WORDS_OF_ANY_TOOL
        if _cut_endings(subject) & _cut_endings(self._asked):
            return None
        return f"it calls {call.name}, which nobody asked for"

    def _check_end(
        self, place: int, asked: str, message: Message, expected: Message
    ) -> UserFault | None:
        script = self._task.script
        if expected.text and any(token in expected.text for token in STOP_TOKENS):
            return None
        if not asked:
            return UserFault("early_end", place, "it hangs up before the agent said anything")
        if is_farewell(asked) or (script is not None and is_end(script, asked)):
            return None
        if turns_down(asked) and not wants_answer(asked):
            return None
        answers = script is not None and (
            expected.text != script.otherwise or any(self._list_untold(expected.text))
        )
        if not answers and not expected.tool_calls and self._had_needless_question(script):
            return None
        # A user that is asked for something outside its situation may say that it is out of scope.
        has_question = "?" in asked and is_readable(asked) and OUT_OF_SCOPE not in message.text
        if answers or expected.tool_calls or has_question:
            return UserFault("early_end", place, f"it hangs up when the agent says {asked[-80:]!r}")
        return None

    def _had_needless_question(self, script: Script | None) -> bool:
        """Return whether the exact user had no answer to an earlier message of the agent."""
        return script is not None and script.otherwise in self._expected[:-1]

    def _check_opening(self, asked: str) -> UserFault | None:
        """Return a fault if the user hangs up without telling a gold value of its opening, after
        the agent called tools without refusal or transfer. The fault lies in the user's first
        message."""
        script = self._task.script
        if script is None or self._transferred or not self._lookups or turns_down(asked):
            return None
        for value in self._list_untold(script.opening):
            if squeeze(value) in self._secrets and not self._has_answer(value):
                reason = f"it hangs up and never told {value!r}, with which it was to begin"
                return UserFault("instruction", self._first, reason)
        return None

    def _check_repeated_call(
        self, place: int, before: Sequence[Message], message: Message, expected: Message
    ) -> UserFault | None:
        """Return a fault if the user repeats the same calls while the agent is silent."""
        calls = _describe_calls(message)
        recent = [item for item in before if item.role != "tool"][-(_REPEATS - 1) :]
        if len(recent) < _REPEATS - 1 or calls == _describe_calls(expected):
            return None
        if any(item.role != "user" or _describe_calls(item) != calls for item in recent):
            return None
        name = message.tool_calls[0].name
        return UserFault("tool", place, f"it calls {name} for the {_REPEATS}th time in a row")

    def _check_repeated_line(
        self, before: Sequence[Message], texts: Sequence[str], message: Message, expected: Message
    ) -> str | None:
        """Return a fault if the user speaks on after the exact user hangs up, or repeats one line
        although the agent's messages need different answers."""
        script = self._task.script
        if script is None:
            return None
        if any(token in expected.text for token in STOP_TOKENS):
            self._overdue.append(len(before))
            # A user may wait for an agent that has not done its part.
            if len(self._overdue) == _REPEATS and self._has_success(before[: self._overdue[0]]):
                return f"it never hangs up, and says {message.text[:80]!r}"
            return None
        own = [item.text for item in before if item.role == "user" and item.text]
        lines, asked = [*own, message.text][-_REPEATS:], texts[-(_REPEATS - 1) :]
        if len(lines) < _REPEATS or len(set(lines)) > 1 or len(set(asked)) < len(asked):
            return None
        if len(set(self._expected[-_REPEATS:])) == 1:
            return None  # the agent asks for the same over and over
        text = expected.text
        alike = (agrees(text) and agrees(lines[0])) or (refuses(text) and refuses(lines[0]))
        if alike or squeeze(text) == squeeze(lines[0]) or text == script.otherwise:
            return None
        return f"it says the same for the {_REPEATS}th time in a row: {lines[0][:80]!r}"

    def _check_idle_line(self, text: str) -> str | None:
        """Return a fault if the user's first lines say nothing about its request, unlike the exact
        user's. A line in another language may say it; a repeated line says no more."""
        if self._has_opened or self._opens(text):
            return None
        self._idle_lines.append(text)
        idle = [
            line
            for place, line in enumerate(self._idle_lines)
            if is_readable(line) or line in self._idle_lines[:place]
        ]
        if len(idle) < _OPENING_LINES or not any(map(self._opens, self._expected)):
            return None
        return f"it never says what it wants, in {len(self._idle_lines)} lines: {text[:80]!r}"

    def _opens(self, text: str) -> bool:
        """Return whether a text has a value of the user's situation, or a word of its request."""
        return has_request(text, self._roots) or any(
            has_value(self._situation, value) for value in self._list_values(text)
        )

    def _list_untold(self, text: str, message: Message | None = None) -> Iterator[str]:
        """Yield the situation's values in `text` that neither the user nor `message` has told."""
        told = self._told + ("" if message is None else squeeze(message.text))
        for value in self._list_values(text):
            if has_value(self._situation, value) and not has_value(told, value):
                yield value

    def _is_contrary(self, asked: str, expected: str, text: str) -> bool:
        """Return whether the user wrongly refuses or agrees. Refusing a question counts only if it
        proposes a gold write, and any answer only if the question is about its situation."""
        if self._task.script is None or is_farewell(asked):
            return False
        if any(token in expected for token in STOP_TOKENS):
            return False  # the word in "###STOP###" is no refusal
        if any(
            not has_value(self._situation, value) and squeeze_word(value) not in self._secrets
            for value in self._list_values(asked)
        ):
            return False
        if agrees(expected) and refuses(text):
            return self._proposals.has_gold(asked)
        return refuses(expected) and agrees(text)

    def _find_unknown(self, text: str) -> str | None:
        return next(
            (value for value in self._list_values(text) if not has_value(self._heard, value)), None
        )

    def _list_values(self, text: str) -> Iterator[str]:
        text = text[-HEARD_CHARACTERS:]
        for word in split_words(text):
            if is_value(word) and squeeze_word(word) not in self._names.common:
                yield word
        yield from self._names.find(text.lower())


def _describe_calls(message: Message) -> list[tuple[str, str]]:
    return [(call.name, str(call.arguments)) for call in message.tool_calls]


def _cut_endings(texts: Iterable[str]) -> set[str]:
    return {text[:_STEM] for text in texts}


def _list_secrets(task: TaskDefinition) -> frozenset[str]:
    """Return the values of gold actions and outputs, as lower-case letters and digits only."""
    criteria = task.criteria
    texts = [
        str(leaf) for action in criteria.gold_actions or () for leaf in leaves(action.arguments)
    ]
    outputs = (word for output in criteria.outputs for word in split_words(output))
    return frozenset(squeeze(text) for text in (*texts, *outputs))


def is_lost(environment: Environment, task: TaskDefinition, messages: Sequence[Message]) -> bool:
    """Return whether no success can follow a transcript (without system prompt). Either the agent
    broke the policy, or a write that is no gold action left a value of neither the first nor the
    gold state. Not covered: a wrong write that the agent takes back, and wrong statements."""
    if not any(message.role == "assistant" for message in messages):
        return False
    basis = task.criteria.reward_basis
    return ("POLICY" in basis and _has_violation(environment, task, messages)) or (
        "DB" in basis and _has_wrong_write(environment, task, messages)
    )


def _has_violation(
    environment: Environment, task: TaskDefinition, messages: Sequence[Message]
) -> bool:
    open_from_start = set(environment.violations(task, messages[:1]))
    return any(item not in open_from_start for item in environment.violations(task, messages))


def _has_wrong_write(
    environment: Environment, task: TaskDefinition, messages: Sequence[Message]
) -> bool:
    task = arrange_task(environment, task)
    executed = arrange_calls(environment, task, executed_calls(messages))
    if task.criteria.gold_actions is None or all(
        _is_gold(task, item) for item in executed if _writes(environment, item)
    ):
        return False
    actual = replay(environment, task, executed)
    start, expected = environment.reset(task), replay_gold(environment, task)
    changed = {item.path for item in compare_states(environment, task, start, actual)}
    return any(item.path in changed for item in compare_states(environment, task, expected, actual))


def _writes(environment: Environment, item: ExecutedCall) -> bool:
    return item.sampled and item.requestor == "assistant" and item.call.name in environment.writes


def _is_gold(task: TaskDefinition, item: ExecutedCall) -> bool:
    return any(
        (action.name, action.arguments) == (item.call.name, item.call.arguments)
        for action in task.criteria.gold_actions or ()
    )
