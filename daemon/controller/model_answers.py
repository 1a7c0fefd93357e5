"""Ask a model for one JSON document until it gives one, within a budget of tokens.

    budget = TokenBudget(200_000, "models.analyzer.max_tokens")
    async with open_endpoint(settings, "analyzer") as endpoint:
        answer = await ask(endpoint, "analyzer", messages, question, budget)

A role is the name of the model's section under `models`. An answer that is no message, or that
`question.parse` refuses, is asked for again with the reason, twice at most. Costs are estimated
high, so that a budget is kept with any tokenizer.
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
"""Most tokens of one answer."""
_QUOTED: Final = 4_000
"""Most characters of a refused answer that are sent back: servers may ignore the bound on its
tokens, which would spend the budget."""
_FENCE: Final = "```"
_FENCE_BEGINS: Final = re.compile(r"```(?:json)?[ \t]*\n", re.IGNORECASE)
BYTES_PER_TOKEN: Final = 3
"""A low guess, so that estimates are high; in UTF-8, so that a Chinese character is a token."""


class ModelFailure(KintsugiError):
    """A model gave no usable answer; the text names its role and says why."""


class BudgetSpent(ModelFailure):
    """A request costs more tokens or time than are left."""


class TokenBudget:
    """Tokens that may still be read and written."""

    def __init__(self, tokens: int, setting: str) -> None:
        """Start with `tokens`; `setting` names the setting with this number."""
        self.left, self.setting = tokens, setting

    def spend(self, tokens: int) -> bool:
        """Take tokens; return whether enough were left."""
        if tokens > self.left:
            return False
        self.left -= tokens
        return True


@dataclass(frozen=True, slots=True)
class Question(Generic[T]):
    """The required form of an answer, and its sampling."""

    parse: Callable[[str], T]
    """Reads an answer; raises ValueError with the problem."""
    response_format: Mapping[str, Any]
    """JSON schema, as in the endpoint's request."""
    temperature: float = 0.0
    seed: int | None = None
    """Seed of the endpoint's sampling; endpoints without one ignore it."""


def open_endpoint(settings: "Model", role: str) -> Endpoint:
    """Return the endpoint of a role's model, a context manager. Raise ModelFailure for a host that
    requests may not be sent to, EndpointRefusal for an invalid URL."""
    check_host(settings.url, settings.allowed_hosts, role)
    return Endpoint(
        settings.url,
        settings.model,
        api_key=settings.api_key.get_secret_value() if settings.api_key else None,
        timeout=settings.timeout_seconds,
        attempts=2,
    )


def check_host(url: str, allowed: Sequence[str], role: str) -> None:
    """Raise ModelFailure if requests would leave this machine without permission."""
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
    """Return an answer that the question accepts. Raise ModelFailure, BudgetSpent among them,
    AnswerFailure, EndpointRefusal."""
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
    """Return a text without a fence of Markdown, which many models put around JSON."""
    stripped = text.strip()
    begin = _FENCE_BEGINS.match(stripped)
    if begin is None or not stripped.endswith(_FENCE, begin.end()):
        return text
    return stripped[begin.end() : -len(_FENCE)].rstrip()


def spend(
    budget: TokenBudget, messages: Sequence[Message], role: str, cost: int, problem: str = ""
) -> None:
    """Take a request's cost from the budget: its messages, and `cost` for its schema or tools and
    its answer. Raise BudgetSpent, which quotes the problem of the answer before it."""
    if not budget.spend(estimate_tokens(messages) + cost):
        raise BudgetSpent(
            f"{problem or f'the request of the {role} costs more than what is left'}; "
            f"{budget.left} tokens are left of the budget; raise {budget.setting}"
        )


def estimate_tokens(messages: Sequence[Message]) -> int:
    """Return a high estimate of the tokens of a request."""
    calls = [call for message in messages for call in message.tool_calls]
    texts = [text for message in messages for text in (message.text, message.reasoning or "")]
    texts += [str(call.arguments) for call in calls]
    return sum(map(measure_bytes, texts)) // BYTES_PER_TOKEN


def estimate_json(document: Any) -> int:
    """Return a high estimate of the tokens of a schema or tools, which prompts contain."""
    return len(json.dumps(document)) // BYTES_PER_TOKEN


def measure_bytes(text: str) -> int:
    """Return the length of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


def build_object_schema(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of an object with just these properties, in the few forms that servers that
    guide their output read."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


def build_format(name: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the field `response_format` of a request for a document of this schema."""
    return {
        "type": "json_schema",
        "json_schema": {"name": name, "strict": True, "schema": dict(schema)},
    }


class AnswerModel(BaseModel):
    """A JSON object that a model answers with: these fields, in these types, and no others."""

    model_config = ConfigDict(extra="forbid", strict=True)


def parse_answer(model: type[M], text: str) -> M:
    """Read an answer that is one JSON document. Raise ValueError with the problem."""
    try:
        return check_answer(model, json.loads(text))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def check_answer(model: type[M], document: Any) -> M:
    """Return a decoded answer as a model. Raise ValueError with the problem."""
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
