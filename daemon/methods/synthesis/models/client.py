"""The client of one role's model: its endpoint, its budgets of tokens and time, and its trouble.

    client = ModelClient(settings.models.proposer, "proposer", redact)
    plan = client.run(lambda endpoint: client.ask(endpoint, messages, question))

`run` turns every failure of an endpoint into ModelFailure, and raises CannotSample once the process
has to stop. The model is not asked again if it refuses to serve, its host is not allowed, its
tokens or minutes are spent, or it was late three times in a row; `trouble` has the reason.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from daemon.controller.model_answers import (
    BudgetSpent,
    ModelFailure,
    Question,
    TokenBudget,
    ask,
    check_host,
    estimate_json,
    open_endpoint,
    spend,
)
from daemon.methods.synthesis.models.texts import clean_line
from daemon.proposer.candidate import CannotSample
from envs.endpoint import AnswerFailure, Endpoint, EndpointRefusal, Sampling
from envs.episode import Termination
from events.messages import Message
from events.rollouts import clip_reason
from producers.gateway.privacy.redaction import Redaction

if TYPE_CHECKING:
    from daemon.config.settings import ProposerModel, Settings

T = TypeVar("T")

MOST_UNANSWERED: Final = 3
"""Number of unanswered requests in a row after which the model is not asked again."""
_LOOK_SECONDS: Final = 0.5
"""Seconds between two calls of `stopping`."""
CALL_TOKENS: Final = 1024
"""Most tokens of an answer that calls tools."""


@dataclass(slots=True)
class ModelClient:
    """Asks the model of one role. Not for several threads."""

    settings: "ProposerModel"
    role: str
    """Name of the model's section under `models` in the settings."""
    redact: Callable[[str], str] = str
    """Replaces matches of the operator's redaction rules in every text that is sent."""
    stopping: Callable[[], bool] = lambda: False
    """Returns whether the process has to stop; then nothing more is asked."""
    budget: TokenBudget = field(init=False)
    trouble: str = field(default="", init=False)
    """Why the model is not asked again; "" while it may be asked."""
    _seconds: float = field(init=False)
    """Seconds that the model's answers may still take."""
    _unanswered: int = field(default=0, init=False)
    _answered: bool = field(default=False, init=False)
    """Whether it ever answered; if so, a request that it refuses is at fault itself."""

    def __post_init__(self) -> None:
        self.budget = TokenBudget(self.settings.max_tokens, f"models.{self.role}.max_tokens")
        self._seconds = self.settings.minutes * 60

    @property
    def name(self) -> str:
        """Return the model's name, as events record it."""
        return self.settings.model

    @property
    def label(self) -> str:
        """Return the role and the model's name, as reasons quote them."""
        return f"the {self.role} {self.name}"

    def run(self, talk: Callable[[Endpoint], Awaitable[T]]) -> T:
        """Return the result of a conversation. Raise ModelFailure, and other errors of `talk`."""
        if self.trouble:
            raise ModelFailure(f"{self.trouble}; it was not asked again")
        try:
            check_host(self.settings.url, self.settings.allowed_hosts, self.role)
        except ModelFailure as error:
            raise self._close(error) from error
        try:
            return asyncio.run(self._talk(talk))
        except (BudgetSpent, EndpointRefusal) as error:
            raise self._close(error) from error
        except AnswerFailure as error:
            if error.termination not in (Termination.TIMEOUT, Termination.INFRASTRUCTURE_ERROR):
                raise ModelFailure(self._describe(error)) from error
            self._unanswered += 1
            if self._unanswered >= MOST_UNANSWERED:
                raise self._close(error) from error
            raise ModelFailure(self._describe(error)) from error
        except ModelFailure as error:
            raise ModelFailure(self._describe(error)) from error

    async def ask(
        self, endpoint: Endpoint, messages: Sequence[Message], question: Question[T]
    ) -> T:
        """Return an answer that `question` accepts; ask again twice. For use within `run`."""
        self._check_stop()
        answer = await ask(endpoint, self.role, self._redact(messages), question, self.budget)
        self._unanswered = 0
        return answer

    async def ask_for_calls(
        self,
        endpoint: Endpoint,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        seed: int,
    ) -> Message:
        """Return the model's next message, which may call these tools. For use within `run`."""
        self._check_stop()
        sent = self._redact(messages)
        spend(self.budget, sent, self.role, estimate_json(list(tools)) + CALL_TOKENS)
        sampling = Sampling(max_tokens=CALL_TOKENS)
        completion = await endpoint.complete(sent, tools=tools, sampling=sampling, seed=seed)
        self._unanswered = 0
        return completion.message

    def _check_stop(self) -> None:
        """Raise CannotSample if the process has to stop: a cycle's tasks may take hours."""
        if self.stopping():
            raise CannotSample("the scheduler was told to stop; the next one goes on")

    async def _talk(self, talk: Callable[[Endpoint], Awaitable[T]]) -> T:
        async with open_endpoint(self.settings, self.role) as endpoint:
            endpoint.answered = self._answered
            try:
                return await self._run_until_stop(talk(endpoint))
            finally:
                self._answered = endpoint.answered

    async def _run_until_stop(self, talk: Awaitable[T]) -> T:
        """Return the result of `talk`, unless a stop or the time limit ends it: answers may take
        minutes. Raise CannotSample, BudgetSpent."""
        task = asyncio.ensure_future(talk)
        begin = time.monotonic()
        try:
            while not task.done():
                self._check_stop()
                left = self._check_time(time.monotonic() - begin)
                await asyncio.wait({task}, timeout=min(left, _LOOK_SECONDS))
            return task.result()
        finally:
            self._seconds -= time.monotonic() - begin
            task.cancel()
            await asyncio.wait({task})

    def _check_time(self, waited: float) -> float:
        """Return the seconds left after `waited` seconds of the present talk. Raise BudgetSpent."""
        left = self._seconds - waited
        if left <= 0:
            raise BudgetSpent(
                f"it was waited for {self.settings.minutes:g} minutes in this cycle; raise "
                f"models.{self.role}.minutes"
            )
        return left

    def _redact(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages with redacted texts. Calls are the model's own words and stay."""
        return [
            message.model_copy(update={"content": self.redact(message.text)})
            if message.content
            else message
            for message in messages
        ]

    def _close(self, error: Exception) -> ModelFailure:
        self.trouble = self._describe(error)
        return ModelFailure(self.trouble)

    def _describe(self, error: Exception) -> str:
        text = self.redact(clean_line(str(error)))
        return clip_reason(text if self.label in text else f"{self.label}: {text}")


def open_client(
    settings: "Settings", role: str, stopping: Callable[[], bool] = lambda: False
) -> ModelClient | None:
    """Return the client of a role's model, with the operator's redaction; None without a model."""
    model: ProposerModel = getattr(settings.models, role)
    if not model.url:
        return None
    redact = Redaction(settings.redaction.build_rules()).redact_text
    return ModelClient(model, role, redact, stopping)
