"""Scripted users: deterministic, and dependent only on the conversation.

A script (task.py) has the user's opening, its answers to the agent's texts, and a pattern of texts
after which it hangs up. A task without a script gets one that tells all at once and agrees to every
question. That suits scripted agents; to measure others, let a model play the user (simulator.py).
"""

from collections.abc import Sequence
from typing import Final, Protocol

from envs.patterns.search import matches
from envs.task import Answer, Script, TaskDefinition
from events.messages import Message

STOP: Final = "###STOP###"
TRANSFER: Final = "###TRANSFER###"
OUT_OF_SCOPE: Final = "###OUT-OF-SCOPE###"
STOP_TOKENS: Final = (STOP, TRANSFER, OUT_OF_SCOPE)
"""A user's text with one of them ends the episode. The agent may only use the first."""

HEARD_CHARACTERS: Final = 20_000
"""Number of characters at a text's end that a scripted user reads. Agents may write very long
texts, in which even a simple pattern takes seconds."""

_CONFIRMATION: Final = r"\b(confirm|proceed|go ahead|shall i|would you like|is that right)"
_TRANSFERRED: Final = "being transferred to a human agent"


class User(Protocol):
    """The user of an episode."""

    def reply(self, messages: Sequence[Message]) -> Message: ...


class ScriptUser:
    """A user that plays a script."""

    def __init__(self, task: TaskDefinition) -> None:
        self.script = task.script or improvise_script(task)
        self._listener = Listener(self.script)

    def reply(self, messages: Sequence[Message]) -> Message:
        """Return the user's next line for this conversation."""
        if not any(message.role == "user" for message in messages):
            return Message(role="user", content=self.script.opening)
        heard = [
            message.text
            for message in _after_first_message(messages)
            if message.role == "assistant"
        ]
        return Message(role="user", content=self._listener.answer(heard))


class Listener:
    """Finds a script's answers to an agent's texts. It searches each text once per conversation."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._forget()

    def answer(self, heard: list[str]) -> str:
        """Return the answer to the last of the agent's texts; `heard` are all of them, in order."""
        assert heard, "the agent speaks before a user answers"
        if self._heard != heard[: len(self._heard)]:
            self._forget()
        for text in heard[len(self._heard) :]:
            self._line = self._hear(text[-HEARD_CHARACTERS:])
            self._heard.append(text)
        return self._line

    def _forget(self) -> None:
        self._heard: list[str] = []
        self._line = ""
        """The answer to the last text so far."""
        self._given: set[int] = set()
        """Positions in the script of the answers given so far."""
        self._patience = self._script.patience

    def _hear(self, text: str) -> str:
        if is_end(self._script, text):
            return STOP
        for place, answer in enumerate(self._script.answers):
            if not (answer.once and place in self._given) and matches(answer.asks, text):
                self._given.add(place)
                return answer.says
        if self._patience:
            self._patience -= 1
            return self._script.otherwise
        return STOP


def is_end(script: Script, text: str) -> bool:
    """Return whether a scripted user hangs up after this text of the agent."""
    return bool(script.ends) and matches(script.ends, text[-HEARD_CHARACTERS:])


def improvise_script(task: TaskDefinition) -> Script:
    """Return a script made from the scenario of a task."""
    scenario = task.scenario
    opening = " ".join(filter(None, (scenario.reason_for_call, scenario.known_info)))
    return Script(
        opening=opening or "Hello.",
        answers=(Answer(asks=_CONFIRMATION, says="Yes, please."),),
        otherwise=" ".join(filter(None, (scenario.known_info, scenario.task_instructions)))
        or "I have nothing to add.",
        ends=f"{_TRANSFERRED}|{STOP}",
    )


def _after_first_message(messages: Sequence[Message]) -> Sequence[Message]:
    first = next(i for i, message in enumerate(messages) if message.role == "user")
    return messages[first + 1 :]
