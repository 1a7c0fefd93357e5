"""Players of one party of an episode, in this process or behind an endpoint: the asynchronous side
of the turn protocol. `evaluation.py` gives each player its party's view and awaits its next
message. A player that cannot go on raises `AnswerFailure` (endpoint.py), which ends the episode."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from envs.agents import Agent
from envs.endpoint import Endpoint, Sampling, Usage, request_seed
from envs.users import User
from events.messages import Message

Offer = Callable[[Sequence[Message]], Sequence[Mapping[str, Any]]]
"""Function that takes the agent's view and returns the tools to show it next."""


class Player(Protocol):
    """Answers for one party of one episode."""

    @property
    def usage(self) -> Usage:
        """Tokens and requests of its answers so far."""
        ...

    @property
    def remarks(self) -> Sequence[str]:
        """Deviations that did not end the episode. The same deviation always has the same text."""
        ...

    async def reply(self, messages: Sequence[Message]) -> Message: ...


class LocalPlayer:
    """An agent or a user in this process, which answers without waiting."""

    usage = Usage()
    remarks: Sequence[str] = ()

    def __init__(self, party: Agent | User) -> None:
        self.party = party

    async def reply(self, messages: Sequence[Message]) -> Message:
        """Return the next message of the agent or user."""
        return self.party.reply(messages)


class ModelAgent:
    """An agent behind an endpoint. The seed of each request is made from the episode's."""

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
        """Return the model's next message, with text or calls."""
        completion = await self.endpoint.complete(
            messages,
            tools=self.tools(messages) if callable(self.tools) else self.tools,
            sampling=self.sampling,
            seed=request_seed(self.seed, len(messages)),
        )
        self.usage += completion.usage
        return completion.message
