"""An agent that answers as a panel does: its router chooses a member before the first answer.

    router = EndpointRouter(panel, endpoints, list_fields)   asks the router behind an endpoint
    agents = PanelAgents(router.choose, make_member)         for Setup.agent
    agents.choices[task, seed]                               what the router chose for an episode

The router reads what it reads at a gateway, by the same prompt and rule (label_router.py), and
where it is in doubt, or fails, the base answers. A head reads the prompt of the agent's own
request. Not covered: the time that a gateway gives it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from envs.endpoint import AnswerFailure, Endpoint, Usage, wire
from envs.players import Player
from envs.task import TaskDefinition
from events.messages import Message
from events.rollouts import MemberChoice
from events.serving import Panel
from producers.gateway.routing.token_scores import read_token_scores
from producers.gateway.skills import label_router

Choose = Callable[[Sequence[Message], TaskDefinition], Awaitable[MemberChoice]]
"""Chooses the member from what the agent reads first, and the task."""

MakeMember = Callable[[MemberChoice, TaskDefinition, int], Player]
"""Makes the agent that was chosen from the task and the episode's seed."""

ListFields = Callable[[TaskDefinition, Sequence[Message]], Mapping[str, Any]]
"""Returns the fields that the agent's prompt is rendered of, beside the messages, from the task and
what the agent reads."""


class EndpointRouter:
    """The router of a panel, behind an endpoint."""

    def __init__(
        self, panel: Panel, endpoints: Mapping[str | None, Endpoint], list_fields: ListFields
    ) -> None:
        """`endpoints`: adapter (None: the base) -> where it answers, of all of the panel's."""
        self._panel, self._endpoints, self._list_fields = panel, endpoints, list_fields

    async def choose(self, messages: Sequence[Message], task: TaskDefinition) -> MemberChoice:
        """Return the member for a conversation. Raises EndpointRefusal."""
        router = self._panel.router
        endpoint = self._endpoints[router.adapter]
        opening = label_router.Opening(
            [wire(message) for message in messages], self._list_fields(task, messages)
        )
        requests = opening.build_requests(router, endpoint.model)
        if not requests:
            return MemberChoice(doubt="failed")
        try:
            answers = await asyncio.gather(*map(endpoint.ask, requests))
            scores = [
                label_router.read_scores(router, order, read_token_scores(document))
                for order, document in enumerate(answers)
            ]
        except (AnswerFailure, KeyError):
            return MemberChoice(doubt="failed")
        answer = label_router.decide(router, scores)
        adapter = self._panel.find_adapter(answer.skill)
        return MemberChoice(skill=answer.skill, adapter=adapter, doubt=answer.doubt)


class PanelAgents:
    """Makes the agent of each episode, and keeps what its router chose."""

    def __init__(self, choose: Choose, make_member: MakeMember) -> None:
        self.choose = choose
        self._make_member = make_member
        self.choices: dict[tuple[str, int], MemberChoice] = {}
        """Task and the episode's seed -> the member that answered."""

    def __call__(self, task: TaskDefinition, seed: int) -> "PanelAgent":
        """Return the agent of an episode."""
        return PanelAgent(self, task, seed)

    def make_member(self, choice: MemberChoice, task: TaskDefinition, seed: int) -> Player:
        """Return the agent that a choice has answer, and keep the choice."""
        self.choices[task.id, seed] = choice
        return self._make_member(choice, task, seed)


class PanelAgent:
    """The agent of one episode."""

    def __init__(self, agents: PanelAgents, task: TaskDefinition, seed: int) -> None:
        self._agents = agents
        self._task = task
        self._seed = seed
        self._member: Player | None = None
        """None before the first answer."""

    @property
    def usage(self) -> Usage:
        """What the member's answers cost so far; the router's single tokens are not counted."""
        return Usage() if self._member is None else self._member.usage

    @property
    def remarks(self) -> Sequence[str]:
        """The member's."""
        return () if self._member is None else self._member.remarks

    async def reply(self, messages: Sequence[Message]) -> Message:
        """Return what the member says or calls next. Raises AnswerFailure, EndpointRefusal,
        EndpointUnavailable."""
        if self._member is None:
            choice = await self._agents.choose(messages, self._task)
            self._member = self._agents.make_member(choice, self._task, self._seed)
        return await self._member.reply(messages)
