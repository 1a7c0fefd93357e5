"""Reward a rollout for how its first message repairs the call that went wrong, alone or beside the
verdict (events/jobs.py, RewardKind).

Where the repair alone counts, an episode ends with the agent's first message and the calls in it:
what follows would cost turns of the policy and the user, and change nothing. The limit of steps
does that, which is looked at once the tools have answered.
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
    """A task that shall be rewarded for a repair has none to make."""


def _weigh_repair(verdict: Worth, facts: RolloutFacts) -> Worth:
    """Return the worth of a rollout by its repair alone."""
    repair = _assess_first_message(facts)
    if repair is None:
        return Worth(None, None)
    return Worth(repair.success, repair.reward, repair.reward)


def _weigh_both(verdict: Worth, facts: RolloutFacts) -> Worth:
    """Return the worth of a rollout by its repair and its verdict."""
    repair = _assess_first_message(facts)
    if repair is None:
        return Worth(None, None)
    if verdict.success is None or verdict.reward is None:
        return Worth(None, None, repair.reward)
    combined = combine_with_verdict(repair.reward, verdict.reward)
    return Worth(verdict.success, combined, repair.reward)


def _assess_first_message(facts: RolloutFacts) -> Repair | None:
    """Return what the first message that the policy wrote repairs; None where the task has no
    lesson, nothing was written, or the tokens are not known. One that was cut off repairs nothing:
    no tool was given its calls."""
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
    """See that a task of a pool can be rewarded for a repair. Raises LessonMissing,
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
"""The repair alone counts."""
BOTH: Final = Reward(_weigh_both, _check_repairable)
"""The repair counts beside the verdict."""
