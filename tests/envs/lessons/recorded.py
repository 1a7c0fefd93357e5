"""Recorded conversations in which the agent makes a call that fails."""

from typing import Any

from envs.environment import Environment
from envs.episode import Episode, Party
from envs.task import TaskDefinition
from events.messages import Message
from tests.envs.mini import called


def record_slip(
    environment: Environment, task: TaskDefinition, tool: str, **wrong: Any
) -> tuple[Message, ...]:
    """The oracle's conversation up to its first call of a tool, which it makes with other
    arguments; then it gives up. Without system prompt, with the greeting."""
    episode = Episode(environment, task)
    oracle, user = environment.oracle(task), environment.user(task)
    while episode.turn is not None:
        party = oracle if episode.turn is Party.AGENT else user
        message = party.reply(episode.view(episode.turn))
        if message.tool_calls and message.tool_calls[0].name == tool:
            break
        episode.receive(message)
    call = message.tool_calls[0]
    assert isinstance(call.arguments, dict)
    episode.receive(called(tool, **{**call.arguments, **wrong}))
    episode.receive(Message(role="assistant", content="Sorry, not possible."))
    episode.receive(Message(role="user", content="###STOP###"))
    return tuple(episode.messages)
