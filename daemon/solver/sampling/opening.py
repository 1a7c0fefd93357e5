"""Read the messages of an episode up to the agent's first turn."""

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
    """Return the messages before the agent's first answer, prefix included, with the environment's
    own user. Return None if the episode ends before. Raise EnvironmentFailure."""
    with environment_code(environment, f"task {task.id}", task):
        episode = Episode(environment, task, seed=seed)
        play_user_turn(episode, environment.make_user(task, seed))
        return episode.view(Party.AGENT) if episode.turn is Party.AGENT else None
