"""Compute a rollout's reward by the rule of its pool (events/jobs.py, RewardKind)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from daemon.solver.trajectory import Turn
from envs.environment import Environment, Limits
from envs.episode import Termination
from envs.task import TaskDefinition
from events.algorithm import RepairForm
from events.messages import Message

if TYPE_CHECKING:
    from daemon.engine.chat import Chat


@dataclass(frozen=True, slots=True)
class Worth:
    """Success and reward of a rollout; None for an unjudged rollout."""

    success: bool | None
    """Whether the repair succeeded if it alone counts, else the unshaped verdict."""
    reward: float | None
    repair: float | None = None
    """The reward's part for the repair; None if only the verdict counts."""


@dataclass(frozen=True, slots=True)
class RolloutFacts:
    """Facts that a reward may need beside the verdict."""

    task: TaskDefinition
    turns: Sequence[Turn]
    messages: Sequence[Message]
    """Messages of the episode, including the messages that the task begins with."""
    chat: "Chat"
    form: RepairForm


@dataclass(frozen=True, slots=True)
class Reward:
    """A rule that computes the reward of a pool's rollouts."""

    weigh: Callable[[Worth, RolloutFacts], Worth]
    """Returns a rollout's worth. Its first argument is the worth by the verdict alone."""
    check: Callable[[Environment, TaskDefinition, str], None] | None = None
    """Raises KintsugiError if a task of the named pool cannot be rewarded by this rule."""
    most_steps: int | None = None
    """Maximum steps of an episode; None: the environment's maximum."""
    rules: str | None = None
    """Name and version of the rules that judge a rollout; None: the rules of its task."""

    def choose_limits(self, environment: Environment) -> Limits:
        """Return the limits of an episode whose rollout gets this reward."""
        if self.most_steps is None:
            return environment.limits
        return replace(environment.limits, max_steps=self.most_steps)


VERDICT: Final = Reward(lambda verdict, _: verdict)


def describe_user_fault(
    task: TaskDefinition, termination: Termination | str | None, reason: str
) -> str | None:
    """Return how the user failed in an unjudged episode, or None. Do not quote a person's task."""
    if termination != Termination.USER_ERROR:
        return None
    return reason if task.salt is None and reason else "the user erred"
