"""What a rollout is worth by the reward of its pool: its verdict, the repair of its first message,
or both (events/jobs.py, RewardKind).

Where the repair alone counts, an episode ends with the agent's first message and the calls in it:
what follows would cost turns of the policy and the user, and change nothing. The limit of steps
does that, which is looked at once the tools have answered.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from daemon.engine.chat import Chat
from daemon.solver.trajectory import Turn
from envs.environment import Environment, Limits
from envs.episode import Episode, Party, Termination
from envs.evaluation import environment_code
from envs.reflection.repair import Repair, assess_repair, build_gold
from envs.reflection.reward import combine_with_verdict
from envs.task import TaskDefinition
from events.algorithm import RepairForm
from events.errors import KintsugiError
from events.jobs import RewardKind
from events.messages import Message


class LessonMissing(KintsugiError):
    """A task that shall be rewarded for a repair has none to make."""


@dataclass(frozen=True, slots=True)
class Worth:
    """The worth of a rollout; None for what nobody judged."""

    success: bool | None
    """Unshaped: of the repair where it alone counts, else the verdict."""
    reward: float | None
    repair: float | None = None
    """The part of the repair; None where the verdict alone counts."""


def choose_limits(reward: RewardKind, environment: Environment) -> Limits:
    """Return the limits of an episode that is rewarded so."""
    if reward == "repair":
        return replace(environment.limits, max_steps=1)
    return environment.limits


def compute_worth(reward: RewardKind, verdict: Worth, repair: Repair | None) -> Worth:
    """Return the worth of a rollout that is rewarded so: `verdict` by its verdict alone, `repair`
    of its first message (assess_first_message)."""
    if reward == "verdict":
        return verdict
    if repair is None:
        return Worth(None, None)
    if reward == "repair":
        return Worth(repair.success, repair.reward, repair.reward)
    if verdict.success is None or verdict.reward is None:
        return Worth(None, None, repair.reward)
    combined = combine_with_verdict(repair.reward, verdict.reward)
    return Worth(verdict.success, combined, repair.reward)


def assess_first_message(
    task: TaskDefinition,
    turns: Sequence[Turn],
    messages: Sequence[Message],
    chat: Chat,
    form: RepairForm,
) -> Repair | None:
    """Return what the first message that the policy wrote repairs; None where the task has no
    lesson, nothing was written, or the tokens are not known. One that was cut off repairs nothing:
    no tool was given its calls."""
    if task.lesson is None or not turns or not turns[0].completion_ids:
        return None
    if turns[0].truncated:
        return Repair(0.0, False)
    written = (m for m in messages if m.role == "assistant" and m.sampled is not False)
    first = next(written, None)
    calls = () if first is None else first.tool_calls
    text = chat.read_text(turns[0].completion_ids)
    return assess_repair(text, calls, build_gold(task.lesson), form)


def describe_user_fault(
    task: TaskDefinition, termination: Termination | str | None, reason: str
) -> str | None:
    """Return why an episode that ended so has no verdict, where its user erred; None where it did
    not. Of a task that is made of a person's session nothing is quoted."""
    if termination != Termination.USER_ERROR:
        return None
    return reason if task.salt is None and reason else "the user erred"


def check_repairable(environment: Environment, task: TaskDefinition, pool: str) -> None:
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
