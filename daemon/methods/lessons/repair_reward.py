"""Reward a rollout by how its first message repairs a wrong call, alone or beside the verdict
(events/jobs.py, RewardKind).

If only the repair counts, an episode ends after the agent's first message and its calls: later
turns would cost tokens and change nothing.
"""

from typing import Final

from daemon.solver.reward import Reward, RolloutFacts, Worth
from envs.environment import Environment
from envs.episode import Episode, Party
from envs.evaluation import environment_code
from envs.reflection.repair import VERSION, Repair, assess_repair, build_gold
from envs.reflection.reward import combine_with_verdict
from envs.task import TaskDefinition
from events.errors import KintsugiError


class LessonMissing(KintsugiError):
    """A task that is to be rewarded for a repair has no lesson."""


def _weigh_repair(verdict: Worth, facts: RolloutFacts) -> Worth:
    repair = _assess_first_message(facts)
    if repair is None:
        return Worth(None, None)
    return Worth(repair.success, repair.reward, repair.reward)


def _weigh_both(verdict: Worth, facts: RolloutFacts) -> Worth:
    repair = _assess_first_message(facts)
    if repair is None:
        return Worth(None, None)
    if verdict.success is None or verdict.reward is None:
        return Worth(None, None, repair.reward)
    combined = combine_with_verdict(repair.reward, verdict.reward)
    return Worth(verdict.success, combined, repair.reward)


def _assess_first_message(facts: RolloutFacts) -> Repair | None:
    """Return the repair that the policy's first message makes. Return None if there is no lesson,
    no message or no known tokens. A truncated message repairs nothing: no tool got its calls."""
    task, turns = facts.task, facts.turns
    if task.lesson is None or not turns or not turns[0].completion_ids:
        return None
    if turns[0].truncated:
        return Repair(0.0, False)
    written = (m for m in facts.messages if m.role == "assistant" and m.sampled is not False)
    first = next(written, None)
    calls = () if first is None else first.tool_calls
    text = facts.chat.read_text(turns[0].completion_ids)
    return assess_repair(text, calls, build_gold(task.lesson), facts.form)


def _check_repairable(environment: Environment, task: TaskDefinition, pool: str) -> None:
    """Check that a task of a pool can be rewarded for a repair. Raise LessonMissing,
    ImpossibleLesson, PrefixMismatch, EnvironmentFailure."""
    if task.lesson is None:
        raise LessonMissing(
            f"pool {pool} is rewarded for repairs, and its task {task.id} has no lesson; give it "
            "one, or give the pool the reward verdict"
        )
    with environment_code(environment, f"task {task.id}", task):
        turn = Episode(environment, task).turn
    if turn is not Party.AGENT:
        raise LessonMissing(
            f"pool {pool} is rewarded for repairs, and the prefix of its task {task.id} leaves the "
            "turn to the user; end it with the results of the call that went wrong"
        )
    build_gold(task.lesson)


REPAIR: Final = Reward(_weigh_repair, _check_repairable, most_steps=1, rules=f"repair/{VERSION}")
"""The reward that is the repair alone."""
BOTH: Final = Reward(_weigh_both, _check_repairable)
"""The reward that combines the repair and the verdict."""
