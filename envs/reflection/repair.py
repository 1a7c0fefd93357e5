"""Reward the first message after a failed call, by the lesson of its task.

    gold = build_gold(lesson)                        once per task
    repair = assess_repair(text, calls, gold)        .reward as reward.py has it, .success

Reflection and text come from the model's words, the calls from the tools' input. A call in a form
that the engine does not read repairs nothing, and the form of calls does not matter. All text
outside <reflect>, <think> and calls is the final answer, as our agents write no <final>. If the
lesson expects only calls, such text is an unexpected answer.

A repair is a success if its calls equal the lesson's as a multiset. If the lesson expects none, it
is one if it calls no tool and says something. The reflection does not count for success, because no
replay can tell whether it is right.

Guarantee: any text and any calls have a reward between 0 and 1.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from envs.reflection.parse import ParsedCall, Parts, are_calls_equal, parse, parse_call
from envs.reflection.reward import compute_reward
from envs.task import Lesson
from events.algorithm import RepairForm
from events.errors import KintsugiError
from events.messages import ToolCall

VERSION: Final = "1"
"""Version of these rules. Every rollout that they judge records it."""

_FINAL_TAG: Final = re.compile("</?final>", re.IGNORECASE)
_THINKING: Final = re.compile("</?think>", re.IGNORECASE)


class ImpossibleLesson(KintsugiError):
    """A lesson expects a call that no completion can make."""


@dataclass(frozen=True, slots=True)
class Repair:
    """The reward and success of a message."""

    reward: float
    """A number between 0 and 1."""
    success: bool
    """Whether it makes the lesson's calls, or speaks if the lesson expects no call."""


def build_gold(lesson: Lesson) -> Parts:
    """Return the parts of a lesson's message. Raise ImpossibleLesson for unusable arguments."""
    calls = [_read(action.name, action.arguments) for action in lesson.calls]
    for action, call in zip(lesson.calls, calls, strict=True):
        if call is None:
            raise ImpossibleLesson(
                f"the lesson expects a call of {action.name} whose arguments no call can have: "
                "they are nested too deeply, or hold a number that is too long or not finite; "
                "correct lesson.calls"
            )
    expected = tuple(call for call in calls if call is not None)
    final = lesson.final.strip()
    return Parts(lesson.reflection.strip(), expected, final, tagged=len(expected))


def read_answer(text: str, calls: Sequence[ToolCall] = ()) -> Parts:
    """Return the parts of a message: the model's `text`, and the calls that reached its tools."""
    made = (_read(call.name, call.arguments) or _unreadable(call) for call in calls)
    return replace(read_written(text), calls=tuple(made))


def read_written(text: str) -> Parts:
    """Return the parts of a message whose calls are those in its text."""
    written = parse(_remove_open_thinking(text))
    final = _FINAL_TAG.sub(" ", written.rest).strip()
    return Parts(written.reflection, written.calls, final, malformed=written.malformed)


def assess_repair(
    text: str, calls: Sequence[ToolCall], gold: Parts, form: RepairForm = "paper"
) -> Repair:
    """Return the reward and success of a message: its `text`, and the calls to its tools."""
    made = read_answer(text, calls)
    if gold.calls:
        success = are_calls_equal(made.calls, gold.calls)
    else:
        success = bool(made.final) and not made.calls
    return Repair(compute_reward(made, gold, form), success)


def _remove_open_thinking(text: str) -> str:
    """Remove the end of a <think> block that the prompt opened."""
    first = _THINKING.search(text)
    return text[first.end() :] if first is not None and first[0].startswith("</") else text


def _read(name: str, arguments: Mapping[str, Any] | str) -> ParsedCall | None:
    """Return a call as it is read from text. Return None for unusable arguments."""
    if isinstance(arguments, str):
        return None
    try:
        return parse_call(json.dumps({"name": name, "arguments": arguments}))
    except (ValueError, RecursionError):  # an integer of too many digits; nested too deeply
        return None


def _unreadable(call: ToolCall) -> ParsedCall:
    return ParsedCall(call.name.strip(), {}, "")
