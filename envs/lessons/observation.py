"""Read from a transcript whether the agent repaired a mistake, and how many calls it repeated.
Repair@k is estimated from these. Source: Structured Reflection, arXiv 2509.18847; `official` is its
own rule."""

from collections.abc import Sequence
from dataclasses import dataclass

from envs.environment import Environment
from envs.lessons.gold import render_gold, render_message
from envs.reflection.official import score_officially
from envs.reflection.repair import assess_repair, build_gold
from envs.reward import conduct_of
from envs.task import Lesson
from events.messages import Message


@dataclass(frozen=True, slots=True)
class Observation:
    """The number of repeated calls in one attempt, and whether its mistake was repaired."""

    repeated: int
    """Number of calls equal to the one before, with nothing between that could change the
    answer."""
    repaired: bool | None = None
    """Whether the first message makes the right calls. If it has to speak instead: whether it does,
    and the task succeeds. None for a task without a lesson."""
    official: bool | None = None
    """Whether it is correct by the benchmark's rule, which accepts any text if no call is
    expected."""


def observe(
    environment: Environment, lesson: Lesson | None, messages: Sequence[Message], success: bool
) -> Observation:
    """Return the observation of a transcript; `success` is its verdict."""
    repeated = conduct_of(messages, environment.catalog, malformed=0).repeated
    if lesson is None:
        return Observation(repeated)
    own = (m for m in messages if m.role == "assistant" and m.sampled is not False)
    first = next(own, None)
    if first is None:
        return Observation(repeated, repaired=False, official=False)
    repair = assess_repair(first.text, first.tool_calls, build_gold(lesson))
    official = score_officially(render_message(first), render_gold(lesson), "qwen")
    repaired = repair.success and (success or bool(lesson.calls))
    return Observation(repeated, repaired, official.correct)
