"""Converts a span by OpenTelemetry's GenAI conventions to a model call (request and answer).
Attributes are read from the span, or from its event `gen_ai.client.inference.operation.details`, as
structures or as JSON. Spans only have content if
`OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT` is set; others are unusable. Pure."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from events.json_text.size import find_excess
from producers.spans.conventions import (
    CONVERSATION,
    DETAILS,
    FINISH_REASONS,
    INPUT,
    INPUT_TOKENS,
    INSTRUCTIONS,
    OPERATION,
    OUTPUT,
    OUTPUT_TOKENS,
    PEOPLE,
    REQUEST_MODEL,
    RESPONSE_MODEL,
    SAMPLING,
    TOOLS,
)
from producers.spans.otlp import Attributes, ClientSpan
from producers.storable import Unusable

Json = dict[str, Any]

_CALLS: Final = ("chat", "generate_content")
_MEDIA: Final = "media"

NO_CONTENT: Final = (
    f"it has no {INPUT}: its instrumentation captures no content; set "
    "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=true there"
)


@dataclass(frozen=True, slots=True)
class Chat:
    """A call of a model."""

    request: Json
    """Request in OpenAI's form."""
    answer: Json
    """Answer in OpenAI's form; without `choices` if the call failed."""
    conversation: str | None
    person: str | None
    model: str | None
    """Model that answered, else the requested one."""


def chat_of(span: ClientSpan) -> Chat | None:
    """Return a span's model call; None for other spans. Raises Unusable if not recordable."""
    attributes = span.attributes
    if attributes.get(OPERATION) not in _CALLS:
        return None
    for name, details in span.events:
        if name == DETAILS:
            attributes = {**details, **attributes}
    asked = _messages(attributes, INPUT)
    if not asked:
        raise Unusable(NO_CONTENT)
    answers = _messages(attributes, OUTPUT)
    if not answers and span.error is None:
        raise Unusable(f"it has {INPUT} and neither {OUTPUT} nor an error")
    return Chat(
        request=_request(attributes, asked),
        answer=_answer(attributes, answers),
        conversation=_text(attributes.get(CONVERSATION)),
        person=next((user for name in PEOPLE if (user := _text(attributes.get(name)))), None),
        model=_text(attributes.get(RESPONSE_MODEL)) or _text(attributes.get(REQUEST_MODEL)),
    )


def _request(attributes: Attributes, asked: list[Json]) -> Json:
    system = "".join(_texts(_structure(attributes, INSTRUCTIONS)))
    messages = [item for message in asked for item in _in_openais_form(message)]
    request: Json = {
        "messages": [*([{"role": "system", "content": system}] if system else ()), *messages]
    }
    if model := _text(attributes.get(REQUEST_MODEL)):
        request["model"] = model
    if tools := [
        _tool(item) for item in _structure(attributes, TOOLS) or () if isinstance(item, dict)
    ]:
        request["tools"] = tools
    for attribute, parameter in SAMPLING.items():
        if attributes.get(attribute) is not None:
            request[parameter] = attributes[attribute]
    return request


def _answer(attributes: Attributes, answers: list[Json]) -> Json:
    reasons = attributes.get(FINISH_REASONS)
    reasons = reasons if isinstance(reasons, list) else []
    choices = []
    for place, message in enumerate(answers):
        finish = message.get("finish_reason") or next(iter(reasons[place:]), None)
        (first, *_) = _in_openais_form({**message, "role": "assistant"})
        choices.append({"index": place, "message": first, "finish_reason": finish})
    usage = {
        "prompt_tokens": attributes.get(INPUT_TOKENS),
        "completion_tokens": attributes.get(OUTPUT_TOKENS),
    }
    return {"choices": choices, "usage": usage}


def _messages(attributes: Attributes, name: str) -> list[Json]:
    messages = _structure(attributes, name)
    if messages is None:
        return []
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise Unusable(f"its {name} is no list of messages")
    return messages


def _structure(attributes: Attributes, name: str) -> Any:
    value = attributes.get(name)
    if not isinstance(value, str):
        return value
    if (excess := find_excess(value)) is not None:
        raise Unusable(f"its {name} holds {excess}; send less")
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise Unusable(f"its {name} is text and no JSON: {str(error)[:80]}") from error


def _in_openais_form(message: Json) -> Iterator[Json]:
    """Yield a message in OpenAI's form, and another one for each further tool result in it."""
    role, parts = message.get("role"), message.get("parts")
    if not isinstance(role, str) or not isinstance(parts, list):
        raise Unusable("a message has no role, or no list of parts")
    parts = [part for part in parts if isinstance(part, dict)]
    results = [part for part in parts if part.get("type") == "tool_call_response"]
    for part in results:
        yield {"role": "tool", "tool_call_id": _text(part.get("id")), "content": _result(part)}
    if results and len(results) == len(parts):
        return
    openai_message: Json = {"role": role, "content": _content(parts)}
    if isinstance(name := message.get("name"), str):
        openai_message["name"] = name
    if calls := [_call(part) for part in parts if part.get("type") == "tool_call"]:
        openai_message["tool_calls"] = calls
    if reasoning := "".join(_texts(parts, "reasoning")):
        openai_message["reasoning"] = reasoning
    yield openai_message


def _content(parts: list[Json]) -> str | list[Json] | None:
    """Return the content. For pictures and sounds, only the media type is kept."""
    media = [part for part in parts if part.get("type") in ("blob", "file", "uri")]
    if not media:
        text = list(_texts(parts))
        return "".join(text) if text else None
    kept = ({"type": _MEDIA, "mime_type": _text(part.get("mime_type"))} for part in media)
    return [*({"type": "text", "text": text} for text in _texts(parts)), *kept]


def _texts(parts: Any, kind: str = "text") -> Iterator[str]:
    for part in parts if isinstance(parts, list) else ():
        if isinstance(part, dict) and part.get("type") == kind:
            yield str(part.get("content") or "")


def _call(part: Json) -> Json:
    arguments = part.get("arguments")
    if not isinstance(arguments, str):
        arguments = json.dumps({} if arguments is None else arguments)
    function = {"name": _text(part.get("name")) or "", "arguments": arguments}
    return {"id": _text(part.get("id")), "type": "function", "function": function}


def _result(part: Json) -> str:
    """Return a tool's result from `response`, or `result`, the field's former name."""
    response = part.get("response", part.get("result"))
    return response if isinstance(response, str) else json.dumps(response)


def _tool(tool: Json) -> Json:
    """Return an offered tool in OpenAI's form. In the conventions its fields are flat."""
    if "function" in tool:
        return tool
    function = {name: value for name, value in tool.items() if name != "type"}
    return {"type": "function", "function": function}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
