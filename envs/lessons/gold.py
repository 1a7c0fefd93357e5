"""The expected message of a lesson as text with tags, and a check that parsing restores its parts.

    <reflect>the fault of the wrong call</reflect>
    the text for the user
    <tool_call>
    {"name": ..., "arguments": {...}}
    </tool_call>

Format: arXiv 2509.18847, in Qwen's form; the text has no <final>, for our agents write none. A
model's own template decides how its calls are written (daemon/engine/chat.py).
"""

import json
from collections.abc import Sequence
from typing import Final

from envs.asides import write_aside
from envs.reflection.repair import ImpossibleLesson, build_gold, read_written
from envs.reflection.reward import compute_reward
from envs.task import Lesson
from events.messages import Action, Message, ToolCall

# One encoder for all calls: json.dumps with options would build one at every call.
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False)

TOLERANCE: Final = 1e-6
"""Largest difference from 1 of the reward that the gold message itself gets."""


def render_gold(lesson: Lesson) -> str:
    """Return a lesson's reflection, text and calls as tagged text."""
    return _render(lesson.reflection, lesson.final, lesson.calls)


def render_message(message: Message) -> str:
    """Return an agent's message as tagged text."""
    return _render(message.reflection, message.text, message.tool_calls)


def _render(reflection: str | None, text: str, calls: Sequence[Action | ToolCall]) -> str:
    parts = [write_aside(reflection)] if reflection else []
    if text:
        parts.append(text)
    for call in calls:
        body = _ENCODER.encode({"name": call.name, "arguments": call.arguments})
        parts.append(f"<tool_call>\n{body}\n</tool_call>")
    return "\n".join(parts)


def is_read_back(lesson: Lesson) -> bool:
    """Return whether parsing a lesson's text restores its parts, and gold has the reward 1."""
    try:
        gold = build_gold(lesson)
    except ImpossibleLesson:
        return False
    written = read_written(render_gold(lesson))
    return (
        (written.reflection, written.final) == (gold.reflection, gold.final)
        and [(call.name, call.canonical) for call in written.calls]
        == [(call.name, call.canonical) for call in gold.calls]
        and not written.malformed
        and abs(compute_reward(written, gold) - 1) <= TOLERANCE
    )
