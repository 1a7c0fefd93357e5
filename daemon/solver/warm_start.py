"""Reference trajectories: episodes of the environment's oracle, as tokens that the policy could
write.

The oracle's message is rendered in the chat template and parsed like the policy's; the episode gets
the parsed message, so a reference that passes proves its tokens. If a task expects an aside (a text
apart from the answer), the first message has it. Guarantee: prompts are equal to the policy's. An
oracle that does not solve a task gives a failed trajectory, which is left out.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from daemon.engine.chat import Chat
from daemon.solver.trajectory import ORACLE, TokenSequence, Trajectory, Turn, sequences
from envs.environment import Environment
from envs.episode import Episode, Party, Termination
from envs.evaluation import environment_code
from envs.grading import grade
from envs.task import TaskDefinition


def reference(environment: Environment, chat: Chat, task: TaskDefinition, name: str) -> Trajectory:
    """Play a task with the oracle; return it as rollout `name`. Log-probabilities are 0 because the
    oracle is deterministic. Raise EnvironmentFailure, NoTemplate."""
    with environment_code(environment, f"the oracle on task {task.id}", task):
        episode = Episode(environment, task)
        oracle, user = environment.oracle(task), environment.user(task)
        turns: list[Turn] = []
        while episode.turn is not None:
            if episode.turn is Party.USER:
                episode.receive(user.reply(episode.view(Party.USER)))
                continue
            view = episode.view(Party.AGENT)
            tools = environment.select_schemas(task, view) if chat.shows_tools else ()
            answer = oracle.reply(view)
            if task.first_aside is not None and not turns:
                answer = answer.with_aside(task.first_aside)
            written = chat.answer([*view, answer], tools)
            turns.append(Turn(chat.prompt(view, tools), written, (0.0,) * len(written)))
            episode.receive(chat.message(written, len(episode.messages)))
        termination = episode.termination or Termination.AGENT_ERROR
        verdict = grade(environment, task, episode.messages, termination)
    return Trajectory(
        rollout=name,
        group=name,
        task=task.id,
        policy=ORACLE,
        turns=tuple(turns),
        success=verdict.success,
        reward=verdict.reward,
        malformed=episode.malformed,
    )


def references(
    find: Callable[[str], Environment], chat: Chat, tasks: Iterable[str], name: str
) -> Iterator[Trajectory]:
    """Yield a reference trajectory for each task, passed or not, named `name`/0, `name`/1, ..."""
    for number, task in enumerate(tasks):
        environment = find(task)
        yield reference(environment, chat, environment.task(task), f"{name}/{number}")


def examples(shown: Sequence[Trajectory]) -> list[TokenSequence]:
    """Return the trajectories that passed as token sequences for training."""
    return [part for trajectory in shown if trajectory.success for part in sequences(trajectory)]
