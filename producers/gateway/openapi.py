"""The OpenAPI 3.1 description at GET /openapi.json, with the fields that the gateway reads."""

from typing import Any, Final

from producers.gateway.capture.feedback import FeedbackBody

Json = dict[str, Any]

_TEXT: Final[Json] = {"type": "string"}
_NAME: Final[Json] = {"type": "string", "pattern": "^[\\x21-\\x7e]{1,256}$"}
_OBJECT: Final[Json] = {"type": "object"}
_TOKENS: Final[Json] = {"type": "integer", "minimum": 1}

_ERROR: Final[Json] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type"],
            "properties": {"message": _TEXT, "type": _TEXT},
        }
    },
}


def _asks(*required: str, **properties: Json) -> Json:
    shared = {"model": _TEXT, "stream": {"type": "boolean"}}
    return {"type": "object", "required": list(required), "properties": shared | properties}


def _header(name: str, meaning: str, schema: Json) -> Json:
    return {"name": name, "in": "header", "description": meaning, "schema": schema}


_HEADERS: Final = [
    _header("x-kintsugi-session", "The conversation.", _NAME),
    _header("x-kintsugi-user", "Whose data it is.", _NAME),
    _header("idempotency-key", "The same for a request that is sent again.", _NAME),
]


def _json(schema: Json) -> Json:
    return {"application/json": {"schema": schema}}


_STATUS: Final[Json] = {
    "type": "object",
    "required": ["message"],
    "properties": {"message": {"type": "string"}},
}
"""google.rpc.Status, in which OTLP returns errors."""


def _operation(
    summary: str,
    answer: Json,
    body: Json | None = None,
    parameters: list[Json] | None = None,
    refused: Json = _ERROR,
) -> Json:
    operation: Json = {
        "summary": summary,
        "responses": {
            "200": {"description": "It was done.", "content": answer},
            "default": {"description": "Why it was not done.", "content": _json(refused)},
        },
        "security": [{"key": []}, {}],
    }
    if parameters:
        operation["parameters"] = parameters
    if body is not None:
        operation["requestBody"] = {"required": True, "content": _json(body)}
    return operation


def _call(summary: str, body: Json) -> Json:
    answer = _json(_OBJECT) | {"text/event-stream": {"schema": _TEXT}}
    return {"post": _operation(summary, answer, body, _HEADERS)}


def _look(summary: str, kind: str) -> Json:
    operation = _operation(summary, {kind: {"schema": _TEXT}})
    operation["security"] = [{}]
    operation["responses"]["default"] = {"description": "It is not so."}
    return {"get": operation}


_MESSAGES: Final[Json] = {"type": "array", "items": _OBJECT}

DOCUMENT: Final[Json] = {
    "openapi": "3.1.0",
    "info": {"title": "kintsugi gateway", "version": "1"},
    "servers": [
        {"url": "/"},
        {
            "url": "/r/session/{session}",
            "description": "For agents that can set a base URL and nothing else; also /r/user/NAME "
            "and /r/task/ID, one or more of them.",
            "variables": {"session": {"default": "mine"}},
        },
    ],
    "paths": {
        "/v1/chat/completions": _call(
            "The engine's answer to a conversation.",
            _asks("messages", messages=_MESSAGES, max_tokens=_TOKENS),
        ),
        "/v1/completions": _call(
            "The engine's continuation of a text.",
            _asks("prompt", prompt=_TEXT, max_tokens=_TOKENS),
        ),
        "/v1/messages": _call(
            "The engine's answer in the shape of Anthropic's Messages API, where it has one.",
            _asks("messages", messages=_MESSAGES, max_tokens=_TOKENS),
        ),
        "/v1/messages/count_tokens": {
            "post": _operation(
                "How many tokens messages have.",
                _json(_OBJECT),
                _asks("messages", messages=_MESSAGES),
            )
        },
        "/v1/models": {"get": _operation("What the engine serves.", _json(_OBJECT))},
        "/v1/feedback": {
            "post": _operation(
                "What somebody says of a call or of a session.",
                _json(_OBJECT),
                FeedbackBody.model_json_schema(),
                _HEADERS[1:2],
            )
        },
        "/v1/sessions/{ended}/end": {
            "post": _operation(
                "Ends a session.",
                _json(_OBJECT),
                parameters=[{"name": "ended", "in": "path", "required": True, "schema": _NAME}],
            )
        },
        "/v1/traces": {
            "post": _operation(
                "Spans of calls that were made elsewhere, as OTLP; also as protobuf and with gzip.",
                _json(_OBJECT),
                _OBJECT | {"properties": {"resourceSpans": {"type": "array", "items": _OBJECT}}},
                _HEADERS[1:2],
                # Refusals by request_guard.py or by a key are not in OTLP's form.
                {"anyOf": [_STATUS, _ERROR]},
            )
        },
        "/livez": _look("Whether it runs.", "text/plain"),
        "/readyz": _look("Whether it answers calls.", "text/plain"),
        "/metrics": _look("What it counts, for Prometheus.", "text/plain"),
        "/openapi.json": {
            "get": _operation("This.", _json(_OBJECT)) | {"security": [{}]},
        },
    },
    "components": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
}
