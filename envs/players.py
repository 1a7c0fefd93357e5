"""Players of a party of an episode, near or far: the async side of the turn protocol.

`evaluation.py` hands each player the view of its party and awaits its next message. A player that
can go on no longer raises `AnswerFailure` (endpoint.py), which ends the episode.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from envs.agents import Agent
from envs.endpoint import Endpoint, Sampling, Usage, request_seed
from envs.users import User
from events.messages import Message

Offer = Callable[[Sequence[Message]], Sequence[Mapping[str, Any]]]
"""Returns, from what the agent can see, the tools that it is shown next."""


class Player(Protocol):
    """Answers for one party of one episode."""

    @property
    def usage(self) -> Usage:
        """Cost of its answers so far."""
        ...

    @property
    def remarks(self) -> Sequence[str]:
        """Deviations that did not end the episode, equal for equal trouble."""
        ...

    async def reply(self, messages: Sequence[Message]) -> Message: ...


class LocalPlayer:
    """An agent or a user of this process, which answers at once."""

    usage = Usage()
    remarks: Sequence[str] = ()

    def __init__(self, party: Agent | User) -> None:
        self.party = party

    async def reply(self, messages: Sequence[Message]) -> Message:
        """Return its answer."""
        return self.party.reply(messages)


class ModelAgent:
    """An agent behind an endpoint. Each request has a seed of its own, made from the episode's."""

    remarks: Sequence[str] = ()

    def __init__(
        self,
        endpoint: Endpoint,
        tools: Offer | Sequence[Mapping[str, Any]],
        seed: int,
        sampling: Sampling | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.tools = tools
        self.seed = seed
        self.sampling = sampling
        self.usage = Usage()

    async def reply(self, messages: Sequence[Message]) -> Message:
        """Return what the model says or calls next."""
        completion = await self.endpoint.complete(
            messages,
            tools=self.tools(messages) if callable(self.tools) else self.tools,
            sampling=self.sampling,
            seed=request_seed(self.seed, len(messages)),
        )
        self.usage += completion.usage
        return completion.message
