"""A span by OpenTelemetry's GenAI conventions, as a call of the model (span -> request, answer).

    chat_of(span)     what was asked and answered, both in OpenAI's form; None: no call of a model

Read are the attributes of the span, or of its event `gen_ai.client.inference.operation.details`:
as structures, or as the JSON that instrumentations write where structures are not allowed. What was
said is opt-in there (`OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT`): a span without it tells
of no conversation, and is not usable. Pure.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

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
from producers.spans.otlp import Attributes, Received
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
    """In OpenAI's form."""
    answer: Json
    """Likewise; without choices where there is none."""
    conversation: str | None
    person: str | None
    model: str | None
    """Who answered, else who was asked."""


def chat_of(span: Received) -> Chat | None:
    """The call that a span tells of. Raises Unusable for one that cannot be recorded."""
    told = span.attributes
    if told.get(OPERATION) not in _CALLS:
        return None
    for name, attributes in span.events:
        if name == DETAILS:
            told = {**attributes, **told}
    asked = _messages(told, INPUT)
    if not asked:
        raise Unusable(NO_CONTENT)
    said = _messages(told, OUTPUT)
    if not said and span.error is None:
        raise Unusable(f"it has {INPUT} and neither {OUTPUT} nor an error")
    return Chat(
        request=_request(told, asked),
        answer=_answer(told, said),
        conversation=_text(told.get(CONVERSATION)),
        person=next((found for name in PEOPLE if (found := _text(told.get(name)))), None),
        model=_text(told.get(RESPONSE_MODEL)) or _text(told.get(REQUEST_MODEL)),
    )


def _request(told: Attributes, asked: list[Json]) -> Json:
    system = "".join(_texts(_structure(told, INSTRUCTIONS)))
    messages = [one for message in asked for one in _in_openais_form(message)]
    request: Json = {
        "messages": [*([{"role": "system", "content": system}] if system else ()), *messages]
    }
    if model := _text(told.get(REQUEST_MODEL)):
        request["model"] = model
    if tools := [_tool(one) for one in _structure(told, TOOLS) or () if isinstance(one, dict)]:
        request["tools"] = tools
    for attribute, parameter in SAMPLING.items():
        if told.get(attribute) is not None:
            request[parameter] = told[attribute]
    return request


def _answer(told: Attributes, said: list[Json]) -> Json:
    reasons = told.get(FINISH_REASONS)
    reasons = reasons if isinstance(reasons, list) else []
    choices = []
    for place, message in enumerate(said):
        finish = message.get("finish_reason") or next(iter(reasons[place:]), None)
        (first, *_) = _in_openais_form({**message, "role": "assistant"})
        choices.append({"index": place, "message": first, "finish_reason": finish})
    usage = {
        "prompt_tokens": told.get(INPUT_TOKENS),
        "completion_tokens": told.get(OUTPUT_TOKENS),
    }
    return {"choices": choices, "usage": usage}


def _messages(told: Attributes, name: str) -> list[Json]:
    found = _structure(told, name)
    if found is None:
        return []
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise Unusable(f"its {name} is no list of messages")
    return found


def _structure(told: Attributes, name: str) -> Any:
    """An attribute that is a structure, or the JSON of one."""
    value = told.get(name)
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise Unusable(f"its {name} is text and no JSON: {str(error)[:80]}") from error


def _in_openais_form(message: Json) -> Iterator[Json]:
    """A message, and one more for each result of a tool beyond the first."""
    role, parts = message.get("role"), message.get("parts")
    if not isinstance(role, str) or not isinstance(parts, list):
        raise Unusable("a message has no role, or no list of parts")
    parts = [part for part in parts if isinstance(part, dict)]
    results = [part for part in parts if part.get("type") == "tool_call_response"]
    for part in results:
        yield {"role": "tool", "tool_call_id": _text(part.get("id")), "content": _result(part)}
    if results and len(results) == len(parts):
        return
    said: Json = {"role": role, "content": _content(parts)}
    if isinstance(name := message.get("name"), str):
        said["name"] = name
    if calls := [_call(part) for part in parts if part.get("type") == "tool_call"]:
        said["tool_calls"] = calls
    if reasoning := "".join(_texts(parts, "reasoning")):
        said["reasoning"] = reasoning
    yield said


def _content(parts: list[Json]) -> str | list[Json] | None:
    """What is said; pictures and sounds are named and not kept."""
    media = [one for one in parts if one.get("type") in ("blob", "file", "uri")]
    if not media:
        text = list(_texts(parts))
        return "".join(text) if text else None
    kept = ({"type": _MEDIA, "mime_type": _text(one.get("mime_type"))} for one in media)
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
    """What a tool said; `result` is what the field was called before."""
    said = part.get("response", part.get("result"))
    return said if isinstance(said, str) else json.dumps(said)


def _tool(one: Json) -> Json:
    """A tool that was offered: the conventions have it flat."""
    if "function" in one:
        return one
    function = {name: value for name, value in one.items() if name != "type"}
    return {"type": "function", "function": function}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
