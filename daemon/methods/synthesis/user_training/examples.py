"""Turn dialogues into examples for a user's model: the user's tokens, with the roles exchanged.

Each line and call of the user is one turn. Its prompt is a trained user's at that point
(envs/simulator.py), and its completion the chat template's text of the message. So the loss covers
only the user's lines and calls; the agent's calls are not shown. Guarantee: the tokens of every
turn parse back to the same message, as generated ones do. If a turn does not, or breaks a rule for
a user's lines, the whole dialogue is no example.
"""

from collections.abc import Sequence

from daemon.engine.chat import Chat
from daemon.solver.trajectory import ORACLE, Trajectory, Turn
from envs.environment import Environment
from envs.episode import Episode, hide_calls, play
from envs.evaluation import environment_code
from envs.grading import grade
from envs.simulator import build_user_view, find_breach
from envs.task import TaskDefinition
from events.errors import KintsugiError
from events.messages import Message


class NoExample(KintsugiError):
    """A dialogue that no user's model can learn from."""


def play_gold(environment: Environment, task: TaskDefinition) -> list[Message]:
    """Return the conversation of the oracle with the exact user, up to the user's last words. Raise
    EnvironmentFailure, or NoExample if the oracle fails."""
    with environment_code(environment, f"the oracle on task {task.id}", task):
        episode = play(Episode(environment, task), environment.oracle(task), environment.user(task))
        verdict = grade(environment, task, episode.messages, episode.termination)
    if not verdict.success:
        raise NoExample(f"task {task.id}: the oracle does not pass it")
    return episode.messages


def build_example(
    environment: Environment,
    chat: Chat,
    task: TaskDefinition,
    messages: Sequence[Message],
    name: str,
    policy: str = ORACLE,
) -> Trajectory:
    """Return the user's part of a conversation (without system prompt) as rollout `name`, with
    log-probabilities of 0. `policy` played the agent. Raise NoExample, NoTemplate."""
    if task.solo:
        raise NoExample(f"task {task.id} has no user")
    turns = tuple(
        _build_turn(environment, chat, task, messages, place)
        for place, message in enumerate(messages)
        if message.role == "user" and message.sampled is not False
    )
    if not turns:
        raise NoExample(f"task {task.id}: its user says nothing")
    return Trajectory(
        rollout=name,
        group=name,
        task=task.id,
        policy=policy,
        turns=turns,
        success=True,
        reward=1.0,
    )


def read_user_message(chat: Chat, ids: Sequence[int], number: int) -> Message:
    """Return the message that a user's model wrote, with stripped text. `number` makes the ids of
    its calls unique. A message with calls has no text."""
    written = chat.message(ids, number)
    if written.tool_calls:
        return Message(role="user", tool_calls=written.tool_calls)
    return Message(role="user", content=written.text.strip())


def _build_turn(
    environment: Environment,
    chat: Chat,
    task: TaskDefinition,
    messages: Sequence[Message],
    place: int,
) -> Turn:
    """Return the user's message at index `place` as a turn. Raise NoExample, NoTemplate."""
    message, before = messages[place], hide_calls(messages[:place], of="assistant")
    tools = environment.user_schemas(task)
    asked = build_user_view(task.scenario.text(), before, acts=bool(tools), trained=True)
    opening = not any(item.role == "user" and not item.tool_calls for item in before)
    if problem := find_breach(message, opening=opening, acts=bool(tools)):
        raise NoExample(f"task {task.id}, message {place}: {problem}")
    answer = message.model_copy(update={"role": "assistant", "reasoning": None})
    shown = tools if chat.shows_tools else ()
    written = chat.answer([*asked, answer], shown)
    again = read_user_message(chat, written, place)
    if _content(again) != _content(message):
        raise NoExample(
            f"task {task.id}, message {place}: the chat template does not give back what the user "
            "wrote"
        )
    return Turn(chat.prompt(asked, shown), written, (0.0,) * len(written))


def _content(message: Message) -> tuple[str, tuple[tuple[str, object], ...]]:
    """Return a message's text and calls; the text is "" if there are calls."""
    calls = tuple((call.name, call.arguments) for call in message.tool_calls)
    return ("" if calls else message.text.strip()), calls
