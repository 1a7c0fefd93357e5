"""What a rollout is worth by the reward of its pool (events/jobs.py, RewardKind).

A reward takes the verdict on a rollout and what the policy wrote in it, and returns the worth.
"""

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
    """The worth of a rollout; None for what nobody judged."""

    success: bool | None
    """Unshaped: of the repair where it alone counts, else the verdict."""
    reward: float | None
    repair: float | None = None
    """The part of the repair; None where the verdict alone counts."""


@dataclass(frozen=True, slots=True)
class RolloutFacts:
    """What a reward needs to know of a rollout beside its verdict."""

    task: TaskDefinition
    turns: Sequence[Turn]
    """The policy's, in order."""
    messages: Sequence[Message]
    """Those of the episode, its prefix included."""
    chat: "Chat"
    form: RepairForm


@dataclass(frozen=True, slots=True)
class Reward:
    """How the rollouts of a pool are rewarded."""

    weigh: Callable[[Worth, RolloutFacts], Worth]
    """Returns the worth of a rollout. The first argument is its worth by the verdict alone."""
    check: Callable[[Environment, TaskDefinition, str], None] | None = None
    """Raises KintsugiError where a task of the named pool cannot be rewarded so."""
    most_steps: int | None = None
    """Steps after which an episode ends; None: those of its environment."""
    rules: str | None = None
    """Name and version of the rules that judge a rollout; None: those of its task."""

    def choose_limits(self, environment: Environment) -> Limits:
        """Return the limits of an episode that is rewarded so."""
        if self.most_steps is None:
            return environment.limits
        return replace(environment.limits, max_steps=self.most_steps)


VERDICT: Final = Reward(lambda verdict, _: verdict)
"""A rollout is worth its verdict."""


def describe_user_fault(
    task: TaskDefinition, termination: Termination | str | None, reason: str
) -> str | None:
    """Return why an episode that ended so has no verdict, where its user erred; None where it did
    not. Of a task that is made of a person's session nothing is quoted."""
    if termination != Termination.USER_ERROR:
        return None
    return reason if task.salt is None and reason else "the user erred"
