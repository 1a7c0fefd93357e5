"""Ask the router of a panel behind an endpoint, before an episode's first answer.

Prompt and rule are the gateway's (label_router.py); a router with a head reads the prompt of the
agent's own request. If it fails, the choice has the doubt `failed`. Not covered: a time limit.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from envs.endpoint import AnswerFailure, Endpoint, wire
from envs.task import TaskDefinition
from events.messages import Message
from events.rollouts import MemberChoice
from events.serving import Panel
from producers.gateway.routing.token_scores import read_token_scores
from producers.gateway.skills import label_router

ListFields = Callable[[TaskDefinition, Sequence[Message]], Mapping[str, Any]]
"""Returns the fields, beside the messages, that the agent's prompt is rendered from."""


class EndpointRouter:
    """Chooses a panel's member for each episode by asking the router behind an endpoint."""

    def __init__(
        self, panel: Panel, endpoints: Mapping[str | None, Endpoint], list_fields: ListFields
    ) -> None:
        """`endpoints` maps each of the panel's adapters (None: the base) to its endpoint."""
        self._panel, self._endpoints, self._list_fields = panel, endpoints, list_fields

    async def choose(self, messages: Sequence[Message], task: TaskDefinition) -> MemberChoice:
        """Return the member that answers a conversation. Raise EndpointRefusal."""
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
            answer = label_router.read_answer(router, list(map(read_token_scores, answers)))
        except (AnswerFailure, KeyError):
            return MemberChoice(doubt="failed")
        adapter = self._panel.find_adapter(answer.skill)
        return MemberChoice(skill=answer.skill, adapter=adapter, doubt=answer.doubt)
