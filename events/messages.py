"""The form of all conversations: OpenAI chat messages, with two differences. A call's arguments are
a parsed object, or the raw text if the call is malformed. A user may call tools too, and then the
calling message has role `user`."""

from collections.abc import Iterable, Sequence
from itertools import repeat, takewhile
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field

Role = Literal["system", "developer", "user", "assistant", "tool"]

Requestor = Literal["assistant", "user"]
"""Role of the caller of a tool."""


class StrictModel(BaseModel):
    """Base of all stored models: immutable; unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ToolCall(StrictModel):
    """A tool call as the caller wrote it."""

    name: str
    arguments: dict[str, Any] | str = {}
    """The parsed object, or the raw text if it is no JSON object."""
    id: str | None = None


class Message(StrictModel):
    """One message of a conversation."""

    role: Role
    content: str | list[dict[str, Any]] | None = None
    """Text, or OpenAI content parts."""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    error: bool | None = None
    """For a tool result: whether the tool reported an error; None: unknown."""
    reasoning: str | None = None
    reflection: str | None = Field(default=None, exclude_if=lambda value: value is None)
    """The aside; this is its stored field name."""
    sampled: bool | None = None
    """False for a message from before this rollout, such as a greeting or the task's prefix."""

    @property
    def text(self) -> str:
        """Return the message's text; content parts without text are left out."""
        if isinstance(self.content, list):
            parts = (part.get("text") for part in self.content)
            return "".join(part for part in parts if isinstance(part, str))
        return self.content or ""

    @property
    def aside(self) -> str | None:
        """Return the text that is not for the user, without tags. Verdicts do not read it."""
        return self.reflection

    def with_aside(self, aside: str | None) -> Self:
        """Return the message with another aside."""
        return self if aside == self.aside else self.model_copy(update={"reflection": aside})


class Action(StrictModel):
    """A call that the task's author expects (gold), or an executed one."""

    name: Annotated[str, Field(min_length=1, max_length=100)]
    """Short enough to be part of a pattern's id."""
    arguments: dict[str, Any] = {}
    requestor: Requestor = "assistant"
    compare: tuple[str, ...] | None = None
    """For a gold action: names of the arguments to compare; None means all."""


class ExecutedCall(NamedTuple):
    """A tool call and its result."""

    turn: int
    """Index of the calling message."""
    requestor: Requestor
    call: ToolCall
    result: Message | None
    """The tool's answer; None if the conversation ended before it."""
    sampled: bool = True
    """False for a call that is part of the task, not of the rollout."""

    @property
    def failed(self) -> bool:
        """Return whether the tool answered with an error."""
        return self.result is not None and bool(self.result.error)


def executed_calls(messages: Sequence[Message]) -> list[ExecutedCall]:
    """Return every tool call with its result, in order. Tool results after a message belong to its
    calls: by id if the ids are distinct and match, else in order. Ids are only compared within one
    message, because some agents repeat ids in a rollout."""
    executed: list[ExecutedCall] = []
    for turn, message in enumerate(messages):
        if message.role not in ("assistant", "user") or not message.tool_calls:
            continue
        requestor: Requestor = "user" if message.role == "user" else "assistant"
        following = messages[turn + 1 : turn + 1 + len(message.tool_calls)]
        sampled = message.sampled is not False
        if len(message.tool_calls) == 1:
            # Most messages have one call; the tool message after it is its result.
            result = following[0] if following and following[0].role == "tool" else None
            executed.append(ExecutedCall(turn, requestor, message.tool_calls[0], result, sampled))
            continue
        results = list(takewhile(lambda item: item.role == "tool", following))
        executed += [
            ExecutedCall(turn, requestor, call, result, sampled)
            for call, result in _pair_results(message.tool_calls, results)
        ]
    return executed


def _pair_results(
    calls: Sequence[ToolCall], results: Sequence[Message]
) -> Iterable[tuple[ToolCall, Message | None]]:
    by_id = {result.tool_call_id: result for result in results}
    ids = {call.id for call in calls}
    are_distinct = len(ids) == len(calls) and len(by_id) == len(results)
    if are_distinct and None not in ids and by_id.keys() <= ids:
        return [(call, by_id.get(call.id)) for call in calls]
    in_order = (*results, *repeat(None, len(calls) - len(results)))
    return list(zip(calls, in_order, strict=True))


def trace(calls: Iterable[ExecutedCall]) -> list[tuple[str, str, dict[str, Any] | str]]:
    """Return the agent's calls as (requestor, tool, arguments), for the dedup key."""
    return [
        (item.requestor, item.call.name, item.call.arguments)
        for item in calls
        if item.requestor == "assistant"
    ]
