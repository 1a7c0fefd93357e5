"""Agents of a version with members: its chooser names a member before an episode's first answer.

    agents = MemberAgents(choose, make_member)     for Setup.agent
    agents.choices[task, seed]                       the member of an episode

The member then plays the whole episode. Where the chooser is in doubt, or fails, the base plays.
"""

from collections.abc import Awaitable, Callable, Sequence

from envs.endpoint import Usage
from envs.players import Player
from envs.task import TaskDefinition
from events.messages import Message
from events.rollouts import MemberChoice

Choose = Callable[[Sequence[Message], TaskDefinition], Awaitable[MemberChoice]]
"""Chooses the member from what the agent reads first, and the task."""

MakeMember = Callable[[MemberChoice, TaskDefinition, int], Player]
"""Makes the agent that was chosen from the task and the episode's seed."""


class MemberAgents:
    """Makes the agent of each episode, and keeps the choice of its member."""

    def __init__(self, choose: Choose, make_member: MakeMember) -> None:
        self.choose = choose
        self._make_member = make_member
        self.choices: dict[tuple[str, int], MemberChoice] = {}
        """Task and the episode's seed -> the member that answered."""

    def __call__(self, task: TaskDefinition, seed: int) -> "MemberAgent":
        """Return the agent of an episode."""
        return MemberAgent(self, task, seed)

    def make_member(self, choice: MemberChoice, task: TaskDefinition, seed: int) -> Player:
        """Return the agent that a choice has answer, and keep the choice."""
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
        """Return what the member's answers cost so far; the chooser's single tokens are not
        counted."""
        return Usage() if self._member is None else self._member.usage

    @property
    def remarks(self) -> Sequence[str]:
        """Return the member's remarks."""
        return () if self._member is None else self._member.remarks

    async def reply(self, messages: Sequence[Message]) -> Message:
        """Return what the member says or calls next. Raises AnswerFailure, EndpointRefusal,
        EndpointUnavailable."""
        if self._member is None:
            choice = await self._agents.choose(messages, self._task)
            self._member = self._agents.make_member(choice, self._task, self._seed)
        return await self._member.reply(messages)
