"""Scripted users: deterministic, and a function of the conversation alone.

A script (task.py) has the user's opening, its answers to what the agent says, and when it hangs up.
A task without a script gets one that tells everything at once and agrees to every question. That
suits scripted agents; to measure other agents, let a model play the user (simulator.py).
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
"""Any of them in a user's text ends the episode. The agent may say the first."""

HEARD_CHARACTERS: Final = 20_000
"""Characters that a scripted user reads at the end of one text. The agent writes the text, and a
very long one takes a simple pattern seconds."""

_CONFIRMATION: Final = r"\b(confirm|proceed|go ahead|shall i|would you like|is that right)"
_TRANSFERRED: Final = "being transferred to a human agent"


class User(Protocol):
    """The user of an episode."""

    def reply(self, messages: Sequence[Message]) -> Message: ...


class ScriptUser:
    """Plays a script."""

    def __init__(self, task: TaskDefinition) -> None:
        self.script = task.script or improvise_script(task)
        self._listener = Listener(self.script)

    def reply(self, messages: Sequence[Message]) -> Message:
        """Return the next line, given what was said so far."""
        if not any(message.role == "user" for message in messages):
            return Message(role="user", content=self.script.opening)
        heard = [
            message.text
            for message in _after_first_message(messages)
            if message.role == "assistant"
        ]
        return Message(role="user", content=self._listener.answer(heard))


class Listener:
    """Finds a script's answers to an agent's texts, each searched once per conversation."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._forget()

    def answer(self, heard: list[str]) -> str:
        """Return the answer to the last of the agent's texts; `heard` has all of them."""
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
        """The answer to the last text."""
        self._given: set[int] = set()
        """Places of the answers that were given."""
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
    """Return whether the user of a script hangs up at this text of the agent."""
    return bool(script.ends) and matches(script.ends, text[-HEARD_CHARACTERS:])


def improvise_script(task: TaskDefinition) -> Script:
    """Return the script of a user with only a scenario."""
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
