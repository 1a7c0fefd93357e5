"""Agents of a version with members: before an episode's first answer, its chooser names the member
that plays it. The base plays if the chooser is in doubt, or fails."""

from collections.abc import Awaitable, Callable, Sequence

from envs.endpoint import Usage
from envs.players import Player
from envs.task import TaskDefinition
from events.messages import Message
from events.rollouts import MemberChoice

Choose = Callable[[Sequence[Message], TaskDefinition], Awaitable[MemberChoice]]
"""Chooses the member from the agent's first view and the task."""

MakeMember = Callable[[MemberChoice, TaskDefinition, int], Player]
"""Makes the chosen agent from the task and the episode's seed."""


class MemberAgents:
    """Makes each episode's agent, and keeps its choice."""

    def __init__(self, choose: Choose, make_member: MakeMember) -> None:
        self.choose = choose
        self._make_member = make_member
        self.choices: dict[tuple[str, int], MemberChoice] = {}
        """Task and seed -> the member that answered."""

    def __call__(self, task: TaskDefinition, seed: int) -> "MemberAgent":
        return MemberAgent(self, task, seed)

    def make_member(self, choice: MemberChoice, task: TaskDefinition, seed: int) -> Player:
        """Return the chosen agent, and keep the choice."""
        self.choices[task.id, seed] = choice
        return self._make_member(choice, task, seed)


class MemberAgent:
    """The agent of one episode."""

    def __init__(self, agents: MemberAgents, task: TaskDefinition, seed: int) -> None:
        self._agents = agents
        self._task = task
        self._seed = seed
        self._member: Player | None = None
        """None before the first answer."""

    @property
    def usage(self) -> Usage:
        """Return the member's usage, without the chooser's single tokens."""
        return Usage() if self._member is None else self._member.usage

    @property
    def remarks(self) -> Sequence[str]:
        """Return the member's remarks."""
        return () if self._member is None else self._member.remarks

    async def reply(self, messages: Sequence[Message]) -> Message:
        """Return the member's message. Raises AnswerFailure, EndpointRefusal,
        EndpointUnavailable."""
        if self._member is None:
            choice = await self._agents.choose(messages, self._task)
            self._member = self._agents.make_member(choice, self._task, self._seed)
        return await self._member.reply(messages)
