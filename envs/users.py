"""Scripted users: deterministic, and a function of the conversation alone.

A script (task.py) says what the user opens with, what it answers to which question, and when it
hangs up: conditional instructions are answers that match what the agent offers. A task without a
script gets one that tells everything it knows at once and agrees to every question; that is enough
for a scripted agent, and no person: let a model play the user (simulator.py) to measure an
agent on such a task.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, Protocol

from envs.task import Answer, Script, TaskDefinition
from events.messages import Message

STOP: Final = "###STOP###"
TRANSFER: Final = "###TRANSFER###"
OUT_OF_SCOPE: Final = "###OUT-OF-SCOPE###"
STOP_TOKENS: Final = (STOP, TRANSFER, OUT_OF_SCOPE)
"""Any of them in a user's text ends the episode. The agent may say the first."""

HEARD_CHARACTERS: Final = 20_000
"""What a scripted user hears of one text: its last so many characters. A novel takes a simple
pattern seconds, and the agent writes it, not the environment."""

_CONFIRMATION: Final = r"\b(confirm|proceed|go ahead|shall i|would you like|is that right)"
_TRANSFERRED: Final = "being transferred to a human agent"


class User(Protocol):
    """The user of an episode."""

    def reply(self, messages: Sequence[Message]) -> Message: ...


class ScriptUser:
    """Plays a script."""

    def __init__(self, task: TaskDefinition) -> None:
        self.script = task.script or improvise_script(task)

    def reply(self, messages: Sequence[Message]) -> Message:
        """The next line, given what was said so far."""
        if not any(message.role == "user" for message in messages):
            return Message(role="user", content=self.script.opening)
        heard = [
            message.text
            for message in _after_first_message(messages)
            if message.role == "assistant"
        ]
        return Message(role="user", content=answer_line(self.script, heard))


def answer_line(script: Script, heard: Sequence[str]) -> str:
    """Return the answer of a script to the last of the agent's texts; `heard` has all of them."""
    *_, line = _answers(script, [text[-HEARD_CHARACTERS:] for text in heard])
    return line


def is_end(script: Script, text: str) -> bool:
    """Whether the user of a script hangs up at this text of the agent."""
    return bool(script.ends) and _matches(script.ends, text[-HEARD_CHARACTERS:])


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


def _answers(script: Script, heard: Sequence[str]) -> Iterator[str]:
    """The answer to each text of the agent, in order."""
    counts: Counter[int] = Counter()
    patience = script.patience
    for text in heard:
        if is_end(script, text):
            yield STOP
            continue
        place = _first_match(script, text, counts)
        if place is not None:
            counts[place] += 1
            yield script.answers[place].says
        elif patience:
            patience -= 1
            yield script.otherwise
        else:
            yield STOP


def _first_match(script: Script, text: str, counts: Counter[int]) -> int | None:
    for place, answer in enumerate(script.answers):
        if not (answer.once and counts[place]) and _matches(answer.asks, text):
            return place
    return None


def _matches(pattern: str, text: str) -> bool:
    return _compile(pattern).search(text) is not None


@lru_cache(maxsize=1024)
def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)
