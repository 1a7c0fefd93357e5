"""Converts other programs' messages to events/messages.py, and finds contradictions in them. It
reads the variants of OpenAI's chat format that occur in logs (calls and contents by envs/answers).
Arguments that are no JSON object stay text, as evidence."""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, Final, Literal, NoReturn

from pydantic import Field

from envs.answers.content import is_monologue, read_content
from envs.answers.reader import MessageReader
from envs.asides import AsideSplitter, split_aside
from events.messages import Message, ToolCall, executed_calls
from producers.storable import Unusable, Wire

WireRole = Literal["system", "developer", "user", "assistant", "tool", "function"]


class WireMessage(Wire):
    """A message of any of the formats."""

    role: WireRole
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[dict[str, Any]] | None = None
    function_call: dict[str, Any] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    error: bool | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    sampled: bool | None = None


class _Conversation(Wire):
    messages: list[WireMessage] = Field(max_length=100_000)


def parse_messages(raw: Any) -> tuple[Message, ...]:
    """Return raw messages as `Message`s. Raises pydantic's ValidationError, or Unusable."""
    parsed = _Conversation.model_validate({"messages": raw})
    return tuple(to_message(message) for message in parsed.messages)


def to_message(wire: WireMessage) -> Message:
    """Return a parsed message as a `Message`. Raises Unusable."""
    content, reasoning, aside = wire.content, wire.reasoning or wire.reasoning_content, None
    if wire.role == "assistant":
        thoughts = ""
        if isinstance(content, list):
            content, thoughts = read_parts(content)
        reasoning = reasoning or thoughts or None
        content, aside = _split_content(content)
    message = Message(
        role="tool" if wire.role == "function" else wire.role,
        content=content,
        tool_calls=_read_calls(wire) if wire.tool_calls or wire.function_call is not None else (),
        tool_call_id=wire.tool_call_id,
        name=wire.name,
        error=wire.error,
        reasoning=reasoning,
        sampled=wire.sampled,
    )
    return message.with_aside(aside)


def _read_calls(wire: WireMessage) -> tuple[ToolCall, ...]:
    reader = MessageReader(_reject)
    reader.take({"tool_calls": wire.tool_calls, "function_call": wire.function_call}, whole=True)
    return tuple(call.build() for call in reader.calls)


def read_parts(
    content: str | list[dict[str, Any]] | None,
) -> tuple[str | list[dict[str, Any]] | None, str]:
    """Return an answer's content without reasoning, and the reasoning. If all parts are text, they
    become one text; with any other part, such as a picture, they stay parts."""
    if not isinstance(content, list):
        return content, ""
    thoughts, rest = read_content(list(filter(is_monologue, content))), content
    if not thoughts.unread:
        rest = [part for part in content if not is_monologue(part)]
    text = read_content(rest)
    if not text.unread and not text.reasoning and all(map(_is_text, rest)):
        return text.text or None, thoughts.reasoning
    return rest, "" if thoughts.unread else thoughts.reasoning


def _is_text(part: Any) -> bool:
    """Return whether a part has no fields besides its text."""
    return not isinstance(part, dict) or not any(
        value for name, value in part.items() if name not in ("type", "text", "refusal")
    )


def _split_content(
    content: str | list[dict[str, Any]] | None,
) -> tuple[str | list[dict[str, Any]] | None, str | None]:
    """Return a content without asides and empty parts, and the asides."""
    if content is None or (isinstance(content, str) and "<" not in content):
        return content, None
    parts = [content] if isinstance(content, str) else content
    texts = [_read_part(part) for part in parts]
    whole = "".join(texts)
    if "<" not in whole or split_aside(whole)[1] == whole:
        return content, None
    splitter = AsideSplitter()
    visible = [splitter.feed(text) for text in texts]
    last = max(place for place, text in enumerate(texts) if text)
    visible[last] += splitter.close()
    if isinstance(content, str):
        return visible[0] or None, splitter.aside
    kept = [
        part if new == old else {**part, "text": new}
        for part, old, new in zip(content or [], texts, visible, strict=True)
        if new or not old
    ]
    return kept or None, splitter.aside


def _read_part(part: str | dict[str, Any]) -> str:
    text = part if isinstance(part, str) else part.get("text")
    return text if isinstance(text, str) else ""


def findings(
    messages: Sequence[Message], declared: Collection[str] | None = None
) -> tuple[str, ...]:
    """Return a conversation's contradictions, each once; `declared` names the known tools."""
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


def contradicts(part: float | None, outputs: Sequence[str], messages: Sequence[Message]) -> bool:
    """Return whether a part of the reward (1 if the assistant said each of `outputs`, by the rule
    of tau-bench and tau2) is not what the messages show. False without a part or outputs."""
    if part is None or not outputs:
        return False
    answers = [
        message.text.lower().replace(",", "") for message in messages if message.role == "assistant"
    ]
    said_all = all(any(output.lower() in text for text in answers) for output in outputs)
    return (part == 1) != said_all


_MAX_NAMED: Final = 5
"""Most unknown tools named per rollout, because a model can make up many."""


def _reject(why: str, _: object) -> NoReturn:
    raise Unusable(why)
