"""An agent whose answers come from an engine in this process, while other players are elsewhere."""

from collections.abc import Sequence
from typing import Final

from daemon.engine.chat import Chat
from daemon.engine.generation import PromptTooLong, Request
from daemon.engine.policy import Policy
from daemon.engine.thread import EngineFailure, EngineThread
from envs.endpoint import AnswerFailure, EndpointUnavailable, Usage, request_seed
from envs.episode import Termination
from envs.players import Offer
from events.messages import Message


class EngineAgent:
    """A player of the agent's party (envs/players.py)."""

    remarks: Final[Sequence[str]] = ()

    def __init__(
        self,
        thread: EngineThread,
        chat: Chat,
        policy: Policy,
        tools: Offer,
        seed: int,
        *,
        temperature: float,
        max_tokens: int,
    ) -> None:
        """`max_tokens` limits a turn; a turn that reaches the limit ends the episode."""
        self._thread, self._chat, self._policy = thread, chat, policy
        self._tools, self._seed = tools, seed
        self._temperature, self._max_tokens = temperature, max_tokens
        self.usage = Usage()

    async def reply(self, messages: Sequence[Message]) -> Message:
        """Return the policy's next message or call. Raise AnswerFailure, EndpointUnavailable."""
        chat = self._chat
        prompt = chat.prompt(messages, self._tools(messages) if chat.shows_tools else ())
        request = Request(
            prompt=prompt,
            max_tokens=self._max_tokens,
            temperature=self._temperature,
            seed=request_seed(self._seed, len(messages)),
            stop=chat.ends,
        )
        try:
            call = await self._thread.submit(self._policy, [request])
            emissions = [emission async for parts in call for _, emission in parts]
        except PromptTooLong as error:
            raise AnswerFailure(Termination.CONTEXT_OVERFLOW, str(error)) from error
        except EngineFailure as error:
            raise EndpointUnavailable(f"{error}; run the same command to go on") from error
        ids = [emission.token for emission in emissions]
        self.usage += Usage(1, len(prompt), len(ids))
        if emissions[-1].finish == "length":
            raise AnswerFailure(
                Termination.AGENT_ERROR, f"an answer was cut off at {len(ids):,} tokens"
            )
        return chat.message(ids, len(messages))
