"""Agents of a version with members. Before an episode's first answer, the chooser names the member
that plays the episode. The base plays if the chooser is in doubt, or fails."""

from collections.abc import Awaitable, Callable, Sequence

from envs.endpoint import Usage
from envs.players import Player
from envs.task import TaskDefinition
from events.messages import Message
from events.rollouts import MemberChoice

Choose = Callable[[Sequence[Message], TaskDefinition], Awaitable[MemberChoice]]
"""Chooses the member from the first messages that the agent sees, and the task."""

MakeMember = Callable[[MemberChoice, TaskDefinition, int], Player]
"""Makes the agent of the chosen member, for a task and an episode's seed."""


class MemberAgents:
    """Makes the agent of each episode, and keeps which member was chosen."""

    def __init__(self, choose: Choose, make_member: MakeMember) -> None:
        self.choose = choose
        self._make_member = make_member
        self.choices: dict[tuple[str, int], MemberChoice] = {}
        """(Task id, episode's seed) -> the member that was chosen."""

    def __call__(self, task: TaskDefinition, seed: int) -> "MemberAgent":
        return MemberAgent(self, task, seed)

    def make_member(self, choice: MemberChoice, task: TaskDefinition, seed: int) -> Player:
        """Return the agent of the chosen member, and keep the choice in `choices`."""
        self.choices[task.id, seed] = choice
        return self._make_member(choice, task, seed)


class MemberAgent:
    """The agent of one episode: it asks the chooser once, then passes messages to the member."""

    def __init__(self, agents: MemberAgents, task: TaskDefinition, seed: int) -> None:
        self._agents = agents
        self._task = task
        self._seed = seed
        self._member: Player | None = None
        """Agent of the chosen member; None before the first answer."""

    @property
    def usage(self) -> Usage:
        """Return the member's token usage, without the few tokens of the chooser."""
        return Usage() if self._member is None else self._member.usage

    @property
    def remarks(self) -> Sequence[str]:
        """Return the member's remarks."""
        return () if self._member is None else self._member.remarks

    async def reply(self, messages: Sequence[Message]) -> Message:
        """Return the member's next message; choose the member first if there is none yet. Raises
        AnswerFailure, EndpointRefusal, EndpointUnavailable."""
        if self._member is None:
            choice = await self._agents.choose(messages, self._task)
            self._member = self._agents.make_member(choice, self._task, self._seed)
        return await self._member.reply(messages)
