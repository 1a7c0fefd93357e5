"""A conversation as it stands when the agent is asked for the first time."""

from collections.abc import Sequence

from daemon.solver.sampling.local import play_user_turn
from envs.environment import Environment
from envs.episode import Episode, Party
from envs.evaluation import environment_code
from envs.task import TaskDefinition
from events.messages import Message


def read_opening(
    environment: Environment, task: TaskDefinition, seed: int = 0
) -> Sequence[Message] | None:
    """Return what the agent reads first, prefix included, with the environment's user; None where
    the episode ends before. Raise EnvironmentFailure."""
    with environment_code(environment, f"task {task.id}", task):
        episode = Episode(environment, task, seed=seed)
        play_user_turn(episode, environment.make_user(task, seed))
        return episode.view(Party.AGENT) if episode.turn is Party.AGENT else None
