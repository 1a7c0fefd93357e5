"""Messages as other programs write them, in our one form, and what does not add up in them.

OpenAI's chat format in the variants that logs hold: arguments as text or as an object, calls in
OpenAI's envelope or flat (tau2), the older `function_call` and role `function`. Arguments that are
no JSON object stay the text they were: that the model wrote them so is evidence.

Results are paired with calls by position (events/messages.py); `findings` says where the ids, the
numbers or the names disagree.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, Literal, NoReturn

from pydantic import Field

from envs.reflection.tags import ReflectionSplitter, split_reflection
from events.canonical import exact_json
from events.json_text.size import find_excess
from events.messages import Message, ToolCall, executed_calls
from producers.storable import Unusable, Wire, check_storable, readable

WireRole = Literal["system", "developer", "user", "assistant", "tool", "function"]


class WireFunction(Wire):
    """Name and arguments of a call."""

    name: str
    arguments: Any = None


class WireCall(Wire):
    """A call, in OpenAI's envelope or flat."""

    id: str | None = None
    function: WireFunction | None = None
    name: str | None = None
    arguments: Any = None


class WireMessage(Wire):
    """A message of any of the formats."""

    role: WireRole
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[WireCall] | None = None
    function_call: WireFunction | None = None
    tool_call_id: str | None = None
    name: str | None = None
    error: bool | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    sampled: bool | None = None


class _Conversation(Wire):
    messages: list[WireMessage] = Field(max_length=100_000)


def parse_messages(raw: Any) -> tuple[Message, ...]:
    """Messages in our form; raises pydantic's ValidationError, or Unusable."""
    parsed = _Conversation.model_validate({"messages": raw})
    return tuple(to_message(message) for message in parsed.messages)


def to_message(wire: WireMessage) -> Message:
    """One message in our form."""
    calls = [_call(call) for call in wire.tool_calls or ()]
    if wire.function_call is not None:
        calls.append(_tool_call(wire.function_call.name, wire.function_call.arguments, None))
    content, reflection = wire.content, None
    if wire.role == "assistant":
        content, reflection = _split_content(content)
    return Message(
        role="tool" if wire.role == "function" else wire.role,
        content=content,
        reflection=reflection,
        tool_calls=tuple(calls),
        tool_call_id=wire.tool_call_id,
        name=wire.name,
        error=wire.error,
        reasoning=wire.reasoning or wire.reasoning_content,
        sampled=wire.sampled,
    )


def _split_content(
    content: str | list[dict[str, Any]] | None,
) -> tuple[str | list[dict[str, Any]] | None, str | None]:
    """Return the content of an answer without reflections, and these; the same object where it has
    none. Parts of which nothing is left are left out."""
    parts = [content] if isinstance(content, str) else content or []
    texts = [_read_part(part) for part in parts]
    if split_reflection("".join(texts))[1] == "".join(texts):
        return content, None
    splitter = ReflectionSplitter()
    visible = [splitter.feed(text) for text in texts]
    last = max(place for place, text in enumerate(texts) if text)
    visible[last] += splitter.close()
    if isinstance(content, str):
        return visible[0] or None, splitter.reflection
    kept = [
        part if new == old else {**part, "text": new}
        for part, old, new in zip(content or [], texts, visible, strict=True)
        if new or not old
    ]
    return kept or None, splitter.reflection


def _read_part(part: str | dict[str, Any]) -> str:
    """Return the text of a part of a content; "" for a part that is none."""
    text = part if isinstance(part, str) else part.get("text")
    return text if isinstance(text, str) else ""


def parse_arguments(raw: Any) -> dict[str, Any] | str:
    """The arguments as an object where they are one, else as the text they were."""
    if raw is None:
        return {}
    if isinstance(raw, dict):
        return raw
    if not isinstance(raw, str):
        return exact_json(raw)
    if find_excess(raw) is not None:
        return raw
    try:
        parsed = readable(json.loads(raw, parse_constant=_no_constant))
        check_storable(parsed, "arguments")
    except (ValueError, RecursionError, Unusable):
        return raw
    return parsed if isinstance(parsed, dict) else raw


def findings(
    messages: Sequence[Message], declared: Collection[str] | None = None
) -> tuple[str, ...]:
    """What does not add up in a conversation, each finding once; `declared` are the known tools."""
    executed = executed_calls(messages)
    problems: list[str] = []
    results = sum(message.role == "tool" for message in messages)
    paired = sum(item.result is not None for item in executed)
    if paired < len(executed):
        problems.append("a tool call has no result")
    if results > paired:
        problems.append("a tool result follows no call")
    if any(
        item.call.id and item.result and item.result.tool_call_id not in (None, item.call.id)
        for item in executed
    ):
        problems.append("the id of a result is not the id of the call in its place")
    if any(count > 1 for count in Counter(i.call.id for i in executed if i.call.id).values()):
        problems.append("two calls have the same id")
    if any(isinstance(item.call.arguments, str) for item in executed):
        problems.append("the arguments of a call are no JSON object")
    if declared is not None:
        unknown = sorted({item.call.name for item in executed} - set(declared))
        problems.extend(f"calls the unknown tool {name[:80]!r}" for name in unknown[:_MAX_NAMED])
    return tuple(problems)


def mentions_all(outputs: Iterable[str], messages: Sequence[Message]) -> bool:
    """Whether the assistant said each of them, by the rule of tau-bench and tau2."""
    answers = [
        message.text.lower().replace(",", "") for message in messages if message.role == "assistant"
    ]
    return all(any(output.lower() in text for text in answers) for output in outputs)


_MAX_NAMED: Final = 5
"""Unknown tools named per rollout: a model that makes up names makes up many."""


def _call(wire: WireCall) -> ToolCall:
    if wire.function is not None:
        return _tool_call(wire.function.name, wire.function.arguments, wire.id)
    if wire.name is None:
        raise Unusable("a tool call has neither `function` nor `name`; name the tool it calls")
    return _tool_call(wire.name, wire.arguments, wire.id)


def _tool_call(name: str, arguments: Any, call_id: str | None) -> ToolCall:
    return ToolCall(name=name, arguments=parse_arguments(arguments), id=call_id)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
