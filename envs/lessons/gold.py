"""What a right agent writes in a lesson, as text with tags, and a check that it is read back.

    <reflect>
    what was wrong
    </reflect>

    <tool_call>
    {"name": ..., "arguments": {...}}
    </tool_call>

A text to say stands behind the calls, in <final>. Format: arXiv 2509.18847.
"""

import json
from typing import Final

from envs.reflection.parse import parse
from envs.reflection.reward import compute_reward
from envs.task import Lesson

TOLERANCE: Final = 1e-6
"""How far the reward of gold for itself may be from 1."""


def render_gold(lesson: Lesson) -> str:
    """Return the reflection, the calls and the text of a lesson."""
    parts = [f"<reflect>\n{lesson.reflection}\n</reflect>"]
    for call in lesson.calls:
        body = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
        parts.append(f"<tool_call>\n{body}\n</tool_call>")
    if lesson.final:
        parts.append(f"<final>\n{lesson.final}\n</final>")
    return "\n\n".join(parts)


def is_read_back(lesson: Lesson) -> bool:
    """Whether the text of a lesson has its parts again, and the reward of gold is 1."""
    parts = parse(render_gold(lesson))
    calls = [(call.name, call.arguments) for call in parts.calls]
    return (
        parts.reflection == lesson.reflection
        and parts.final == lesson.final.strip()
        and not parts.malformed
        and calls == [(call.name, call.arguments) for call in lesson.calls]
        and abs(compute_reward(parts, parts) - 1) <= TOLERANCE
    )
