"""Span attributes of a call's content and sampling, by OpenTelemetry's conventions. Content is sent
only if `tracing.content` is on; it is the log's, so after redaction."""

import json
import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Row

from events.canonical import exact_json
from events.errors import KintsugiError
from events.messages import Message
from producers.spans import conventions as names

if TYPE_CHECKING:
    from daemon.sessions.conversations import History
    from daemon.tracing.spans import Attributes

ERASED: Final = "kintsugi.erased"
"""Attribute of a call whose content, or that of a call that it continues, was erased."""

_NUMBERS: Final = (int, float)

log = logging.getLogger(__name__)


@lru_cache(maxsize=256)
def sampling_of(text: str | None) -> "Attributes":
    """Return the sampling parameters named in the conventions; the result must not be changed."""
    parameters = json.loads(text) if text else {}
    attributes: dict[str, Any] = {}
    for attribute, parameter in names.SAMPLING.items():
        value = parameters.get(parameter)
        if isinstance(value, str):
            value = [value]
        if isinstance(value, _NUMBERS) or _is_texts(value):
            attributes[attribute] = value
    return attributes


def content_of(history: "History", row: Row[Any]) -> "Attributes":
    """Return the attributes of request and answer: `ERASED` if either is erased, none if the log
    cannot be read."""
    try:
        asked, answered = history.read_request(row), history.read_answer(row)
        if history.is_unreadable(row):
            return {ERASED: True}
    except KintsugiError as error:
        log.warning("the content of call %s is not sent: %s", row.call, error)
        return {}
    content = {names.INPUT: exact_json([_message(message) for message in asked])}
    if answered:
        answers = [
            {**_message(message), "finish_reason": row.finish_reason or ""} for message in answered
        ]
        content[names.OUTPUT] = exact_json(answers)
    return content


def _message(message: Message) -> dict[str, Any]:
    return {"role": message.role, "parts": list(_parts(message))}


def _parts(message: Message) -> Sequence[dict[str, Any]]:
    if message.role == "tool":
        return [
            {
                "type": "tool_call_response",
                "id": message.tool_call_id,
                "response": message.content,
            }
        ]
    parts: list[dict[str, Any]] = []
    if message.reasoning:
        parts.append({"type": "reasoning", "content": message.reasoning})
    if message.aside:
        parts.append({"type": "reasoning", "content": message.aside})
    if isinstance(message.content, str):
        parts.append({"type": "text", "content": message.content})
    elif message.content is not None:
        parts += [_part(part) for part in message.content]
    parts += [
        {"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.arguments}
        for call in message.tool_calls
    ]
    return parts


def _part(part: dict[str, Any]) -> dict[str, Any]:
    text = part.get("text")
    return {"type": "text", "content": text} if isinstance(text, str) else {"type": "media", **part}


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)
