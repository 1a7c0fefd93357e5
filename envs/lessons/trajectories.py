"""Trajectories (conversations in which a task was done right), and the places of the agent's calls.

A place is the point before one of the agent's calls. It keeps the episode at that point, so that
other calls can be made from a fork of it without replaying the conversation.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from envs.environment import Environment
from envs.episode import Episode, Party
from envs.grading import Grader
from envs.lessons.values import SeenValues
from envs.task import TaskDefinition
from envs.tools import ToolAccess
from events.errors import KintsugiError
from events.messages import Message, ToolCall

DOES_NOT_REPLAY: Final = "does not replay"
BEGINS_MIDWAY: Final = "begins midway"

_WRITERS: Final = {"assistant": Party.AGENT, "user": Party.USER}


class NoTrajectory(KintsugiError):
    """A task or a recording yields no trajectory. The text is the reason, in a few words."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A conversation in which the agent did a task."""

    task: TaskDefinition
    messages: tuple[Message, ...]
    """Messages without system prompt and greeting, including the messages of the task's prefix."""
    rollout: str | None = None
    """Id of the recorded rollout; None if the oracle played it."""

    @property
    def source(self) -> str:
        """Id of the task, or of the task that its lesson was made from."""
        return self.task.id if self.task.lesson is None else self.task.lesson.source


@dataclass(frozen=True, slots=True)
class Turn:
    """A message of a party, and the episode before and after it, to be forked before playing on."""

    message: Message
    before: Episode | None
    """The episode with all messages as its prefix; None if the message calls no agent's tool."""
    after: Episode


class Place:
    """The point before a message of the agent, for one of the message's calls."""

    def __init__(self, episode: Episode, step: int, message: Message, index: int) -> None:
        self.episode = episode
        """The episode at this point; all its messages count as a prefix. Fork it to play on."""
        self.step = step
        """Number of the call among all calls of the agent, from 0."""
        self.call: ToolCall = message.tool_calls[index]
        self.before = message.tool_calls[:index]
        """Earlier calls in the same message."""
        self.following: Message | None = None
        """The agent's next message, or None."""
        self.message = message

    @cached_property
    def tools_behind(self) -> ToolAccess:
        """The tools over the state after the message."""
        episode = self.episode.fork()
        episode.receive(self.message)
        return episode.tools

    @cached_property
    def seen(self) -> SeenValues:
        """The values that the agent has seen before the message."""
        return SeenValues(self.episode.view(Party.AGENT))


def play_trajectory(grader: Grader) -> tuple[Trajectory, list[Place]]:
    """Let the oracle play a task with the scripted user. Return the conversation and the place of
    each agent call. Raise NoTrajectory if it fails or the task has a prefix."""
    task = grader.task
    if task.prefix:
        raise NoTrajectory(BEGINS_MIDWAY)
    turns = list(_play(grader.environment, task))
    messages, termination = turns[-1].after.messages, turns[-1].after.termination
    if not grader.grade(messages, termination).success:
        raise NoTrajectory("the oracle fails")
    begin = count_greeting(grader.environment, task)
    return Trajectory(task, tuple(messages[begin:])), _collect_places(turns)


def walk(environment: Environment, trajectory: Trajectory) -> list[Place]:
    """Return the places of the agent's calls. Raise NoTrajectory if a replay differs."""
    return _collect_places(follow(environment, trajectory))


def _collect_places(turns: Iterable[Turn]) -> list[Place]:
    places: list[Place] = []
    last: list[Place] = []
    for turn in turns:
        if turn.message.role == "assistant":
            for place in last:
                place.following = turn.message
            last = []
        if turn.before is not None:
            for index in range(len(turn.message.tool_calls)):
                last.append(Place(turn.before, len(places), turn.message, index))
                places.append(last[-1])
    return places


def _play(environment: Environment, task: TaskDefinition) -> Iterator[Turn]:
    episode = open_whole(environment, task)
    agent, user = environment.oracle(task), environment.user(task)
    prefix: list[Message] = []
    while episode.turn is not None:
        party = agent if episode.turn is Party.AGENT else user
        message = party.reply(episode.view(episode.turn))
        before = None
        if episode.turn is Party.AGENT and message.tool_calls:
            before = episode.fork()
            before.take_as_prefix(prefix)
            prefix = before.messages
        episode.receive(message)
        yield Turn(message, before, episode)


def follow(environment: Environment, trajectory: Trajectory) -> Iterator[Turn]:
    """Replay a conversation and yield its turns. Raise NoTrajectory at the first message that is
    out of turn, or whose calls now give other results."""
    episode = open_whole(environment, trajectory.task)
    for message, results in _group(trajectory.messages):
        if episode.turn is None or episode.turn is not _WRITERS.get(message.role):
            raise NoTrajectory(DOES_NOT_REPLAY)
        before = None
        if message.role == "assistant" and message.tool_calls:
            episode.take_as_prefix()
            before = episode.fork()
        begin = len(episode.messages) + 1
        episode.receive(message)
        if [_read_answer(m) for m in results] != [
            _read_answer(m) for m in episode.messages[begin:]
        ]:
            raise NoTrajectory(DOES_NOT_REPLAY)
        yield Turn(message, before, episode)


def _group(messages: Sequence[Message]) -> Iterator[tuple[Message, list[Message]]]:
    place = 0
    while place < len(messages):
        end = place + 1
        while end < len(messages) and messages[end].role == "tool":
            end += 1
        yield messages[place], list(messages[place + 1 : end])
        place = end


def open_whole(environment: Environment, task: TaskDefinition) -> Episode:
    """Begin an episode of a task without its prefix and lesson."""
    if task.prefix or task.lesson is not None:
        task = task.model_copy(update={"prefix": (), "lesson": None})
    return Episode(environment, task)


def count_greeting(environment: Environment, task: TaskDefinition) -> int:
    """Return the number of messages (0 or 1) in an episode before the user's first one."""
    return int(environment.greeting is not None and not task.solo)


def _read_answer(message: Message) -> tuple[str, bool]:
    return message.text, bool(message.error)


def clean_message(message: Message) -> Message:
    """Return a message without its reflection, because prompts contain no reflections."""
    if message.reflection is None:
        return message
    return message.model_copy(update={"reflection": None})
