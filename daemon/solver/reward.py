"""Worth of a rollout by the reward of its pool (events/jobs.py, RewardKind)."""

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
    """Worth of a rollout; None for the unjudged."""

    success: bool | None
    """Unshaped: of the repair where it alone counts, else the verdict."""
    reward: float | None
    repair: float | None = None
    """Part of the repair; None where the verdict alone counts."""


@dataclass(frozen=True, slots=True)
class RolloutFacts:
    """Facts for a reward beside the verdict."""

    task: TaskDefinition
    turns: Sequence[Turn]
    messages: Sequence[Message]
    """Messages of the episode, its prefix included."""
    chat: "Chat"
    form: RepairForm


@dataclass(frozen=True, slots=True)
class Reward:
    """Computation of the reward of a pool's rollouts."""

    weigh: Callable[[Worth, RolloutFacts], Worth]
    """Returns a rollout's worth; the first argument is its worth by the verdict alone."""
    check: Callable[[Environment, TaskDefinition, str], None] | None = None
    """Raises KintsugiError if a task of the named pool cannot be rewarded so."""
    most_steps: int | None = None
    """Steps after which an episode ends; None: those of its environment."""
    rules: str | None = None
    """Name and version of the rules that judge a rollout; None: those of its task."""

    def choose_limits(self, environment: Environment) -> Limits:
        """Return the limits of an episode with this reward."""
        if self.most_steps is None:
            return environment.limits
        return replace(environment.limits, max_steps=self.most_steps)


VERDICT: Final = Reward(lambda verdict, _: verdict)


def describe_user_fault(
    task: TaskDefinition, termination: Termination | str | None, reason: str
) -> str | None:
    """Return why a user's fault leaves an episode unjudged, or None, quoting no person's task."""
    if termination != Termination.USER_ERROR:
        return None
    return reason if task.salt is None and reason else "the user erred"
