"""Make the event of a job's rollout, with its messages, from the rollout's tokens.

An episode is a function of its task and of the agent's answers. So decoding each turn and playing
the environment again gives the same conversation, whatever sampled it, also after a kill.
"""

from daemon.engine.chat import Chat
from daemon.solver.journal import rollout_id
from daemon.solver.sampling.local import Attempt, Rollout, play_user_turn
from daemon.solver.trajectory import Trajectory
from envs.environment import Environment
from envs.episode import Episode, Party, Termination
from envs.evaluation import environment_code
from envs.grading import grade
from events.errors import KintsugiError
from events.jobs import JobSpec
from events.rollouts import RolloutEnded
from producers.simulation import Provenance, build_rollout_event


class UnreadableRollout(KintsugiError):
    """A rollout's tokens do not give its conversation back; the error text tells why."""


def build_event(
    spec: JobSpec, environment: Environment, chat: Chat, attempt: Attempt, trajectory: Trajectory
) -> RolloutEnded:
    """Return the rollout's event. Its purpose is `import`: a round's tables treat it as traffic.
    Raise UnreadableRollout, EnvironmentFailure."""
    assert spec.rounds is not None, "only a job with rounds reads its rollouts back"
    name = trajectory.rollout
    if trajectory.success is None:
        raise UnreadableRollout(f"nobody judged rollout {name}")
    if not all(turn.completion_ids for turn in trajectory.turns):
        raise UnreadableRollout(f"rollout {name} has a turn without tokens")
    rollout = _play_again(environment, chat, attempt, trajectory)
    if rollout is None or rollout.grade.success != trajectory.success:
        raise UnreadableRollout(
            f"rollout {name} was judged {trajectory.success} when it was played, and its tokens "
            "make another episode"
        )
    number = int(trajectory.rollout.rpartition("/")[2])
    provenance = Provenance(
        alias=spec.rounds.alias, base=spec.base, policy=trajectory.policy, purpose="import"
    )
    return build_rollout_event(
        rollout.to_attempt(number), environment, provenance, rollout_id(spec.job, name)
    )


def _play_again(
    environment: Environment, chat: Chat, attempt: Attempt, trajectory: Trajectory
) -> Rollout | None:
    """Return the judged episode of the trajectory's turns; None if it ends before the last turn."""
    task = attempt.task
    with environment_code(environment, f"task {task.id}", task):
        episode = Episode(environment, task, seed=attempt.seed)
        user = environment.user(task)
        for turn in trajectory.turns:
            play_user_turn(episode, user)
            if episode.turn is not Party.AGENT:
                return None
            if turn.truncated:
                episode.stop(Termination.AGENT_ERROR, "an answer was cut off")
            else:
                episode.receive(chat.message(turn.completion_ids, len(episode.messages)))
        play_user_turn(episode, user)
        if episode.turn is Party.AGENT:
            # The model was not asked for another turn: its context was full.
            episode.stop(Termination.CONTEXT_OVERFLOW)
        verdict = grade(environment, task, episode.messages, episode.termination)
    return Rollout(attempt, episode, verdict, trajectory)
