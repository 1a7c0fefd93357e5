"""Ask a model for a JSON document until it gives a valid one, within a budget of tokens.

    budget = TokenBudget(200_000, "models.analyzer.max_tokens")
    async with open_endpoint(settings, "analyzer") as endpoint:
        answer = await ask(endpoint, "analyzer", messages, question, budget)

A role is the name of the model's section under `models` in the settings. If the answer is no
message, or `question.parse` refuses it, the model is asked again with the reason, twice at most.
Token counts are estimated high, so that the budget holds with any tokenizer.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import httpx2
from pydantic import BaseModel, ConfigDict, ValidationError

from envs.endpoint import AnswerFailure, Endpoint, Sampling
from envs.episode import Termination
from events.errors import KintsugiError
from events.messages import Message
from events.registry import first_problem

if TYPE_CHECKING:
    from daemon.config.settings import Model

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

ASKED_AGAIN: Final = 2
ANSWER_TOKENS: Final = 4096
"""Most tokens that the model may write in one answer."""
_QUOTED: Final = 4_000
"""Most characters of a refused answer that the next request quotes. A server may ignore the limit
on answers, and a long quotation would spend the budget."""
_FENCE: Final = "```"
_FENCE_BEGINS: Final = re.compile(r"```(?:json)?[ \t]*\n", re.IGNORECASE)
BYTES_PER_TOKEN: Final = 3
"""A low guess, so that token estimates are high; a Chinese character counts as one token."""


class ModelFailure(KintsugiError):
    """A model gave no usable answer. The text names the model's role and the reason."""


class BudgetSpent(ModelFailure):
    """A request would cost more tokens or time than the budget has left."""


class TokenBudget:
    """The number of tokens that a model may still read and write."""

    def __init__(self, tokens: int, setting: str) -> None:
        """Start with `tokens`. `setting` is the name of the setting to raise, for error texts."""
        self.left, self.setting = tokens, setting

    def spend(self, tokens: int) -> bool:
        """Take tokens from the budget if enough are left; return whether they were."""
        if tokens > self.left:
            return False
        self.left -= tokens
        return True


@dataclass(frozen=True, slots=True)
class Question(Generic[T]):
    """The form that an answer must have, and the sampling parameters of the request."""

    parse: Callable[[str], T]
    """Parse an answer; raise ValueError with the problem."""
    response_format: Mapping[str, Any]
    """The request's field `response_format`, with a JSON schema."""
    temperature: float = 0.0
    seed: int | None = None
    """Seed for the endpoint's sampling; some endpoints ignore it."""


def open_endpoint(settings: "Model", role: str) -> Endpoint:
    """Return the endpoint of a role's model, to be used as a context manager. Raise ModelFailure if
    the settings do not allow its host, EndpointRefusal if its URL is invalid."""
    check_host(settings.url, settings.allowed_hosts, role)
    return Endpoint(
        settings.url,
        settings.model,
        api_key=settings.api_key.get_secret_value() if settings.api_key else None,
        timeout=settings.timeout_seconds,
        attempts=2,
    )


def check_host(url: str, allowed: Sequence[str], role: str) -> None:
    """Raise ModelFailure for an invalid URL or a host neither of this machine nor in `allowed`."""
    try:
        host = httpx2.URL(url).host
    except httpx2.InvalidURL as error:
        raise ModelFailure(f"models.{role}.url {url!r} is none: {error}") from error
    if not (_is_loopback(host) or host in allowed):
        raise ModelFailure(
            f"host {host!r} is not this machine, and what the {role} reads would be sent there; "
            f"name it in models.{role}.allowed_hosts if it may"
        )


def build_request(instructions: str, material: str) -> list[Message]:
    """Return the messages of a request: the instructions, then their material."""
    return [Message(role="system", content=instructions), Message(role="user", content=material)]


async def ask(
    endpoint: Endpoint,
    role: str,
    messages: Sequence[Message],
    question: Question[T],
    budget: TokenBudget,
) -> T:
    """Ask until `question.parse` accepts an answer, and return it. Raise ModelFailure (BudgetSpent
    if the budget is too small), AnswerFailure or EndpointRefusal."""
    problem = ""
    asked = list(messages)
    sampling = Sampling(
        temperature=question.temperature,
        max_tokens=ANSWER_TOKENS,
        extra={"response_format": question.response_format, "seed": question.seed},
    )
    cost = estimate_json(question.response_format) + ANSWER_TOKENS
    for _ in range(1 + ASKED_AGAIN):
        spend(budget, asked, role, cost, problem)
        text = ""
        try:
            text = (await endpoint.complete(asked, sampling=sampling)).message.text
            return question.parse(strip_fence(text))
        except AnswerFailure as error:
            if error.termination != Termination.AGENT_ERROR:
                raise
            problem = f"the {role} {endpoint.model} gave no answer: {error}"
        except ValueError as error:
            problem = f"the {role} {endpoint.model} gave no answer of the schema: {error}"
        again = f"That was not the answer that was asked for: {problem[:300]}. Answer again."
        asked += [
            Message(role="assistant", content=text[:_QUOTED] or "{}"),
            Message(role="user", content=again),
        ]
    raise ModelFailure(problem)


def strip_fence(text: str) -> str:
    """Return a text without the Markdown code fence that many models put around JSON."""
    stripped = text.strip()
    begin = _FENCE_BEGINS.match(stripped)
    if begin is None or not stripped.endswith(_FENCE, begin.end()):
        return text
    return stripped[begin.end() : -len(_FENCE)].rstrip()


def spend(
    budget: TokenBudget, messages: Sequence[Message], role: str, cost: int, problem: str = ""
) -> None:
    """Take a request's cost from the budget: its messages, and `cost` for schema or tools and
    answer. Raise BudgetSpent, which quotes `problem`, the fault of the previous answer."""
    if not budget.spend(estimate_tokens(messages) + cost):
        raise BudgetSpent(
            f"{problem or f'the request of the {role} costs more than what is left'}; "
            f"{budget.left} tokens are left of the budget; raise {budget.setting}"
        )


def estimate_tokens(messages: Sequence[Message]) -> int:
    """Return a high estimate of the number of tokens in a request's messages."""
    calls = [call for message in messages for call in message.tool_calls]
    texts = [text for message in messages for text in (message.text, message.reasoning or "")]
    texts += [str(call.arguments) for call in calls]
    return sum(map(measure_bytes, texts)) // BYTES_PER_TOKEN


def estimate_json(document: Any) -> int:
    """Return a high estimate of the number of tokens that a schema or tools add to a prompt."""
    return len(json.dumps(document)) // BYTES_PER_TOKEN


def measure_bytes(text: str) -> int:
    """Return the length of a text in bytes of UTF-8."""
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


def build_object_schema(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of an object that has exactly these properties. It uses only schema
    keywords that servers with guided output understand."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


def build_format(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a request's field `response_format` for a document of this schema."""
    return {
        "type": "json_schema",
        "json_schema": {"name": name, "strict": True, "schema": dict(schema)},
    }


class AnswerModel(BaseModel):
    """A model's answer as a JSON object: exactly these fields with exactly these types."""

    model_config = ConfigDict(extra="forbid", strict=True)


def parse_answer(model: type[M], text: str) -> M:
    """Parse an answer that must be one JSON document. Raise ValueError with the problem."""
    try:
        return check_answer(model, json.loads(text))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def check_answer(model: type[M], document: Any) -> M:
    """Return a decoded JSON answer as an instance of `model`. Raise ValueError with the problem."""
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise ValueError(first_problem(error)) from error


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
